#!/usr/bin/env bats
# The disk of the shared root is full while a job saves, or while a session writes its reports: every command reports it as such. And what
# make gc must leave there.

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
  container::cluster
  # One job that is finished, a quick one.
  OVERRIDES=data.train_files=/no/such.parquet scripts/40_submit_ppo_epoch1.sh
  scripts/52_wait.sh || [[ $? == 3 ]]
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
  export WORKDIR="${REPO}/build/container/storage" MIN_DISK_GIB=1
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

storage::fill_all() { storage::fill && storage::fill_rest; }

@test "the disk is full while the job saves: FAILED for that reason, and status, up and submit say so too" {
  fault::train 'the disk of the shared root is full while a job saves' 20 trainer.save_freq=2
  fault::inject storage::fill
  fault::reports 3 "error   ${JOB} FAILED \(the trainer ended with exit status 1, and nothing can be written to ${WORKDIR}/shared/jobs/${JOB} \(No space left on device\): free some space there\): read 'make logs JOB=${JOB}'\."
  [[ $(jq -r .exit_code "${JOB_DIR}/state/ended") == 1 ]]

  storage::fill_rest
  run make --no-print-directory up
  assert_status 2
  assert_line "error   ${WORKDIR}/shared \(WORKDIR, from the command line or environment\) cannot be written to on this machine \(No space left on device\): free some space and some inodes there\."
  run make --no-print-directory status
  assert_status 0
  assert_line "${JOB} +codeA +FAILED .*"
  SUBMISSION_ID="late-$(date +%s)" run scripts/40_submit_ppo_epoch1.sh
  assert_status 1
  assert_line "error   submit: \[Errno 28\] No space left on device.*: free some space and some inodes there \('make gc' removes old checkpoints\), then run it again\."

  rm "${WORKDIR}/shared/"filler*
  status=3
  fault::recovered
  OVERRIDES=data.train_files=/no/such.parquet run scripts/40_submit_ppo_epoch1.sh
  assert_status 0
  JOB=$(grep -xE 'ppo-codeA-[0-9TZ]+-[0-9a-f]{4}' <<<"$output") run scripts/52_wait.sh
  assert_status 3
  assert_line 'error   .* FAILED \(the trainer ended with exit status 1: FileNotFoundError: .*, before the first step\)\): read .*'
}

@test "the disk is full while a session writes its reports: the answer is printed, and SESSION=latest writes them" {
  local session running said="${BATS_TEST_TMPDIR}/said"
  fault::begin 'the disk of the shared root is full while a session writes its reports'
  printf 'cases:\n  loss: {workload: sft, steps: 4}\n' >"${BATS_TEST_TMPDIR}/small.yaml"
  SUITE="${BATS_TEST_TMPDIR}/small.yaml" CODE_A=codeA CODE_B=codeA scripts/60_verify.sh >"$said" 2>&1 3>&- &
  running=$!
  is_over() { ! kill -0 "$running" 2>/dev/null; }
  is_recorded() { compgen -G "${WORKDIR}/shared/verify/*/evidence/job-loss_a.json" >/dev/null; }
  wait::until 300 is_over is_recorded || fail "$(<"$said")"
  fault::inject storage::fill_all
  container::ended "$running" "$said"
  session=$(find "${WORKDIR}/shared/verify" -mindepth 1 -maxdepth 1)
  fault::answered "$status" "$(grep -m 1 'The reports of the session' <<<"$output")"
  assert_status 1
  assert_line 'verdict +(identical|same) \(exit status 0\)'
  assert_line "error   The reports of the session ${session##*/} are not written \(\[Errno 28\] No space left on device[^)]*\): fix that, then 'make verify SESSION=${session##*/}' writes them\."
  assert_line ' +A and B are the same code, codeA: this session measures how much A varies between runs'
  [[ ! -e ${session}/report.json ]]

  rm "${WORKDIR}/shared/"filler*
  status=1 fault::recovered
  SESSION=latest run scripts/60_verify.sh
  assert_status 0
  assert_line ' +this session makes no further run \(2 done already\)'
  assert_line '12 of 12 checks passed'
  assert_line 'verdict +(identical|same) \(exit status 0\)'
  [[ $(jq -c '[.status, .passed]' "${session}/report.json") == '[0,true]' && -s ${session}/report.html ]]
}

