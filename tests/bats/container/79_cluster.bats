#!/usr/bin/env bats
# Bad input, of which nothing is created; the cluster: it belongs to its checkout, grows and shrinks, says what is down, is removed
# without touching what is not ours, and its jobs can be read then. The last file that uses this cluster.

setup_file() {
  load container_helper
  container::use quick 18265
  container::cluster
  [[ -n $(trained) ]] || WAIT=1 OVERRIDES=trainer.total_training_steps=1 container::quietly trained scripts/42_submit_sft_minimal.sh
}

# trained: a job of this workdir that has trained to its end.
trained() { JSON=1 LIMIT=1000 scripts/58_jobs.sh 2>/dev/null | jq -r '[.jobs[] | select(.status == "SUCCEEDED").submission_id] | first // empty'; }

setup() { load container_helper; }

# refused STATUS SENTENCE COMMAND...: exits with that status and that whole sentence, and creates nothing.
refused() {
  local before
  before=$(container::listing)
  run "${@:3}"
  assert_status "$1"
  grep -qxF -- "error   $2" <<<"${output-}" || fail "no line: error   $2"
  [[ $(container::listing) == "$before" ]] || fail 'something was created'
}

@test "a misspelt override is refused within seconds, with the nearest real key" {
  printf '%s\n' '# mine' 'trainer.logger=["a b"]' 'trainer.totl_epochs=2' >"${BATS_TEST_TMPDIR}/overrides"
  SECONDS=0
  refused 2 "The override 'trainer.totl_epochs=2' (from OVERRIDES_FILE ${BATS_TEST_TMPDIR}/overrides line 3) sets a key that ppo_trainer of CODE_ID=codeA (verl 0.9.1) lacks: did you mean trainer.total_epochs? To add a new key, write '+trainer.totl_epochs=2'." \
    env OVERRIDES_FILE="${BATS_TEST_TMPDIR}/overrides" scripts/44_submit_sdk.sh
  ((SECONDS < 60)) # about one second if nothing else runs
}

