#!/usr/bin/env bats
# make gc on a real cluster: removes old jobs' checkpoints and an unused snapshot, and does not touch a running job.

setup_file() {
  load container_helper
  container::use quick 18265
  container::cluster
}

setup() {
  load container_helper
  shared=${WORKDIR}/shared
}

# listing DIR: every file there with its content, except the record of who observed the job.
listing() { (cd "$1" && find . -type f ! -path './state/observed' -print0 | sort -z | xargs -0 sha256sum); }

# age JOB: makes the job look as if it had ended two hours ago and written nothing since.
age() { find "${shared}/jobs/$1/checkpoints" "${shared}/jobs/$1/state/ended" -exec touch -d '2 hours ago' {} +; }

@test "old checkpoints and an unused snapshot are removed, dry run and real run print the same, and a running job succeeds" {
  # Three jobs that are over: the first process that verl starts fails, and we add what a trainer would have left.
  for job in gc-1 gc-2 gc-3; do
    rm -rf "${shared}/jobs/${job}"
    OVERRIDES=data.train_files=/no/such.parquet SUBMISSION_ID=$job WAIT=1 run scripts/40_submit_ppo_epoch1.sh
    assert_status 3
    mkdir "${shared}/jobs/${job}/checkpoints/global_step_10"
    head -c 300000 /dev/urandom >"${shared}/jobs/${job}/checkpoints/global_step_10/model.pt"
  done
  age gc-1 && age gc-2 # gc-3 ended a minute ago
  # A snapshot that no job or knob refers to, made yesterday.
  cp -a "${WORKDIR}/cache/verl/pypi-0.9.1" "${BATS_TEST_TMPDIR}/tree"
  printf 'CHANGED = 1\n' >>"${BATS_TEST_TMPDIR}/tree/verl/__init__.py"
  CODE_ID=gc-unused VERL_SOURCE="path:${BATS_TEST_TMPDIR}/tree" scripts/31_snapshot_verl_code.sh
  touch -d yesterday "${shared}/common/code/verl/gc-unused/snapshot.json"

  OVERRIDES=trainer.total_training_steps=2 SUBMISSION_ID=gc-runs scripts/40_submit_ppo_epoch1.sh
  # The newest of all, without a checkpoint: KEEP does not count it.
  OVERRIDES=data.train_files=/no/such.parquet SUBMISSION_ID=gc-4 WAIT=1 run scripts/40_submit_ppo_epoch1.sh
  assert_status 3
  for job in gc-1 gc-2 gc-3; do listing "${shared}/jobs/${job}" | grep -v ' ./checkpoints/' >"${BATS_TEST_TMPDIR}/${job}"; done

  DRY_RUN=1 KEEP=1 run scripts/70_gc.sh
  assert_status 0
  sed -n 's/^ *would remove //p' <<<"$output" | sort >"${BATS_TEST_TMPDIR}/dry"
  freed=$(sed -n 's/^ *would free \(.*\) in all (DRY_RUN=1)$/\1/p' <<<"$output")
  [[ -f ${shared}/jobs/gc-1/checkpoints/global_step_10/model.pt && -d ${shared}/common/code/verl/gc-unused ]]
  grep -q '^checkpoints of gc-1 (global_step_10): ' "${BATS_TEST_TMPDIR}/dry"
  grep -q '^checkpoints of gc-2 (global_step_10): ' "${BATS_TEST_TMPDIR}/dry"
  grep -q '^snapshot gc-unused: ' "${BATS_TEST_TMPDIR}/dry"
  run ! grep -qE 'gc-runs|gc-3|gc-4|snapshot codeA' "${BATS_TEST_TMPDIR}/dry"

  KEEP=1 run scripts/70_gc.sh
  assert_status 0
  diff <(sed -n 's/^ *will remove //p' <<<"$output" | sort) "${BATS_TEST_TMPDIR}/dry"
  diff <(sed -n 's/^changed removed //p' <<<"$output" | sort) "${BATS_TEST_TMPDIR}/dry"
  assert_line " *will free ${freed} in all"
  assert_line "ok      freed ${freed} in all"
  [[ -f ${shared}/jobs/gc-3/checkpoints/global_step_10/model.pt ]] # younger than an hour
  for job in gc-1 gc-2; do
    [[ -z $(ls -A "${shared}/jobs/${job}/checkpoints") ]] || fail "$job"
    diff <(listing "${shared}/jobs/${job}" | grep -v ' ./state/collected$') "${BATS_TEST_TMPDIR}/${job}"
  done
  [[ ! -e ${shared}/common/code/verl/gc-unused ]]

  JOB=gc-runs run scripts/52_wait.sh
  assert_status 0
  [[ -n $(ls "${shared}/jobs/gc-runs/checkpoints") ]]
  JOB=gc-1 run scripts/52_wait.sh
  assert_status 3
  assert_line " +0 of \\? training steps, no checkpoint any more \\('make gc' removed them at 20.*\\)"
}

@test "codeA is whole after its neighbour went, and a second run has nothing to do" {
  DRY_RUN='' KEEP=1 run scripts/70_gc.sh
  DRY_RUN='' KEEP=1 run scripts/70_gc.sh
  assert_status 0
  assert_line 'skip    gc \(nothing to remove\)'
  run scripts/31_snapshot_verl_code.sh # reads all its files
  assert_line 'skip    snapshot codeA .*'
}

@test "KEEP that is not a number is refused" {
  KEEP=all run scripts/70_gc.sh
  assert_status 2
  assert_line "error   KEEP='all' \(from the command line or environment\) is not usable: use a whole number from 0 to 999999\."
}
