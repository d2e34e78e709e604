#!/usr/bin/env bats
# A session of `make verify` under which the cluster changes: the head restarts, B's snapshot is removed, another session runs too. A
# disk that is full when it writes its reports: 60_storage.bats.

setup_file() {
  load fault_helper
  fault::use session 18297
  fault::cluster
  mkdir -p "${BATS_FILE_TMPDIR}/harmless"
  cp -r "${WORKDIR}/shared/common/code/verl/codeA/verl" "${BATS_FILE_TMPDIR}/harmless"
  chmod -R u+w "${BATS_FILE_TMPDIR}/harmless"
  printf '# A comment.\n' >>"${BATS_FILE_TMPDIR}/harmless/verl/trainer/sft_trainer_ray.py"
}

teardown_file() {
  load fault_helper
  fault::use session 18297
  fault::down
}

setup() { load fault_helper; }

# session::start NAME CASE...: a session of these cases in the background, with a comment in B; returns when it has begun. Its output is
# in ${BATS_TEST_TMPDIR}/NAME. Sets SESSION_PID, and SESSION_DIR, its directory.
session::start() {
  local name=$1 before
  shift
  printf '%s\n' 'cases:' "${@/#/  }" >"${BATS_TEST_TMPDIR}/${name}.yaml"
  before=$(session::newest)
  SUITE="${BATS_TEST_TMPDIR}/${name}.yaml" CODE_A=codeA CODE_B="path:${BATS_FILE_TMPDIR}/harmless" \
    scripts/60_verify.sh >"${BATS_TEST_TMPDIR}/${name}" 2>&1 3>&- &
  SESSION_PID=$!
  SESSION_OUT="${BATS_TEST_TMPDIR}/${name}"
  session::await grep -q 'this session makes ' "$SESSION_OUT"
  SESSION_DIR=$(session::newest)
  [[ $SESSION_DIR != "$before" ]] || fail 'no session was made'
}

session::newest() { find "${WORKDIR}/shared/verify" -mindepth 1 -maxdepth 1 2>/dev/null | sort | tail -n 1; }

# session::await FACT...: until it is true, but not beyond the end of the session that was started last.
session::await() { wait::until 300 session::is_over "$@" || fail "$*: it did not come to that: $(<"$SESSION_OUT")"; }

session::is_over() { ! kill -0 "$SESSION_PID" 2>/dev/null; }

# session::ended [PID FILE]: waits for its end; sets status and output.
session::ended() { container::ended "${1:-$SESSION_PID}" "${2:-$SESSION_OUT}"; }

# session::power_off: what drives the session and all containers end at once, without a word.
session::power_off() {
  kill -KILL "$SESSION_PID"
  docker kill "${CLUSTER_NAME}-"{head,worker-0,worker-1}
}

# session::trains N: a job of the session is at that step.
session::trains() { grep -q "step $1 of " "$SESSION_OUT"; }

# session::ids DIR: the jobs that it made itself, one per line.
session::ids() { jq -r '.jobs[] | select(.reused_from == null) | .submission_id' "$1/report.json" | sort; }

@test "the head restarts during the session and nobody comes: it ends with one sentence, and goes on after make up" {
  fault::begin 'the head restarts in the middle of a session, and nobody comes'
  UNREACHABLE_TIMEOUT=10 session::start restarted 'loss: {workload: sft, steps: 20}'
  session::await session::trains 1
  fault::inject docker restart --time 0 "${CLUSTER_NAME}-head"
  session::ended
  fault::answered 8 "$(grep -m 1 'It is unknown how the job' <<<"$output")"
  assert_status 8
  assert_line "error   It is unknown how the job loss-b-${SESSION_DIR##*/} of loss_b ended \(the reason is above\): fix that, then continue the session\."
  assert_line " +the session can be continued: 'make verify SESSION=${SESSION_DIR##*/}'"
  status=8 fault::recovered
  SESSION=latest run scripts/60_verify.sh
  assert_status 0
  assert_line " +loss_b: loss-b-${SESSION_DIR##*/} was lost, which says nothing about the code: the run is repeated"
  assert_line 'verdict +(identical|same) \(exit status 0\)'
  [[ $(jq -r .jobs.loss_b.submission_id "${SESSION_DIR}/report.json") == "loss-b-${SESSION_DIR##*/}-2" ]]
  [[ $(session::newest) == "$SESSION_DIR" ]]
}

