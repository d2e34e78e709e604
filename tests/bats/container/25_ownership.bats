#!/usr/bin/env bats
# Two checkouts with one CLUSTER_NAME, knobs that were given once, commands that run at the same time: clusters and jobs change only
# if you ask for it. One cluster, and one job that trains during all tests.

setup_file() {
  load container_helper
  container::use owner 18277
  container::quietly up make --no-print-directory up prepare snapshot CODE_ID=codeA SHM_SIZE=1500mb
  export OTHER="${BATS_FILE_TMPDIR}/other checkout"
  mkdir "$OTHER"
  source scripts/dev/files.bash
  files::copy_to "$OTHER"
  # Trains longer than the tests below take; it is stopped after them.
  SUBMISSION_ID=owner-1 OVERRIDES='trainer.total_epochs=99 trainer.total_training_steps=1000' scripts/40_submit_ppo_epoch1.sh \
    2>"${BATS_FILE_TMPDIR}/submitted"
}

teardown_file() {
  load container_helper
  container::use owner 18277
  make --no-print-directory down FORCE=1 >/dev/null 2>&1
}

setup() {
  load container_helper
  source scripts/lib/wait.bash
}

# other TARGET...: make in the second checkout, with its own WORKDIR and the same CLUSTER_NAME.
other() { env -u WORKDIR make --no-print-directory -C "$OTHER" "$@"; }

containers() { docker ps --all --no-trunc --filter "label=verl-regress.cluster=${CLUSTER_NAME}" --format '{{.ID}} {{.Names}} {{.State}}' | sort; }

is_running() { [[ -s ${WORKDIR}/shared/jobs/$1/state/started && ! -s ${WORKDIR}/shared/jobs/$1/state/ended ]]; }

THEIRS='The cluster vrtest-owner belongs to another checkout: .*/build/container/workdir of user [a-z0-9]+'

@test "containers, network and Ray name the owner, and so does the job" {
  owner=$(<"${WORKDIR}/id")
  labels='{{index .Labels "verl-regress.owner"}}|{{index .Labels "verl-regress.user"}}|{{index .Labels "verl-regress.workdir"}}'
  for node in head worker-0 worker-1; do
    [[ $(docker inspect --format "{{with .Config}}${labels}{{end}}" "${CLUSTER_NAME}-${node}") == "${owner}|$(id -un)|${WORKDIR}" ]]
  done
  [[ $(docker network inspect --format "$labels" "${CLUSTER_NAME}_ray") == "${owner}|$(id -un)|${WORKDIR}" ]]
  [[ $(container::api '/api/v0/nodes?detail=1' | jq -c "[.data.result.result[].labels.owner] | unique") == "[\"${owner}\"]" ]]
  [[ $(jq -c .owner "${WORKDIR}/shared/jobs/owner-1/config/resolved.json") == "{\"user\":\"$(id -un)\",\"workdir\":\"${WORKDIR}\",\"id\":\"${owner}\"}" ]]
}

@test "a second checkout with the same CLUSTER_NAME: check, up, submit, stop, gc and down are refused with the owner's name, even with FORCE=1" {
  before=$(containers)
  for target in check up prepare 'submit SUBMISSION_ID=theirs' 'stop JOB=owner-1' 'gc KEEP=0' 'down FORCE=1'; do
    # shellcheck disable=SC2086  # a target and its knobs
    run other $target
    [[ $status != 0 ]]
    assert_line "error   ${THEIRS}: set another CLUSTER_NAME \(and DASHBOARD_PORT\), or run 'make up ADOPT=1' if that checkout was moved here\."
    assert_line "error   [0-9a-z_]+: exit 2 \(bad input, nothing was created\) after .*"
  done
  run other up ADOPT=1
  assert_line 'error   Recreating head, worker-0, worker-1 \(ADOPT=1 takes them over\) would end owner-1 \((PENDING|RUNNING)\): wait for them, or end them with FORCE=1\.'
  [[ $(containers) == "$before" && ! -e ${WORKDIR}/shared/jobs/theirs ]]
}

@test "its status and jobs name the cluster's owner, and show its own jobs" {
  for target in status jobs; do
    run other "$target"
    assert_status 0
    assert_line " +${THEIRS}, so its Ray is not asked: these are this checkout's own jobs\."
    assert_line "no job yet: submit one with 'make submit'"
    [[ $output != *owner-1* ]]
  done
}

@test "JOB=latest is the caller's: another user's is named, and stopped only by its id" {
  mkdir -p "${WORKDIR}/shared/jobs/owner-0"/{config,state}
  jq '.owner.user = "alice"' "${WORKDIR}/shared/jobs/owner-1/config/resolved.json" >"${WORKDIR}/shared/jobs/owner-0/config/resolved.json"
  [[ $(JOB=latest METRICS=1 scripts/51_logs.sh 2>&1) != *owner-0* ]]
  wait::until 120 - is_running owner-1
  helper=$(bash -c 'source scripts/lib/regress.bash; cli::begin; trap - EXIT; env::load; helper::dir')
  run docker exec "${CLUSTER_NAME}-head" sh -c "python3 ${helper}/run.py --shared-root /private --owner=bob:$(<"${WORKDIR}/id") stop latest --deadline=9 2>&1 | head -n 1"
  [[ $output =~ ^"error   JOB=latest but no job under /private/jobs is yours and outside a session: the latest of all is owner-0 of user alice, ${WORKDIR}; name it with JOB=owner-0, or submit one." ]] || fail 'not refused'
  rm -r "${WORKDIR}/shared/jobs/owner-0"
  is_running owner-1
}

