#!/usr/bin/env bats
# The trainer of a job is killed: what is reported, how soon, and that no process of the job runs on. The launcher: 80_secrets.bats.

setup_file() {
  load fault_helper
  fault::use work 18295
  fault::cluster
}

setup() { load fault_helper; }

@test "the driver, verl's python, is killed: FAILED, by which signal" {
  fault::train 'the driver (verl) is killed -9' 400
  fault::inject fault::kill 'python3 -m verl\.trainer'
  fault::reports 3 "error   ${JOB} FAILED \(the trainer was ended by SIGKILL, sent neither by verl-regress nor by the kernel for lack of memory\): read 'make logs JOB=${JOB}'\."
  fault::nothing_left
  fault::recovered
}