@test "the head restarts during the session, and make up is run at once: the run is repeated, and the session ends with its verdict" {
  fault::begin 'the head restarts in the middle of a session, make up at once'
  UNREACHABLE_TIMEOUT=300 session::start repaired 'loss: {workload: sft, steps: 20}'
  session::await session::trains 1
  fault::inject docker restart --time 0 "${CLUSTER_NAME}-head"
  run make --no-print-directory up
  assert_status 0
  session::ended
  fault::answered "$status" "$(grep -m 1 '^verdict ' <<<"$output")"
  assert_line " +loss_b: loss-b-${SESSION_DIR##*/} was lost, which says nothing about the code: the run is repeated"
  # If its workers are not back yet, it cannot be submitted: then the session says so, and goes on.
  [[ $output != *'the nodes that are up have '* ]] || SESSION=latest run scripts/60_verify.sh
  assert_status 0
  assert_line '12 of 12 checks passed'
  assert_line 'verdict +(identical|same) \(exit status 0\)'
  fault::recovered
}

@test "the machine loses its power during the session: after make up it goes on with the same session, and repeats the run" {
  fault::begin 'the machine loses its power in the middle of a session'
  session::start rebooted 'loss: {workload: sft, steps: 20}'
  session::await session::trains 1
  fault::inject session::power_off
  session::ended
  fault::answered 137 'nothing, because what would answer was killed, too'
  assert_status 137
  fault::recovered
  SESSION=latest run scripts/60_verify.sh
  assert_status 0
  assert_line " +loss_b: loss-b-${SESSION_DIR##*/} was lost, which says nothing about the code: the run is repeated"
  assert_line 'verdict +(identical|same) \(exit status 0\)'
  [[ $(session::newest) == "$SESSION_DIR" ]]
}

@test "B's snapshot is removed during the session: no verdict on B, and it goes on when the snapshot is there again" {
  local code snapshot
  fault::begin "B's snapshot is removed in the middle of a session"
  session::start removed 'loss: {workload: sft, steps: 4}' 'more: {workload: sft, steps: 3}'
  session::await test -s "${SESSION_DIR}/evidence/job-loss_b.json"
  code=$(jq -r .codes.B "${SESSION_DIR}/evidence/begin.json")
  snapshot="${WORKDIR}/shared/common/code/verl/${code}"
  [[ $code =~ ^verl-[0-9a-f]{8}$ && -d $snapshot ]] || fail "B is ${code}"
  find "$snapshot" -type d -exec chmod u+w {} +
  fault::inject rm -rf "$snapshot"
  session::ended
  fault::answered 1 "$(grep -m 1 '^error ' <<<"$output")"
  assert_status 1
  assert_line "error   The snapshot ${code} was removed after the session began \(${snapshot} is not there\): make it again with 'make snapshot CODE_ID=${code} VERL_SOURCE=path:[^ ]+/harmless', and continue the session\."
  assert_line " +the session can be continued: 'make verify SESSION=${SESSION_DIR##*/}'"
  [[ ! -e ${SESSION_DIR}/report.json ]]
  status=1 fault::recovered
  make --no-print-directory snapshot "CODE_ID=${code}" "VERL_SOURCE=path:${BATS_FILE_TMPDIR}/harmless"
  SESSION=latest run scripts/60_verify.sh
  assert_status 0
  assert_line ' +this session makes 2 to 4 more runs \(1 case\), 2 done already.*'
  assert_line 'verdict +(identical|same) \(exit status 0\)'
  [[ $(session::ids "$SESSION_DIR" | wc -l) == 4 ]] || fail "it made $(session::ids "$SESSION_DIR")"
}

@test "two sessions at once: both end with their verdict, share no job, and a third shell cannot drive one of them" {
  local first first_pid
  fault::begin 'two sessions of make verify at once'
  session::start one 'loss: {workload: sft, steps: 6}'
  first=$SESSION_DIR first_pid=$SESSION_PID
  session::start two 'loss: {workload: sft, steps: 5}'
  fault::inject true
  SESSION=${first##*/} run scripts/60_verify.sh
  assert_status 2
  assert_line "error   The session ${first##*/} is driven by pid ${first_pid} of $(id -un) on ${HOSTNAME} since [0-9-]+ [0-9:]+ [+-][0-9]{4}: wait until that process ends, or stop it on that machine, then run this again\."
  for one in "${first_pid} ${BATS_TEST_TMPDIR}/one" "${SESSION_PID} ${BATS_TEST_TMPDIR}/two"; do
    session::ended "${one%% *}" "${one#* }"
    assert_status 0
    assert_line 'verdict +(identical|same) \(exit status 0\)'
  done
  fault::answered 0 "$(grep -m 1 '^verdict ' <<<"$output")"
  for one in "$first" "$SESSION_DIR"; do
    [[ $(session::ids "$one") == $'loss-a-'"${one##*/}"$'\nloss-b-'"${one##*/}" ]] || fail "${one} made $(session::ids "$one")"
  done
  fault::recovered
}
