#!/usr/bin/env bats
# `make verify` on a live cluster: green as it is, and red for a check that is broken in the running system.

setup_file() {
  load container_helper
  container::use verify 18269
  container::cluster
}

teardown_file() {
  load container_helper
  make --no-print-directory down >/dev/null 2>&1
}

setup() { load container_helper; }

@test "a whole session: two releases of verl, all workloads, every check passes" {
  run make --no-print-directory verify
  assert_status 0
  assert_line '13 of 13 checks passed'
  session=$(find "${WORKDIR}/shared/verify" -mindepth 1 -maxdepth 1 | sort | tail -n 1)
  [[ $(jq .holds "${session}/report.json") == true ]]
  [[ $(jq -r '.jobs | keys_unsorted | join(" ")' "${session}/report.json") == 'ppo_a ppo_b grpo sft further' ]]
  grep -q '^# 13 of 13 checks passed$' "${session}/report.md"
  [[ $(grep -cE '^\| ([1-9]|10) \| -?[0-9.]+ \| -?[0-9.]+ \|' "${session}/report.md") == 10 ]]
  grep -q 'tests="13" failures="0"' "${session}/junit.xml"
  # What the session costs in addition to its bare jobs: printed, not asserted.
  printf '# jobs: %s s, session: %s\n' "$(jq '[.jobs[].seconds] | add' "${session}/report.json")" \
    "$(grep -oE '60_verify: done in [0-9.]+ s' <<<"$output")" >&3
}

@test "an ONLY that is not a check is refused" {
  ONLY=everything run scripts/60_verify.sh
  assert_status 2
  assert_line "error   ONLY='everything' \(from the command line or environment\) is not usable: use some of submission, placement, head, .*"
}

# helper_in NODE ARG...: runs the helper there.
helper_in() { docker exec "vrtest-verify-$1" python3 "$HELPER/run.py" --shared-root /private "${@:2}"; }

# judged LINE JOB: a session with only that check of that job; sets status and output.
judged() {
  local session
  session=$(helper_in head verify begin --profile cpu --cluster vrtest-verify --only "$1" --code-a codeA --code-b codeB \
    --head-identity "$(docker inspect --format '{{.Id}}' vrtest-verify-head)" --head-address "$(container::ip head)")
  helper_in head verify record --session "$session" --name ppo_a --job "$2"
  [[ $1 != imports ]] || helper_in head verify record --session "$session" --name ppo_b --job "$2"
  run helper_in head verify judge --session "$session"
}

# The helper as the scripts install it, and a stream of JobSpec and base config as they send it.
stream() {
  HELPER=$(bash -c 'source scripts/lib/regress.bash; cli::begin; trap - EXIT; env::load; helper::dir')
  cp jobspecs/ppo.yaml "${BATS_TEST_TMPDIR}/job_spec"
  sed "s|http://127.0.0.1:8265|${1:-http://127.0.0.1:8265}|" env/ray/cpu.yaml >"${BATS_TEST_TMPDIR}/ray_config"
  SUBMIT=(submit --spec-name jobspecs/ppo.yaml --base-name env/ray/cpu.yaml --profile cpu --cluster vrtest-verify --default-model tiny-qwen2
    --default-dataset sums --default-code-id codeA --overrides=trainer.total_training_steps=1)
}

# bats test_tags=turn:1
@test "red: a driver on the head" {
  stream
  # The plan refuses such a request, so the submitter is changed just before it calls Ray.
  tar -C "$BATS_TEST_TMPDIR" -c job_spec ray_config | docker exec --interactive vrtest-verify-head python3 -c '
import sys
sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/hooks"]
from verl_regress import cli
from verl_regress.cluster import ray_api
real = ray_api.RayApi.submit
ray_api.RayApi.submit = lambda self, **asked: real(self, **{**asked, "entrypoint_num_cpus": 0, "entrypoint_resources": {}})
sys.exit(cli.main(["--shared-root", "/private", *sys.argv[2:]]))' "$HELPER" "${SUBMIT[@]}" --submission-id=on-the-head
  JOB=on-the-head scripts/52_wait.sh
  judged placement on-the-head
  assert_status 9
  assert_line 'FAIL +placement .*'
  assert_line " +- the driver of ppo_a ran on $(container::ip head); workers are .*"
}

# bats test_tags=turn:1
@test "red: a submission from the host" {
  stream http://127.0.0.1:18269
  image=$(scripts/10_build_image.sh --name 2>/dev/null)
  tar -C "$BATS_TEST_TMPDIR" -c job_spec ray_config |
    docker run --rm --interactive --network host --volume "${WORKDIR}/shared:/private" --env RAY_AUTH_MODE=token \
      --volume "${WORKDIR}/secrets/vrtest-verify.token:/run/secrets/ray_token:ro" --env RAY_AUTH_TOKEN_PATH=/run/secrets/ray_token \
      "$image" python3 "$HELPER/run.py" --shared-root /private "${SUBMIT[@]}" --submission-id=from-the-host
  # Its address is the host's, which does not answer inside the head: its own files show its end.
  make --no-print-directory wait JOB=from-the-host UNREACHABLE_TIMEOUT=300
  judged submission from-the-host
  assert_status 9
  assert_line ' +- ppo_a was submitted from [0-9a-f]+, the head is [0-9a-f]+'
}

@test "red: a marker that was swapped" {
  CODE_ID=swapped scripts/31_snapshot_verl_code.sh
  marker=${WORKDIR}/shared/common/code/verl/swapped/mvp_marker.py
  chmod u+w "$(dirname "$marker")" && rm "$marker" && printf 'MARKER = "codeA"\n' >"$marker"
  WAIT=1 SUBMISSION_ID=swapped CODE_ID=swapped run scripts/40_submit_ppo_epoch1.sh
  assert_status 3
  stream
  judged imports swapped
  assert_status 9
  assert_line " +- ppo_a did not print 'MVP_PRECHECK_MARKER: swapped'"
}

# bats test_tags=turn:0
@test "red: a checkpoint every step" {
  WAIT=1 SUBMISSION_ID=every-step OVERRIDES='trainer.total_training_steps=2 trainer.save_freq=1' run scripts/40_submit_ppo_epoch1.sh
  assert_status 0
  stream
  judged checkpoints every-step
  assert_status 9
  assert_line ' +- ppo_a kept global_step_1, global_step_2; every 10 steps is global_step_2'
}
