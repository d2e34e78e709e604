#!/usr/bin/env bats
# The cluster: it tells how jobs ended, belongs to its checkout, grows and shrinks, is removed without touching what is not ours, and
# its jobs can be read then. The last file that uses this cluster.

setup_file() {
  load container_helper
  container::use quick 18265
  container::cluster
}

setup() { load container_helper; }

@test "make logs JOB=latest prints the driver's log, and status the job's node" {
  job=$(WAIT=1 OVERRIDES=trainer.total_training_steps=1 scripts/42_submit_sft_minimal.sh 2>"${BATS_TEST_TMPDIR}/sft" | grep -xE 'sft-codeA-[0-9TZ]+-[0-9a-f]{4}') ||
    fail "$(<"${BATS_TEST_TMPDIR}/sft")"
  run make --no-print-directory logs
  assert_status 0
  assert_line 'MVP_PRECHECK_MARKER: codeA'
  run make --no-print-directory status
  assert_line "profile cpu \(rehearsal: no GPU\), cluster vrtest-quick"
  assert_line 'head +[0-9.]+ +ALIVE +0 +0 +0'
  assert_line "${job} +codeA +SUCCEEDED +worker-[01] \([0-9.]+\)"
}

@test "a job that verl refuses ends FAILED, with exit 3 and verl's words in the log" {
  OVERRIDES=actor_rollout_ref.actor.ppo_mini_batch_size=999 WAIT=1 run scripts/40_submit_ppo_epoch1.sh
  assert_status 3
  why='ValueError: train_batch_size \(16\) must be >= actor\.ppo_mini_batch_size \(999\) \(verl/workers/config/actor\.py:[0-9]+, before the first step\)'
  assert_line "error   ppo-codeA-.* FAILED \(the trainer ended with exit status 1: ${why}\): read .*"
  assert_line '        hint: batch sizes must fit each other: .*'
  assert_line '        \| ValueError: train_batch_size \(16\) must be >= actor\.ppo_mini_batch_size \(999\)'
  assert_line 'error   40_submit_ppo_epoch1: exit 3 \(job failed\) after [0-9.]+ s'
  job=$(grep -oxE 'ppo-codeA-[0-9TZ]+-[0-9a-f]{4}' <<<"$output")
  grep -q 'ppo_mini_batch_size' "${WORKDIR}/shared/jobs/${job}/logs/driver.log"
  run make --no-print-directory jobs
  assert_line "${job} +ppo +codeA +FAILED +1 +0 +20.*Z  ${why}"
  run make --no-print-directory status
  assert_line "${job} +codeA +FAILED +.*  ${why}"
  for script in 50_status 58_jobs; do
    cause=$(JSON=1 "scripts/${script}.sh" 2>/dev/null | jq -c --arg job "$job" '.jobs[] | select(.submission_id == $job).cause | [.type, .where, .step]')
    [[ $cause == '["ValueError","verl/workers/config/actor.py:'+([0-9])'",null]' ]] || fail "${script} says ${cause}"
  done
}

@test "a job that fits on no node ends with exit 5, and says what it asked for" {
  printf '%s\n' 'workload: ppo' 'resources: {entrypoint_resources: {worker_node: 1000}}' >"${BATS_TEST_TMPDIR}/big.yaml"
  WAIT=1 PENDING_TIMEOUT=3 run scripts/44_submit_sdk.sh "${BATS_TEST_TMPDIR}/big.yaml"
  assert_status 5
  [[ $output == *"got no resources in 3 s (PENDING_TIMEOUT): it asked for "*"'worker_node': 1000"* ]] || fail 'does not say why'
}

# other TARGET...: make in a second checkout, with its own WORKDIR and the same CLUSTER_NAME.
other() { env -u WORKDIR make --no-print-directory -C "${BATS_FILE_TMPDIR}/other checkout" "$@"; }

containers() { docker ps --all --no-trunc --filter "label=verl-regress.cluster=${CLUSTER_NAME}" --format '{{.ID}} {{.Names}} {{.State}}' | sort; }

THEIRS='The cluster vrtest-quick belongs to another checkout: .*/build/container/workdir of user [a-z0-9]+'

