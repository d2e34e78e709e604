#!/usr/bin/env bats
# The disk of the shared root is full while a job saves: every command reports it as such.

setup_file() {
  load fault_helper
  storage::use
  [[ $(id -u) == 0 ]] || skip 'only root may mount a file system'
  fault::down
  storage::unmount
  mkdir -p "${WORKDIR}/shared"
  mount -t tmpfs -o size=800m vrfault "${WORKDIR}/shared"
  [[ ! -d ${WORKDIR%/*}/workdir/shared/common/models ]] ||
    cp -a "${WORKDIR%/*}/workdir/shared/"{datasets,common} "${WORKDIR}/shared"
  fault::cluster
}

teardown_file() {
  load fault_helper
  storage::use
  fault::down
  storage::unmount
}

setup() {
  load fault_helper
  storage::use
  rm -f "${WORKDIR}/shared/"filler*
}

storage::use() {
  fault::use storage 18294
  export WORKDIR="${REPO}/build/faults/storage" MIN_DISK_GIB=1
}

storage::unmount() { ! mountpoint -q "${WORKDIR}/shared" || umount "${WORKDIR}/shared"; }

# storage::fill: leaves one MiB: enough for a line of metrics, not for a checkpoint.
storage::fill() {
  local filler="${WORKDIR}/shared/filler"
  ! cat /dev/zero >"$filler" 2>/dev/null || fail 'the disk is endless'
  truncate --size=-1M "$filler"
}

# storage::fill_rest: after that the last byte too.
storage::fill_rest() { head -c 2000000 /dev/zero >"${WORKDIR}/shared/filler2" 2>/dev/null || true; }

@test "the disk is full while the job saves: FAILED, and status, up, submit say so" {
  fault::train 'the disk of the shared root is full while a job saves' 400 trainer.save_freq=10
  fault::inject storage::fill
  fault::reports 3 "error   ${JOB} FAILED \(the trainer ended with exit status 1, and nothing can be written to ${WORKDIR}/shared/jobs/${JOB} \(No space left on device\): free some space there\): read 'make logs JOB=${JOB}'\."
  [[ $(jq -r .exit_code "${JOB_DIR}/state/ended") == 1 ]]

  storage::fill_rest
  run make --no-print-directory up
  assert_status 2
  assert_line "error   ${WORKDIR}/shared \(WORKDIR, from the command line or environment\) cannot be written to \(No space left on device\) on this machine: fix that, or .*"
  run make --no-print-directory status
  assert_status 0
  assert_line "${JOB} +codeA +FAILED .*"
  SUBMISSION_ID="late-$(date +%s)" run scripts/40_submit_ppo_epoch1.sh
  assert_status 1
  assert_line "error   submit: \[Errno 28\] No space left on device.*: free some space and some inodes there \('make gc' removes old checkpoints\), then run it again\."

  rm "${WORKDIR}/shared/"filler*
  status=3
  fault::recovered
}
