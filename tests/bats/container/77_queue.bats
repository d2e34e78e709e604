#!/usr/bin/env bats
# The queue on a real cluster: the order is kept, each position is reported, and a job that waits is stopped. The first job trains
# as long as we let it; the third fails because of its data as soon as verl starts: what it would train does not matter.

setup_file() {
  load container_helper
  container::use quick 18265
  container::cluster
  export MAX_RUNNING=1 WORKLOAD=sft
  queue_up one 'trainer.total_training_steps=4000 trainer.total_epochs=200'
  queue_up two data.train_files=/no/such.parquet
  queue_up three data.train_files=/no/such.parquet
}

setup() {
  load container_helper
  source scripts/lib/wait.bash
}

teardown_file() {
  load container_helper
  for job in one two three; do JOB="queue-${job}" scripts/54_stop.sh >/dev/null 2>&1 || true; done
}

queue_up() { SUBMISSION_ID="queue-$1" OVERRIDES=$2 scripts/44_submit_sdk.sh >/dev/null 2>"${BATS_FILE_TMPDIR}/$1"; }

state() { printf '%s/shared/jobs/queue-%s/state/%s\n' "$WORKDIR" "$1" "$2"; }

# is_at JOB POSITION: the job waits in the queue, at that position.
is_at() { [[ -s $(state "$1" queued) && $(jq -r .reason "$(state "$1" queued)") == "$2" ]]; }

@test "the second and the third job wait, and status says behind which job" {
  wait::until 120 - is_at two 'position 1 of 2: behind queue-one (MAX_RUNNING=1)' || fail "$(<"$(state two queued)")"
  wait::until 120 - is_at three 'position 2 of 2: behind queue-two' || fail "$(<"$(state three queued)")"
  run make --no-print-directory status
  assert_status 0
  assert_line 'queue-three +codeA +QUEUED +- +position 2 of 2: behind queue-two'
  assert_line 'queue-two +codeA +QUEUED +- +position 1 of 2: behind queue-one \(MAX_RUNNING=1\)'
  [[ -e $(state one turn) && ! -e $(state two turn) && ! -e $(state three turn) ]]
}

@test "a queued job is stopped, says so, and the job behind it moves up" {
  run make --no-print-directory stop JOB=queue-two
  assert_status 0
  assert_line 'changed queue-two was QUEUED, is STOPPED .*'
  [[ $(jq -r .reason "$(state two ended)") == 'stopped while it waited for a slot' && ! -e $(state two started) ]]
  JOB=queue-two run scripts/52_wait.sh
  assert_status 4
  wait::until 60 - is_at three 'position 1 of 1: behind queue-one (MAX_RUNNING=1)' || fail "$(<"$(state three queued)")"
}

@test "the next gets a slot when the first is over, and leaves the queue empty" {
  JOB=queue-three timeout 300 scripts/52_wait.sh >"${BATS_TEST_TMPDIR}/printed" 2>&1 3>&- &
  follower=$!
  wait::until 60 - grep -q 'queue-three is QUEUED' "${BATS_TEST_TMPDIR}/printed"
  JOB=queue-one scripts/54_stop.sh
  container::ended "$follower" "${BATS_TEST_TMPDIR}/printed"
  assert_status 3
  assert_line ' +queue-three is QUEUED \(position 1 of 1: behind queue-one \(MAX_RUNNING=1\)\)'
  assert_line 'error   queue-three FAILED .*'
  [[ ! $(jq -r .time "$(state three turn)") < $(jq -r .time "$(state one ended)") ]]
  [[ -z $(ls "${WORKDIR}/shared/queue/${CLUSTER_NAME}") ]]
}