@test "a second checkout with the same CLUSTER_NAME is refused with the owner's name" {
  mkdir "${BATS_FILE_TMPDIR}/other checkout"
  source scripts/dev/files.bash
  files::copy_to "${BATS_FILE_TMPDIR}/other checkout"
  before=$(containers)
  for target in up 'submit SUBMISSION_ID=theirs' 'down FORCE=1'; do
    # shellcheck disable=SC2086  # a target and its knobs
    run other $target
    [[ $status != 0 ]]
    assert_line "error   ${THEIRS}: set another CLUSTER_NAME \(and DASHBOARD_PORT\), or run 'make up ADOPT=1' if that checkout was moved here\."
  done
  [[ $(containers) == "$before" && ! -e ${WORKDIR}/shared/jobs/theirs ]]
}

@test "what would end a job is refused and names it; FORCE=1 ends it" {
  # The job that no node can take, of the test before, still waits.
  job=$(container::jobs | grep -x 'ppo-codeA-.*' | tail -n 1)
  before=$(containers)
  run make --no-print-directory up SHM_SIZE=1500mb
  assert_line "error   Recreating head, worker-0, worker-1 \(SHM_SIZE was 2gb, is 1500mb \(from the command line or environment\)\) would end ${job} \(PENDING\): .*"
  run make --no-print-directory down
  assert_line "error   Taking vrtest-quick down would end ${job} \(PENDING\): wait for them, stop them \('make stop JOB=…'\), or end them with FORCE=1\."
  [[ $(containers) == "$before" ]]
  run make --no-print-directory up SHM_SIZE=1500mb WORKERS=3 FORCE=1
  assert_status 0
  assert_line 'changed recreated head, worker-0, worker-1: .*SHM_SIZE was 2gb, is 1500mb \(from the command line or environment\).*'
  assert_line 'ok      worker-2 is ALIVE at .*: CPU 64, GPU 4, worker_node 100'
  [[ $(JSON=1 scripts/50_status.sh | jq -r '[.nodes[] | select(.state == "ALIVE") | .name] | join(" ")') == 'head worker-0 worker-1 worker-2' ]]
  run make --no-print-directory up SHM_SIZE=1500mb
  assert_status 0
  assert_line 'changed removed worker-2: WORKERS was 3, is 2 \(from env/defaults.env\)'
}

@test "make down removes exactly what has our label, and leaves the shared directory" {
  image=$(scripts/10_build_image.sh --name 2>/dev/null)
  docker run --detach --rm --network none --name vrtest-quick-sidecar "$image" tail -f /dev/null >/dev/null
  before=$(container::listing)
  run make --no-print-directory down
  assert_status 0
  [[ -z $(docker ps --all --quiet --filter label=verl-regress.cluster=vrtest-quick) ]]
  [[ -z $(docker network ls --quiet --filter label=verl-regress.cluster=vrtest-quick) ]]
  [[ -n $(docker ps --quiet --filter name=vrtest-quick-sidecar) ]]
  [[ $before == "$(container::listing)" ]]
  run make --no-print-directory down
  assert_status 0
  assert_line 'skip    nothing has the label verl-regress.cluster=vrtest-quick'
  docker rm --force vrtest-quick-sidecar >/dev/null
}

@test "with the cluster down, jobs and logs are read from the files" {
  # The job that the cluster was recreated under.
  job=$(container::jobs | grep -x 'ppo-codeA-.*' | tail -n 1)
  trained=$(container::jobs | grep -x 'sft-codeA-.*' | tail -n 1)
  run make --no-print-directory jobs
  assert_status 0
  assert_line "${job} +ppo +codeA +UNKNOWN +1 +0 +20.*Z  the job recorded no end, and there is no word from Ray"
  assert_line "${trained} +sft +codeA +SUCCEEDED +1 +1 +20.*Z"
  [[ $(JSON=1 LIMIT=1 scripts/58_jobs.sh 2>/dev/null | jq -c '[.jobs[].submission_id, .ray_answers]') == "[\"${job}\",false]" ]]
  JOB=$trained run scripts/51_logs.sh
  assert_status 0
  assert_line 'MVP_PRECHECK_MARKER: codeA'
  JOB=$job run scripts/54_stop.sh
  assert_status 8
}