@test "DRY_RUN=1 prints what would be submitted and a line to paste, creates nothing" {
  printf '{"workload": "ppo", "trainer_overrides": ["trainer.save_freq=10"]}' >"${BATS_TEST_TMPDIR}/spec.json"
  before=$(container::listing)
  DRY_RUN=1 run scripts/44_submit_sdk.sh "${BATS_TEST_TMPDIR}/spec.json"
  assert_status 0
  assert_line '# resolved config'
  assert_line "# verl's config"
  assert_line '# runtime_env'
  line=$(grep '^ray job submit ' <<<"$output")
  eval "set -- ${line}" # as if pasted: the shell reads the line back into the same words
  [[ $# == 21 && ${*: -3:2} == */run.py\ launch ]] || fail "$# words"
  [[ $(container::listing) == "$before" ]]
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
    assert_line "error   ${THEIRS}: set another CLUSTER_NAME \(and DASHBOARD_PORT\), or run 'make down' in that checkout .*"
  done
  [[ $(containers) == "$before" && ! -e ${WORKDIR}/shared/jobs/theirs ]]
}

@test "what would end a job is refused; FORCE=1 ends it; one worker, and two again" {
  # The job that no node can take, of the test before, still waits.
  job=$(container::jobs | grep -x 'ppo-codeA-.*' | tail -n 1)
  before=$(containers)
  run make --no-print-directory up SHM_SIZE=1500mb
  assert_line "error   Recreating head, worker-0, worker-1 \(SHM_SIZE was 2gb, is 1500mb \(from the command line or environment\)\) would end ${job} \(PENDING\): .*"
  run make --no-print-directory down
  assert_line "error   Taking vrtest-quick down would end ${job} \(PENDING\): wait for them, stop them \('make stop JOB=…'\), or end them with FORCE=1\."
  [[ $(containers) == "$before" ]]
  run make --no-print-directory up SHM_SIZE=1500mb WORKERS=1 FORCE=1
  assert_status 0
  assert_line 'changed recreated head, worker-0.*: .*SHM_SIZE was 2gb, is 1500mb \(from the command line or environment\).*'
  assert_line 'changed removed worker-1: .*WORKERS was 2, is 1 \(from the command line or environment\)'
  run make --no-print-directory up SHM_SIZE=1500mb
  assert_status 0
  assert_line 'ok      worker-1 is ALIVE at .*: CPU 64, GPU 4, worker_node 100'
  [[ $(JSON=1 scripts/50_status.sh | jq -r '[.nodes[] | select(.state == "ALIVE") | .name] | join(" ")') == 'head worker-0 worker-1' ]]
}

@test "a reward function is called on a worker before its job is submitted" {
  mkdir -p "${WORKDIR}/shared/user/code"
  printf 'import os\n\n\ndef compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return {"acc": 1, os.environ["WORD"]: 1.0}\n' \
    >"${WORKDIR}/shared/user/code/word.py"
  # shellcheck disable=SC2016  # the JobSpec's own
  printf '%s\n' 'workload: grpo' 'reward_fn_path: ${shared_root}/user/code/word.py' 'secrets: [{name: WORD}]' >"${BATS_TEST_TMPDIR}/word.yaml"
  refused 2 "REWARD_CHECK=1: compute_score in ${WORKDIR}/shared/user/code/word.py returned a dict without 'score' on row 1 of ${WORKDIR}/shared/datasets/sums/train.parquet (${WORKDIR}/shared/user/code/word.py:4): correct it, or leave REWARD_CHECK out; nothing was submitted." \
    env WORD=a-word-of-mine REWARD_CHECK=1 scripts/44_submit_sdk.sh "${BATS_TEST_TMPDIR}/word.yaml"
}

@test "make up repairs a paused worker, a damaged helper, a lost token" {
  local dir token="${WORKDIR}/secrets/${CLUSTER_NAME}.token" before
  before=$(<"$token")
  docker pause "${CLUSTER_NAME}-worker-1"
  dir=$(find "${WORKDIR}/shared/common/code/verl_regress" -mindepth 1 -maxdepth 1 -regex '.*/[0-9a-f]+' -printf '%T@ %p/\n' | sort -n | sed -n '$s/^[^ ]* //p')
  chmod -R u+w "$dir"
  rm "${dir}py/verl_regress/jobs/hints.py" "$token"
  run scripts/51_logs.sh
  [[ $output != *Traceback* ]] || fail 'a page of Python'
  run scripts/64_dashboard.sh
  assert_status 1
  [[ $output == *"or 'make up' if it is missing."* ]] || fail 'another cure'
  run make --no-print-directory up SHM_SIZE=1500mb # as the test before left it
  assert_status 0
  assert_line "changed wrote Ray's token for ${CLUSTER_NAME} again, as head has it \\(${token}, mode 600\\)"
  assert_line "changed containers brought up: ${CLUSTER_NAME}-worker-1"
  assert_line "changed helper put at .*"
  [[ $(<"$token") == "$before" && -f ${dir}py/verl_regress/jobs/hints.py ]]
  run scripts/64_dashboard.sh
  assert_status 0
  container::is_ready || fail 'Ray lacks a node'
}

@test "a lost id is what the refusal says to write" {
  local before
  before=$(<"${WORKDIR}/id")
  rm "${WORKDIR}/id"
  run make --no-print-directory up
  [[ $status != 0 && ! -e ${WORKDIR}/id ]]
  bash -c "$(sed -n "s/^error .* type '\\(echo .*\\)' to have it back.*/\\1/p" <<<"$output")"
  [[ $(<"${WORKDIR}/id") == "$before" ]]
  run make --no-print-directory check
  assert_status 0
}

@test "a worker that is down: a job that needs it is refused within seconds" {
  docker kill "vrtest-quick-worker-1" >/dev/null
  SECONDS=0
  refused 2 "The job asks for 8 cpu (trainer.nnodes times trainer.n_gpus_per_node of verl's config), but the nodes that are up have 4: ask for less, or bring up more with 'make up'." \
    env OVERRIDES='trainer.nnodes=2 trainer.n_gpus_per_node=4 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 critic.ppo_micro_batch_size_per_gpu=1' \
    scripts/40_submit_ppo_epoch1.sh
  ((SECONDS < 60)) || fail "took ${SECONDS} s" # about four if nothing else runs: three for a connection to a dead node
}

@test "the cluster is down: Ray stopped, containers gone" {
  docker restart --time 0 vrtest-quick-head >/dev/null
  run scripts/40_submit_ppo_epoch1.sh
  assert_status 8
  [[ $output == *"error   Ray does not answer at http://127.0.0.1:8265 as seen from the head ("*"): bring the cluster up with 'make up'."* ]] || fail 'wrong sentence'
  docker stop --time 0 vrtest-quick-head >/dev/null
  refused 8 "The node 'head' is not running (container vrtest-quick-head, from CLUSTER_NAME=vrtest-quick): bring the cluster up with 'make up'." \
    scripts/40_submit_ppo_epoch1.sh
}

@test "the engine is down" {
  local why="The container engine cannot be asked (Cannot connect to the Docker daemon at unix:///no/such.sock. Is the docker daemon running?): correct or unset DOCKER_HOST=unix:///no/such.sock, or start the engine that this names."
  refused 8 "$why" \
    env DOCKER_HOST=unix:///no/such.sock scripts/40_submit_ppo_epoch1.sh
  refused 1 "$why" \
    env DOCKER_HOST=unix:///no/such.sock scripts/01_up.sh
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
  trained=$(trained)
  run make --no-print-directory jobs
  assert_status 0
  assert_line "${job} +ppo +codeA +UNKNOWN +1 +0 +20.*Z  the job recorded no end, and there is no word from Ray"
  assert_line "${trained} .* +SUCCEEDED +[0-9]+ +[0-9]+ +20.*Z"
  [[ $(JSON=1 LIMIT=1 scripts/58_jobs.sh 2>/dev/null | jq -c '[.jobs[].submission_id, .ray_answers]') == "[\"${job}\",false]" ]]
  JOB=$trained run scripts/51_logs.sh
  assert_status 0
  assert_line 'MVP_PRECHECK_MARKER: .*'
  JOB=$job run scripts/54_stop.sh
  assert_status 8
}
