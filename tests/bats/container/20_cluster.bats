#!/usr/bin/env bats
# The cluster: it converges, grows and shrinks, runs jobs side by side, and is removed without touching what is not ours.

setup_file() {
  load container_helper
  container::use quick 18265
  container::cluster
}

setup() { load container_helper; }

@test "a second make up changes nothing and says so" {
  before=$(docker ps --no-trunc --format '{{.ID}} {{.Names}}' | sort)
  run make --no-print-directory up
  assert_status 0
  assert_line 'skip    the nodes \(nothing to change\)'
  assert_line "skip    Ray's workers \(nothing to change\)"
  [[ $(grep -c '^changed' <<<"$output") == 0 ]]
  [[ $before == "$(docker ps --no-trunc --format '{{.ID}} {{.Names}}' | sort)" ]]
}

@test "make up WORKERS=3 gives three workers, and WORKERS=2 two again" {
  run make --no-print-directory up WORKERS=3
  assert_status 0
  assert_line 'ok      worker-2 is ALIVE at .*: CPU 64, GPU 4, worker_node 100'
  [[ $(JSON=1 scripts/50_status.sh | jq -r '[.nodes[] | select(.state == "ALIVE") | .name] | join(" ")') == 'head worker-0 worker-1 worker-2' ]]
  run make --no-print-directory up
  assert_status 0
  assert_line 'changed removed worker-2: WORKERS was 3, is 2 \(from env/defaults.env\)'
}

@test "a worker whose container was killed is back after make up" {
  docker kill vrtest-quick-worker-1 >/dev/null
  run make --no-print-directory up
  assert_status 0
  assert_line 'ok      worker-1 is ALIVE at .*'
}

@test "a head whose container was restarted has all its workers again after make up" {
  docker restart --time 0 vrtest-quick-head >/dev/null
  run make --no-print-directory up
  assert_status 0
  assert_line 'ok      head is ALIVE at .*: CPU 0, GPU 0'
  assert_line 'ok      worker-0 is ALIVE at .*'
  assert_line 'ok      worker-1 is ALIVE at .*'
}

@test "make submit twice at the same moment gives two ids and two directories" {
  export WORKLOAD=sft # the fastest to train
  make --no-print-directory submit OVERRIDES=trainer.total_training_steps=1 >"${BATS_TEST_TMPDIR}/a" 2>&1 &
  make --no-print-directory submit OVERRIDES=trainer.total_training_steps=1 >"${BATS_TEST_TMPDIR}/b" 2>&1
  wait "$!"
  a=$(grep -xE 'sft-codeA-[0-9TZ]+-[0-9a-f]{4}' "${BATS_TEST_TMPDIR}/a")
  b=$(grep -xE 'sft-codeA-[0-9TZ]+-[0-9a-f]{4}' "${BATS_TEST_TMPDIR}/b")
  [[ $a != "$b" && -d ${WORKDIR}/shared/jobs/$a/config && -d ${WORKDIR}/shared/jobs/$b/config ]]
  for job in "$a" "$b"; do
    run make --no-print-directory wait JOB="$job"
    assert_status 0
    assert_line "ok      ${job} SUCCEEDED \(the trainer ended\)"
  done
}

@test "make logs JOB=latest prints the driver's log, and status the job's node" {
  job=$(container::jobs | tail -n 1)
  run make --no-print-directory logs JOB="$job"
  assert_status 0
  assert_line 'MVP_PRECHECK_MARKER: codeA'
  run make --no-print-directory status
  assert_line "profile cpu \(rehearsal: no GPU\), cluster vrtest-quick"
  assert_line 'head +[0-9.]+ +ALIVE +0 +0 +0'
  assert_line "${job} +codeA +SUCCEEDED +worker-[01] \([0-9.]+\)"
}

@test "a job that verl refuses ends FAILED, with exit status 3 and verl's words in the log" {
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

@test "a job that fits on no node ends with exit status 5 and says what it asked for and what the nodes have" {
  printf '%s\n' 'workload: ppo' 'resources: {entrypoint_resources: {worker_node: 1000}}' >"${BATS_TEST_TMPDIR}/big.yaml"
  WAIT=1 PENDING_TIMEOUT=3 run scripts/44_submit_sdk.sh "${BATS_TEST_TMPDIR}/big.yaml"
  assert_status 5
  [[ $output == *"got no resources in 3 s (PENDING_TIMEOUT): it asked for "*"'worker_node': 1000"* ]] || fail 'does not say why'
}

@test "make down removes exactly what has our label, and leaves the shared directory and other people's containers" {
  image=$(scripts/10_build_image.sh --name 2>/dev/null)
  docker run --detach --rm --network none --name vrtest-quick-sidecar "$image" tail -f /dev/null >/dev/null
  before=$(container::listing)
  run make --no-print-directory down FORCE=1 # the job that no node can take still waits
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