@test "a plain make up after make up SHM_SIZE and WORKERS: refused with both values while a job runs, so is make verify" {
  before=$(containers)
  for target in up verify; do
    run make --no-print-directory "$target"
    [[ $status != 0 ]]
    assert_line 'error   Recreating head, worker-0, worker-1 \(SHM_SIZE was 1500mb, is 2gb \(from env/defaults\.env\)\) would end owner-1 \(RUNNING\): give SHM_SIZE=1500mb again, wait for them, or end them with FORCE=1\.'
  done
  run make --no-print-directory up SHM_SIZE=1500mb WORKERS=1
  assert_line 'error   Removing worker-1 \(WORKERS was 2, is 1 \(from the command line or environment\)\) would end owner-1 \(RUNNING\): give WORKERS=2 again, wait for them, or end them with FORCE=1\.'
  [[ $(containers) == "$before" ]]
  run make --no-print-directory up SHM_SIZE=1500mb WORKER_CPUS=8
  assert_status 0
  assert_line "warning WORKER_CPUS was 64, is 8 \(from the command line or environment\): Ray runs on worker-0 worker-1 and keeps the old value; 'make down up' applies the new one\."
  [[ $(containers) == "$before" ]]
}

@test "make down while a job runs is refused and names it; the job keeps training, and is stopped by its id" {
  before=$(containers)
  run make --no-print-directory down
  [[ $status != 0 ]]
  assert_line "error   Taking vrtest-owner down would end owner-1 \(RUNNING\): wait for them, stop them \('make stop JOB=…'\), or end them with FORCE=1\."
  [[ $(containers) == "$before" ]]
  wait::until 120 - grep -q '"step": *2[,}]' "${WORKDIR}/shared/jobs/owner-1/logs/metrics.jsonl"
  is_running owner-1
  run make --no-print-directory stop JOB=owner-1
  assert_status 0
  assert_line 'changed owner-1 was RUNNING, is STOPPED .*'
}

@test "Ctrl-C while a job is being submitted: the job keeps running, and the last line names it" {
  # No node can take this one: it waits as long as we let it.
  printf '%s\n' 'workload: ppo' 'resources: {entrypoint_resources: {worker_node: 1000}}' >"${BATS_TEST_TMPDIR}/big.yaml"
  run .venv/bin/python - "${WORKDIR}/shared/jobs/owner-2" "${BATS_TEST_TMPDIR}/big.yaml" <<'PYTHON'
import os, signal, subprocess, sys, time
from pathlib import Path
environ = {**os.environ, "SUBMISSION_ID": "owner-2"}
def undo():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell in the background ignores it
job = subprocess.Popen(["scripts/44_submit_sdk.sh", sys.argv[2]], start_new_session=True, env=environ, preexec_fn=undo)
while job.poll() is None and not Path(sys.argv[1]).exists():
    time.sleep(0.01)
os.killpg(job.pid, signal.SIGINT)
sys.exit(job.wait())
PYTHON
  assert_status 130
  assert_line " +owner-2 is submitted and keeps running: 'make wait JOB=owner-2' follows it, 'make stop JOB=owner-2' ends it"
  wait::until 20 - container::api /api/jobs/owner-2
}

@test "without a job make up recreates what changed, and says why; a pending job counts, FORCE=1 ends it" {
  run make --no-print-directory up
  [[ $status != 0 ]]
  assert_line 'error   Recreating head, worker-0, worker-1 \(.*\) would end owner-2 \(PENDING\): .*'
  run make --no-print-directory up FORCE=1
  assert_status 0
  assert_line 'warning Recreating head, worker-0, worker-1 \(.*\) ends owner-2 \(PENDING\): FORCE=1'
  assert_line 'changed recreated head, worker-0, worker-1: SHM_SIZE was 1500mb, is 2gb \(from env/defaults\.env\)'
  run make --no-print-directory up WORKERS=1
  assert_status 0
  assert_line 'changed removed worker-1: WORKERS was 2, is 1 \(from the command line or environment\)'
}

@test "make down while make up runs: no raw output of the engine, and another make down leaves nothing" {
  make --no-print-directory up WORKERS=1 >"${BATS_TEST_TMPDIR}/up" 2>&1 3>&- &
  up=$!
  wait::until 30 - grep -qs '01_up\|the nodes' "${BATS_TEST_TMPDIR}/up"
  make --no-print-directory down >"${BATS_TEST_TMPDIR}/down" 2>&1
  wait "$up" || true
  output=$(cat "${BATS_TEST_TMPDIR}"/{up,down})
  [[ $output != *'No such container'* && $output != *'exit 137'* && $output != *'unbound'* ]] || fail 'raw words of the engine'
  run make --no-print-directory down
  assert_status 0
  [[ -z $(containers) ]]
}

@test "a checkout that was moved takes its cluster over with ADOPT=1, and nobody else's jobs are in it" {
  make --no-print-directory up WORKERS=1 >/dev/null 2>&1
  run other up WORKERS=1 ADOPT=1
  assert_status 0
  assert_line "warning ${THEIRS}: ADOPT=1 takes it over\."
  assert_line 'changed recreated head, worker-0: ADOPT=1 takes them over'
  [[ $(docker inspect --format '{{index .Config.Labels "verl-regress.workdir"}}' "${CLUSTER_NAME}-head") == "${OTHER}/workdir" ]]
  run make --no-print-directory down
  [[ $status != 0 ]]
  assert_line "error   The cluster vrtest-owner belongs to another checkout: ${OTHER}/workdir of user .*"
  run other down
  assert_status 0
}
