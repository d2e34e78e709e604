#!/usr/bin/env bats
# Processes of a job are killed: what is reported, how soon, and that no process of the job runs on.

setup_file() {
  load fault_helper
  fault::use work 18285
  fault::cluster
}

setup() { load fault_helper; }

@test "the driver, verl's python, is killed: FAILED, by which signal" {
  fault::train 'the driver (verl) is killed -9' 30
  fault::inject fault::kill 'python3 -m verl\.trainer'
  fault::reports 3 "error   ${JOB} FAILED \(the trainer was ended by SIGKILL, sent neither by verl-regress nor by the kernel for lack of memory\): read 'make logs JOB=${JOB}'\."
  fault::nothing_left
  fault::recovered
}

@test "the launcher is killed: LOST, by which signal and where, and nothing trains on" {
  fault::train 'the launcher is killed -9' 30
  fault::inject fault::kill '^python3 .*run\.py launch'
  fault::reports 7 "error   ${JOB} LOST \(the launcher on worker-[01] was ended by SIGKILL before it could record an end\): read 'make logs JOB=${JOB}'\."
  fault::nothing_left
  fault::asking_changes_nothing
  fault::recovered
}

@test "Ray's supervisor of the job is killed: LOST, with another reason than for the launcher, and nothing keeps training" {
  fault::train "Ray's supervisor of the job is killed -9" 30
  fault::inject fault::kill '^ray::JobSupervisor'
  fault::reports 7 "error   ${JOB} LOST \(Ray's supervisor of the job on worker-[01] was killed or crashed, and the launcher with it: Worker unexpectedly exits with a connection error code 2\): read 'make logs JOB=${JOB}'\."
  fault::nothing_left
  fault::recovered
}

@test "a process of the training is killed: FAILED, and its name and node" {
  fault::train 'a training process (WorkerDict) is killed -9' 30
  fault::find_driver
  fault::inject fault::kill '^ray::WorkerDict' "$OTHER"
  fault::reports 3 "error   ${JOB} FAILED \(the trainer ended with exit status 1, after its WorkerDict \(process [0-9]+\) on worker-[01] crashed or was killed, neither by verl-regress nor by the kernel for lack of memory\): read 'make logs JOB=${JOB}'\."
  fault::nothing_left
  fault::recovered
}
