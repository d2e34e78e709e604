#!/usr/bin/env bats
# Nodes that die, stand still or cannot be reached while a job trains on them.

setup_file() {
  load fault_helper
  fault::use work 18285
  fault::cluster
}

setup() { load fault_helper; }

teardown() {
  # Whatever a test left undone: the next one begins with nodes that run.
  docker unpause vrfault-work-worker-0 vrfault-work-worker-1 >/dev/null 2>&1 || true
}

teardown_file() {
  load fault_helper
  fault::down
}

@test "the worker without the driver is killed: LOST within seconds, and which; a job submitted right after make up trains" {
  fault::train 'the worker without the driver is killed' 60
  fault::find_driver
  lost="${OTHER} \($(container::ip "$OTHER")\)"
  fault::inject docker kill "${CLUSTER_NAME}-${OTHER}"
  fault::told 7 "error   ${JOB} LOST \(the trainer ended with exit status 1, when ${lost} did not answer any more\): read 'make logs JOB=${JOB}'\."
  fault::recovered
  grep -qE "^changed the ${OTHER} that was killed \([0-9.:]+\) is gone: told Ray$" "${BATS_TEST_TMPDIR}/up" || fail "$(<"${BATS_TEST_TMPDIR}/up")"
  fault::nothing_left
  fault::trains_now
}

@test "the worker with the driver is killed, make up is there before Ray gives it up: LOST then, and a job trains at once" {
  fault::train 'the worker with the driver is killed, make up at once' 60
  fault::find_driver
  fault::inject docker kill "${CLUSTER_NAME}-${DRIVER}"
  make --no-print-directory up >"${BATS_TEST_TMPDIR}/at-once" 2>&1
  fault::told 7 "error   ${JOB} LOST \(the driver's node ${DRIVER} died: Ray says its raylet does not answer any more\): read 'make logs JOB=${JOB}'\."
  fault::trains_now
  fault::nothing_left
  status=7 fault::recovered
}

# bats test_tags=full
@test "the worker with the driver is killed and nobody does anything: LOST when Ray gives it up, and which" {
  fault::train 'the worker with the driver is killed' 60
  fault::find_driver
  fault::inject docker kill "${CLUSTER_NAME}-${DRIVER}"
  fault::told 7 "error   ${JOB} LOST \(the driver's node ${DRIVER} died: Ray says health check failed due to missing too many heartbeats\): read 'make logs JOB=${JOB}'\."
  fault::recovered
  fault::nothing_left
}

# bats test_tags=full
@test "a worker stands still for 60 s: the job goes on to its end, and nothing false is said meanwhile" {
  fault::train 'a worker is paused for 60 s' 10
  fault::find_driver
  fault::inject docker pause "${CLUSTER_NAME}-${OTHER}"
  run timeout 60 tail --pid="$FOLLOWER" --follow /dev/null
  [[ $status == 124 ]] || fail "make wait ended while the worker stood still: $(<"${BATS_TEST_TMPDIR}/told")"
  docker unpause "${CLUSTER_NAME}-${OTHER}"
  fault::told 0 "ok      ${JOB} SUCCEEDED \(the trainer ended\)"
  [[ $(grep -c " is [A-Z]*$" <<<"$output") == 2 ]] || fail 'more than RUNNING and SUCCEEDED was said'
  fault::recovered
}
