#!/usr/bin/env bats
# A node dies while a job trains on it. The jobs of the files after this one train on it again.

setup_file() {
  load fault_helper
  fault::use work 18295
  fault::cluster
}

setup() { load fault_helper; }

@test "the worker with the driver is killed, and make up is run at once: LOST" {
  fault::train 'the worker with the driver is killed, make up at once' 400
  fault::find_driver
  fault::inject docker kill "${CLUSTER_NAME}-${DRIVER}"
  run make --no-print-directory up
  assert_status 0
  fault::reports 7 "error   ${JOB} LOST \(the driver's node ${DRIVER} died: Ray says .*\): read 'make logs JOB=${JOB}'\."
  fault::nothing_left
  status=7 fault::recovered
}
