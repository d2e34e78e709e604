#!/usr/bin/env bats
# make gc on a real cluster: removes old jobs' checkpoints and an unused snapshot, and does not touch a job that may still run.

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

@test "old checkpoints and an unused snapshot are removed, dry run and real run print the same, and a job that waits keeps its own" {
  # Two jobs that are over: the first process that verl starts fails, and we add what a trainer would have left.
  for job in gc-1 gc-2; do
    rm -rf "${shared}/jobs/${job}"
    OVERRIDES=data.train_files=/no/such.parquet SUBMISSION_ID=$job WAIT=1 run scripts/40_submit_ppo_epoch1.sh
    assert_status 3
  done
  printf '%s\n' 'workload: ppo' 'resources: {entrypoint_resources: {worker_node: 1000}}' >"${BATS_TEST_TMPDIR}/big.yaml"
  rm -rf "${shared}/jobs/gc-waits"
  SUBMISSION_ID=gc-waits scripts/44_submit_sdk.sh "${BATS_TEST_TMPDIR}/big.yaml"
  for job in gc-1 gc-2 gc-waits; do
    mkdir "${shared}/jobs/${job}/checkpoints/global_step_10"
    head -c 300000 /dev/urandom >"${shared}/jobs/${job}/checkpoints/global_step_10/model.pt"
  done
  # gc-2 ended a minute ago.
  for job in gc-1 gc-waits; do find "${shared}/jobs/${job}" -exec touch -d '2 days ago' {} +; done
  # A snapshot that no job or knob refers to, made two days ago.
  cp -a "${WORKDIR}/cache/verl/pypi-0.9.1" "${BATS_TEST_TMPDIR}/tree"
  printf 'CHANGED = 1\n' >>"${BATS_TEST_TMPDIR}/tree/verl/__init__.py"
  CODE_ID=gc-unused VERL_SOURCE="path:${BATS_TEST_TMPDIR}/tree" scripts/31_snapshot_verl_code.sh
  touch -d '2 days ago' "${shared}/common/code/verl/gc-unused/snapshot.json"
  listing "${shared}/jobs/gc-1" | grep -v ' ./checkpoints/' >"${BATS_TEST_TMPDIR}/gc-1"

  DRY_RUN=1 KEEP=0 run scripts/70_gc.sh
  assert_status 0
  sed -n 's/^ *would remove //p' <<<"$output" | sort >"${BATS_TEST_TMPDIR}/dry"
  freed=$(sed -n 's/^ *would free \(.*\) in all (DRY_RUN=1)$/\1/p' <<<"$output")
  [[ -f ${shared}/jobs/gc-1/checkpoints/global_step_10/model.pt && -d ${shared}/common/code/verl/gc-unused ]]
  grep -q '^checkpoints of gc-1 (global_step_10): ' "${BATS_TEST_TMPDIR}/dry"
  grep -q '^snapshot gc-unused: ' "${BATS_TEST_TMPDIR}/dry"
  run ! grep -qE 'gc-2|gc-waits|snapshot codeA' "${BATS_TEST_TMPDIR}/dry"

  KEEP=0 run scripts/70_gc.sh
  assert_status 0
  diff <(sed -n 's/^changed removed //p' <<<"$output" | sort) "${BATS_TEST_TMPDIR}/dry"
  assert_line "ok      freed ${freed} in all"
  assert_line '          keep 1 \(may still run\): gc-waits'
  for job in gc-2 gc-waits; do [[ -f ${shared}/jobs/${job}/checkpoints/global_step_10/model.pt ]] || fail "$job"; done
  [[ -z $(ls -A "${shared}/jobs/gc-1/checkpoints") && ! -e ${shared}/common/code/verl/gc-unused ]]
  diff <(listing "${shared}/jobs/gc-1" | grep -v ' ./state/collected$') "${BATS_TEST_TMPDIR}/gc-1"
  JOB=gc-1 run scripts/52_wait.sh
  assert_status 3
  assert_line " +0 of \\? training steps, no checkpoint any more \\('make gc' removed them at 20.*\\)"

  KEEP=0 run scripts/70_gc.sh
  assert_status 0
  assert_line 'skip    gc \(nothing to remove\)'
  JOB=gc-waits scripts/54_stop.sh
  run scripts/31_snapshot_verl_code.sh # reads all its files
  assert_line 'skip    snapshot codeA .*'
}
