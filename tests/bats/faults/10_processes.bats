#!/usr/bin/env bats
# Processes of a job that are killed: what is told, how soon, and that nothing of the job runs on.

setup_file() {
  load fault_helper
  fault::use work 18285
  fault::cluster
}

setup() { load fault_helper; }

@test "the driver, verl's python, is killed: FAILED, by which signal" {
  fault::train 'the driver (verl) is killed -9' 30
  fault::inject fault::kill 'python3 -m verl\.trainer'
  fault::told 3 "error   ${JOB} FAILED \(the trainer was ended by SIGKILL\): read 'make logs JOB=${JOB}'\."
  fault::nothing_left
  fault::recovered
}
