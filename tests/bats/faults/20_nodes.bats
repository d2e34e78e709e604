#!/usr/bin/env bats
# A node dies while a job trains on it. One host of several: tests/bats/container/85_hosts.bats.

setup_file() {
  load fault_helper
  fault::use work 18285
  fault::cluster
}

setup() { load fault_helper; }

@test "the driver's worker is killed, and make up at once: LOST, and a job trains again" {
  fault::train 'the worker with the driver is killed, make up at once' 400
  fault::find_driver
  fault::inject docker kill "${CLUSTER_NAME}-${DRIVER}"
  run make --no-print-directory up
  assert_status 0
  fault::reports 7 "error   ${JOB} LOST \(the driver's node ${DRIVER} died: Ray says .*\): read 'make logs JOB=${JOB}'\."
  fault::trains_now
  fault::nothing_left
  status=7 fault::recovered
}
