#!/usr/bin/env bats
# A session of `make verify` under which the head restarts.

setup_file() {
  load fault_helper
  fault::use work 18295
  fault::cluster
  mkdir -p "${BATS_FILE_TMPDIR}/harmless"
  cp -r "${WORKDIR}/shared/common/code/verl/codeA/verl" "${BATS_FILE_TMPDIR}/harmless"
  chmod -R u+w "${BATS_FILE_TMPDIR}/harmless"
  printf '# A comment.\n' >>"${BATS_FILE_TMPDIR}/harmless/verl/trainer/sft_trainer_ray.py"
}

teardown_file() {
  load fault_helper
  fault::use work 18295
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

session::newest() { find "${WORKDIR}/shared/verify" -mindepth 1 -maxdepth 1 -type d 2>/dev/null | sort | tail -n 1; }

# session::await FACT...: until it is true, but not beyond the end of the session that was started last.
session::await() { wait::until 600 session::is_over "$@" || fail "$*: it did not come to that: $(<"$SESSION_OUT")"; }

session::is_over() { ! kill -0 "$SESSION_PID" 2>/dev/null; }

# session::ended [PID FILE]: waits for its end; sets status and output.
session::ended() { container::ended "${1:-$SESSION_PID}" "${2:-$SESSION_OUT}"; }

# session::trains N: a job of the session is at that step.
session::trains() { grep -q "step $1 of " "$SESSION_OUT"; }

@test "the head restarts and nobody comes: the session ends, and goes on after make up" {
  fault::begin 'the head restarts in the middle of a session, and nobody comes'
  UNREACHABLE_TIMEOUT=20 session::start restarted 'loss: {workload: sft, steps: 20, overrides: [trainer.nnodes=1]}'
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
