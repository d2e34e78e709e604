#!/usr/bin/env bats
# Several hosts (HOSTS_FILE): one loses its power or its engine while a job trains there, and the way to them by ssh is slow or
# breaks. The hosts are network namespaces with engines of their own (hosts_lab.bash).

setup_file() {
  load fault_helper
  load ../container/hosts_lab
  [[ $(id -u) == 0 ]] || skip 'network namespaces need root'
  fault::use hosts 18299
  hosts_lab::remove # of an earlier run
  hosts_lab::make
  container::cluster
  [[ -n $(fault::finished) ]] || WAIT=1 OVERRIDES="trainer.total_training_steps=1 ${ONE_WORKER}" container::quietly first scripts/42_submit_sft_minimal.sh
}

teardown_file() {
  load fault_helper
  load ../container/hosts_lab
  make --no-print-directory down FORCE=1 >/dev/null 2>&1
  hosts_lab::disconnect
  hosts_lab::remove
}

setup() {
  load fault_helper
  load ../container/hosts_lab
}

ONE_WORKER='trainer.nnodes=1'

@test "the host of the driver loses its power: LOST, and which node; after its boot make up brings it back, and a job trains" {
  fault::train 'on two hosts, that of the driver loses its power' 60 "$ONE_WORKER"
  fault::inject hosts_lab::halt b
  fault::reports 7 "error   ${JOB} LOST \(the driver's node worker-0 died: Ray says health check failed due to missing too many heartbeats\): read 'make logs JOB=${JOB}'\."
  hosts_lab::boot "$LAB" b
  fault::recovered
  WAIT=1 OVERRIDES="trainer.total_training_steps=1 ${ONE_WORKER}" run scripts/42_submit_sft_minimal.sh
  assert_status 0
}

@test "the engine of the driver's host is killed: the job trains to its end, make up names the engine, and goes on when it is back" {
  fault::train 'on two hosts, the engine of the driver is killed' 12 "$ONE_WORKER"
  fault::inject hosts_lab::kill_engine b
  run make --no-print-directory up
  assert_status 2 # make's own
  assert_line "error   The container engine of worker-0 \(ssh://root@10\.213\.77\.12, line 2 of .*\) does not answer \(.*\): .*"
  fault::reports 0 "ok      ${JOB} SUCCEEDED \(the trainer ended\)"
  hosts_lab::boot "$LAB" b
  fault::recovered
}

@test "ssh takes 300 ms each way: make up, status and logs say what they always say" {
  fault::begin 'on two hosts, ssh takes 300 ms each way'
  hosts_lab::disconnect
  printf 'ProxyCommand python3 %s %%h %%p\n' "${REPO}/tests/bats/faults/slow_ssh.py" | cat - "$SSH_CONFIG" >"${BATS_TEST_TMPDIR}/slow"
  SSH_CONFIG="${BATS_TEST_TMPDIR}/slow" run make --no-print-directory up status
  assert_status 0
  assert_line "skip    Ray's workers \(nothing to change\)"
  fault::answered 0 "$(grep -m 1 "^skip    Ray's workers" <<<"$output")"
  hosts_lab::disconnect
  fault::recovered
}

@test "the ssh connections break while a job is followed: it is followed again, to its end" {
  fault::train 'on two hosts, the ssh connections break' 12 "$ONE_WORKER"
  fault::inject hosts_lab::disconnect
  fault::reports 0 "ok      ${JOB} SUCCEEDED \(the trainer ended\)"
  assert_line " +lost the connection to the head; following '${JOB}' again when the head is back"
  fault::recovered
}