# storage::launched JOB FROM CLUSTER: a job with FROM's checkpoints, two hours old, that waits for a slot of that cluster: its launcher
# runs on worker-1, and no Ray knows it.
storage::launched() {
  local dir="${WORKDIR}/shared/jobs/$1" from="${WORKDIR}/shared/jobs/$2/config/resolved.json" entrypoint
  cp -a "${WORKDIR}/shared/jobs/$2" "$dir"
  find "${dir}/state" -mindepth 1 ! -name submitted -delete
  jq --arg id "$1" --arg dir "${SHARED_ROOT}/jobs/$1" --arg cluster "$3" \
    '. + {submission_id: $id, job_dir: $dir, cluster: $cluster, max_running: 0}' "$from" >"${dir}/config/resolved.json"
  read -ra entrypoint < <(jq -r .entrypoint "$from")
  storage::age "$dir"
  docker exec --detach --env "VERL_REGRESS_JOB_DIR=${SHARED_ROOT}/jobs/$1" "${CLUSTER_NAME}-worker-1" "${entrypoint[@]//"$2"/"$1"}"
  wait::until 60 - test -s "${dir}/state/queued" || fail "$1 has no launcher: $(tail -n 20 "${dir}/logs/driver.log")"
  storage::age "$dir"
}

# storage::age PATH...: makes it look as if nothing was written there for two hours. The same time for all: the queue's names have it.
storage::age() { find "$@" -exec touch --no-dereference --date="$LONG_AGO" {} +; }

# storage::checkpoints JOB: every file of its checkpoints, with its content.
storage::checkpoints() { (cd "${WORKDIR}/shared/jobs/$1/checkpoints" && find . -type f -print0 | sort -z | xargs -0 sha256sum); }

@test "gc collects nothing of a launcher that holds its lock, in another cluster or unknown to Ray, and a PPO checkpoint without its critic counts as none" {
  local whole="gc-whole-${EPOCHSECONDS}" half="gc-half-${EPOCHSECONDS}" theirs="gc-theirs-${EPOCHSECONDS}" unknown="gc-unknown-${EPOCHSECONDS}" job
  LONG_AGO=$(date --date='2 hours ago' --iso-8601=seconds)
  for job in "$whole" "$half"; do
    OVERRIDES="${FAULT_EPOCHS} trainer.total_training_steps=2 trainer.save_freq=1" SUBMISSION_ID="$job" WAIT=1 run scripts/40_submit_ppo_epoch1.sh
    assert_status 0
  done
  fault::begin 'gc, while launchers of another cluster and of a job that Ray does not know hold their locks'
  # Their plans name the job whose checkpoints they have, so those stay.
  storage::launched "$theirs" "$half" vrfault-elsewhere
  storage::launched "$unknown" "$half" "$CLUSTER_NAME"
  for job in "$theirs" "$unknown"; do storage::checkpoints "$job" >"${BATS_TEST_TMPDIR}/${job}"; done

  # The newer job now has no checkpoint from which it can continue, the older one has its first.
  rm -r "${WORKDIR}/shared/jobs/${whole}/checkpoints/global_step_2/critic" "${WORKDIR}/shared/jobs/${half}/checkpoints"/global_step_*/critic
  for job in "$whole" "$half"; do storage::age "${WORKDIR}/shared/jobs/${job}"/{checkpoints,state/ended}; done
  JOB=$half DRY_RUN=1 OVERRIDES=trainer.total_training_steps=3 run scripts/56_resume.sh
  assert_status 2
  assert_line "error   JOB=${half} has no complete checkpoint under ${WORKDIR}/shared/jobs/${half}: start it again with 'make retry JOB=${half}'\."
  JOB=$whole DRY_RUN=1 OVERRIDES=trainer.total_training_steps=3 run scripts/56_resume.sh
  assert_status 0
  [[ $output == *"trainer.resume_from_path=${SHARED_ROOT}/jobs/${whole}/checkpoints/global_step_1"* ]] || fail 'it continues from another checkpoint'

  KEEP=1 run scripts/70_gc.sh
  assert_status 0
  [[ -d ${WORKDIR}/shared/jobs/${whole}/checkpoints/global_step_1 && -d ${WORKDIR}/shared/jobs/${half}/checkpoints/global_step_1 ]] || fail 'they are gone'
  KEEP=0 run scripts/70_gc.sh
  fault::answered "$status" "$(grep -m 1 '^ok      freed ' <<<"$output")"
  assert_status 0
  assert_line "changed removed checkpoints of ${whole} \\(.*\\): .*"
  for job in "$theirs" "$unknown"; do
    diff <(storage::checkpoints "$job") "${BATS_TEST_TMPDIR}/${job}" || fail "$job lost checkpoints"
    JOB=$job fault::kill "launch ${SHARED_ROOT}/jobs/${job}" worker-1
  done
  # It was the lock that kept the one; the other's Ray, which is not asked, may know more.
  KEEP=0 run scripts/70_gc.sh
  assert_status 0
  assert_line "changed removed checkpoints of ${unknown} \\(.*\\): .*"
  [[ -z $(ls -A "${WORKDIR}/shared/jobs/${unknown}/checkpoints") ]]
  diff <(storage::checkpoints "$theirs") "${BATS_TEST_TMPDIR}/${theirs}" || fail "$theirs lost checkpoints"
  fault::record "name=${FAULT}" "status=${status}" "sentence=${LINE}" "seconds=${SECONDS_TO_TELL}"
}
