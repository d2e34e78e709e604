#!/usr/bin/env bats
# Looking in: the dashboard, the way there, and a GRPO that waits in a breakpoint of the user's reward function, and then trains.

setup_file() {
  load container_helper
  container::use quick 18265
  container::cluster
  # Stops once, however many processes ask for a score. No score of verl's own functions is between 0 and 1.
  cat >"${WORKDIR}/shared/user/code/stops.py" <<'PYTHON'
import os


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    score = len(solution_str) % 8 / 10
    try:
        os.close(os.open(os.environ["VERL_REGRESS_JOB_DIR"] + "/stopped", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return score
    seen = ["nobody"]
    breakpoint()
    with open(os.environ["VERL_REGRESS_JOB_DIR"] + "/stopped", "w") as file:
        file.write(seen[0])
    return score
PYTHON
  # shellcheck disable=SC2016  # filled in by the helper
  printf '%s\n' 'workload: grpo' 'reward_fn_path: ${shared_root}/user/code/stops.py' \
    'trainer_overrides: [trainer.total_training_steps=2, trainer.save_freq=2]' >"${BATS_FILE_TMPDIR}/stops.yaml"
}

setup() {
  load container_helper
  load weights
  source scripts/lib/wait.bash
}

job_dir() { printf '%s/shared/jobs/%s\n' "$WORKDIR" "$1"; }

# is_over: the wait in the background has ended.
is_over() { ! kill -0 "$follower" 2>/dev/null; }

# waits JOB: a breakpoint of the job waits.
waits() { [[ $(JSON=1 JOB="$1" scripts/66_debugger.sh 2>/dev/null | jq '.breakpoints | length') -gt 0 ]]; }

@test "make dashboard: address, token file, how to log in; it takes the token" {
  run make --no-print-directory dashboard
  assert_status 0
  assert_line "address  http://127\.0\.0\.1:${DASHBOARD_PORT}( \(.*\))?"
  assert_line "token    ${WORKDIR}/secrets/${CLUSTER_NAME}\.token"
  assert_line 'log in   open the address, paste the content of that file where it asks for a token; a cookie keeps it for 30 days'
  assert_line 'ok      it answers, and takes the token'
  # What the field on its first page does with the token: Ray sets a cookie, and the cookie is enough from then on.
  token=$(<"${WORKDIR}/secrets/${CLUSTER_NAME}.token")
  printf 'header = "Authorization: Bearer %s"\n' "$token" |
    curl --silent --fail --noproxy '*' --config - --request POST --cookie-jar "${BATS_TEST_TMPDIR}/cookies" "http://127.0.0.1:${DASHBOARD_PORT}/api/authenticate"
  run curl --silent --noproxy '*' --output /dev/null --write-out '%{http_code}' --cookie "${BATS_TEST_TMPDIR}/cookies" "http://127.0.0.1:${DASHBOARD_PORT}/api/jobs/"
  [[ $output == 200 ]] || fail "with the cookie: ${output}"
}

@test "make tunnel prints the line for the user's machine" {
  run env -u SSH_CONNECTION make --no-print-directory tunnel
  assert_status 0
  assert_line "ssh -N -L ${DASHBOARD_PORT}:127\.0\.0\.1:${DASHBOARD_PORT} $(id -un)@$(uname -n)"
  SSH_CONNECTION='192.0.2.1 50000 192.0.2.2 2222' run make --no-print-directory tunnel
  assert_status 0
  assert_line "ssh -N -p 2222 -L ${DASHBOARD_PORT}:127\.0\.0\.1:${DASHBOARD_PORT} $(id -un)@192\.0\.2\.2"
}

@test "a breakpoint in a reward function: listed, attached to, and the job goes on" {
  export STALL_TIMEOUT=3
  DEBUGGER=1 SUBMISSION_ID=stops run scripts/44_submit_sdk.sh "${BATS_FILE_TMPDIR}/stops.yaml"
  assert_status 0
  assert_line "warning stops has Ray's debugger on \(DEBUGGER=1\): a process that waits in a breakpoint listens on its node's address, without a password, and whoever connects runs code as the job; 'make debugger JOB=stops' lists them\."
  STALL_TIMEOUT=900 JOB=stops scripts/52_wait.sh >"${BATS_TEST_TMPDIR}/printed" 2>&1 3>&- &
  follower=$!
  wait::until 600 is_over waits stops || fail "$(tail -n 20 "$(job_dir stops)/logs/driver.log")"
  place='user/code/stops\.py:11'

  run make --no-print-directory debugger JOB=stops
  assert_status 0
  listed=$(grep -E "^ray::.*  ${place}  compute_score  worker-[01]  [0-9.]+:[0-9]+  20" <<<"$output") || fail 'not listed'
  node=$(grep -oE 'worker-[01]' <<<"$listed" | sed -n 1p)
  port=$(grep -oE "$(container::ip "$node"):[0-9]+" <<<"$listed" | cut -d: -f2)
  assert_line "ssh -N( -p [0-9]+)? -L 5678:$(container::ip "$node"):${port} .*"
  attach=$(grep '^{"name": "stops stops.py:11"' <<<"$output")
  [[ $(jq -r .connect.port <<<"$attach") == 5678 ]]
  # Ray's own word for it: that worker is paused, and its debugger has that port.
  [[ $(container::api '/api/v0/workers?detail=1&limit=1000' | jq "[.data.result.result[] | select(.num_paused_threads > 0) | .debugger_port]") == *"$port"* ]]

  for target in status jobs; do
    run make --no-print-directory "$target"
    assert_line "stops .*RUNNING, waits in a breakpoint \(${place}\).*"
  done
  wait::until 120 - grep -qE "stops waits in a breakpoint \(${place}\) and keeps its slot: 'make debugger JOB=stops' says how to attach" "${BATS_TEST_TMPDIR}/printed" || fail "$(<"${BATS_TEST_TMPDIR}/printed")"
  # Longer than STALL_TIMEOUT: a job that waits for a person is not stalled.
  JOB=stops run timeout 8 scripts/52_wait.sh
  [[ $status == 124 ]] || fail "make wait ended with ${status}"

  run .venv/bin/python tests/bats/container/dap.py "$(jq --arg host "$(container::ip "$node")" --argjson port "$port" '.connect = {host: $host, port: $port}' <<<"$attach")" 'seen[0] = "attached"'
  assert_status 0
  assert_line "compute_score .*/stops\.py:1[12]"
  container::ended "$follower" "${BATS_TEST_TMPDIR}/printed"
  assert_status 0
  assert_line ' +stops has left the breakpoint and continues'
  assert_line 'ok      stops SUCCEEDED \(the trainer ended\)'
  [[ $(<"$(job_dir stops)/stopped") == attached ]]
  run make --no-print-directory debugger JOB=stops
  assert_line 'error   stops is over \(SUCCEEDED\), so it waits in no breakpoint: submit it again\.'
}

@test "GRPO: two steps with the user's reward function, without a critic" {
  job=$(job_dir stops)
  [[ $(jq -s 'all(.data["critic/vf_loss"] == null and .data["actor/kl_loss"] != null)' "${job}/logs/metrics.jsonl") == true ]]
  [[ $(jq -s 'map(.data["critic/score/max"] | . > 0 and . < 1)' -c "${job}/logs/metrics.jsonl") == '[true,true]' ]]
  weights::changed "$job" || fail 'no weights changed'
  compgen -G "${job}/checkpoints/global_step_2/actor/*"
  [[ ! -e ${job}/checkpoints/global_step_2/critic && $(jq .actors_by_class.TaskRunnerV1 "${job}/state/identity") == 1 ]]
  JOB=stops run scripts/53_fidelity.sh
  assert_status 0
  assert_line 'ok      groups whose answers differ: [1-9][0-9]* of the first [1-9][0-9]* .*'
}
