#!/usr/bin/env bats
# Bad input on a live cluster: one sentence with the value, where it came from and the cure, the right exit status, and nothing
# created.

setup_file() {
  load container_helper
  container::use quick 18265
  container::cluster
}

setup() {
  load container_helper
  remember
}

# remember, is_as_remembered: records what is under the shared root, and checks that nothing was added.
remember() { container::listing >"${BATS_TEST_TMPDIR}/before"; }
is_as_remembered() { diff "${BATS_TEST_TMPDIR}/before" <(container::listing); }

# refused STATUS SENTENCE COMMAND...: exits with that status and that whole sentence, and creates nothing.
refused() {
  local status_wanted=$1 sentence=$2
  shift 2
  run "$@"
  assert_status "$status_wanted"
  grep -qxF -- "error   ${sentence}" <<<"$output" || fail "no line: error   ${sentence}"
  is_as_remembered || fail 'something was created'
}

spec() {
  cat >"${BATS_TEST_TMPDIR}/spec.yaml"
  printf '%s\n' "${BATS_TEST_TMPDIR}/spec.yaml"
}

@test "a CODE_ID that has no snapshot: says which exist" {
  known=$(find "${WORKDIR}/shared/common/code/verl" -mindepth 1 -maxdepth 1 -not -name '.*' -printf '%f\n' | sort | paste -sd, | sed 's/,/, /g')
  [[ $known == *codeA* ]]
  refused 2 "CODE_ID=codeX (from the command line) has no snapshot under ${WORKDIR}/shared/common/code/verl: make one with 'make snapshot CODE_ID=codeX VERL_SOURCE=…' or use one of: ${known}." \
    env CODE_ID=codeX scripts/40_submit_ppo_epoch1.sh
}

@test "a misspelt override is refused within seconds, with the nearest real key" {
  printf '%s\n' '# mine' 'trainer.logger=["a b"]' 'trainer.totl_epochs=2' >"${BATS_TEST_TMPDIR}/overrides"
  SECONDS=0
  refused 2 "The override 'trainer.totl_epochs=2' (from OVERRIDES_FILE ${BATS_TEST_TMPDIR}/overrides line 3) sets a key that ppo_trainer of CODE_ID=codeA (verl 0.9.1) lacks: did you mean trainer.total_epochs? To add a new key, write '+trainer.totl_epochs=2'." \
    env OVERRIDES_FILE="${BATS_TEST_TMPDIR}/overrides" scripts/44_submit_sdk.sh
  ((SECONDS < 20)) # about one second if nothing else runs
}

@test "an existing submission id is refused, and its directory is unchanged" {
  mkdir -p "${WORKDIR}/shared/jobs/taken"
  touch "${WORKDIR}/shared/jobs/taken/mine"
  remember
  refused 2 "submission_id 'taken' is taken: ${WORKDIR}/shared/jobs/taken exists and is never reused; give another one, or leave it out to get a generated one." \
    env SUBMISSION_ID=taken scripts/40_submit_ppo_epoch1.sh
  rm -r "${WORKDIR}/shared/jobs/taken"
}

@test "worker_node 0 would put the driver on the head" {
  file=$(spec <<<$'workload: ppo\nresources: {entrypoint_resources: {worker_node: 0}}')
  refused 2 "entrypoint_resources.worker_node=0 (from ${file}) would let the driver run on the head: it must be above 0, usually 1." \
    scripts/44_submit_sdk.sh "$file"
}

@test "DRY_RUN=1 prints what would be submitted and a line to paste, creates nothing" {
  printf '{"workload": "ppo", "trainer_overrides": ["trainer.save_freq=10"]}' >"${BATS_TEST_TMPDIR}/spec.json"
  DRY_RUN=1 run scripts/44_submit_sdk.sh "${BATS_TEST_TMPDIR}/spec.json"
  assert_status 0
  assert_line '# resolved config'
  assert_line "# verl's config"
  assert_line '# runtime_env'
  line=$(grep '^ray job submit ' <<<"$output")
  eval "set -- ${line}" # as if pasted: the shell reads the line back into the same words
  [[ $# == 21 && ${*: -3:2} == */run.py\ launch ]] || fail "$# words"
  is_as_remembered
}

@test "GSM8K from a folder becomes datasets/gsm8k in verl's format" {
  [[ -n ${GSM8K_DIR:-} ]] || skip 'GSM8K_DIR names no folder with train.jsonl and test.jsonl'
  DATASET_SOURCE="path:${GSM8K_DIR}" DATASET=gsm8k run scripts/30_prepare_data_and_model.sh
  assert_status 0
  run docker exec vrtest-quick-worker-0 python3 -c '
import pyarrow.parquet as parquet
for split, rows in (("train", 1024), ("test", 256)):
    table = parquet.read_table(f"/private/datasets/gsm8k/{split}.parquet")
    assert table.num_rows == rows, table.num_rows
    assert table.column_names == ["data_source", "prompt", "ability", "reward_model", "extra_info"], table.column_names
    assert table["reward_model"][0].as_py()["style"] == "rule"'
  assert_status 0
}

@test "a JOBSPEC is one path, whatever it contains, and is never run by a shell" {
  pwned="${BATS_TEST_TMPDIR}/pwned"
  mkdir "${BATS_TEST_TMPDIR}/my dir"
  cp jobspecs/ppo.yaml "${BATS_TEST_TMPDIR}/my dir/x.yaml"
  refused 2 "the JobSpec 'x.yaml; touch ${pwned}' is not a readable file: name one that is." make submit JOBSPEC="x.yaml; touch ${pwned}"
  # shellcheck disable=SC2016  # hostile on purpose
  refused 2 "the JobSpec '\$(shell touch ${pwned})' is not a readable file: name one that is." make submit JOBSPEC='$(shell touch '"${pwned})"
  run make --no-print-directory submit JOBSPEC="${BATS_TEST_TMPDIR}/my dir/x.yaml" DRY_RUN=1
  assert_status 0
  assert_line '# resolved config'
  is_as_remembered
  [[ ! -e $pwned ]]
}

@test "an override of 200 KiB in OVERRIDES_FILE and a variable as long" {
  { printf "trainer.project_name='" && head -c 204800 /dev/zero | tr '\0' x && printf "'\n"; } >"${BATS_TEST_TMPDIR}/overrides"
  OVERRIDES_FILE="${BATS_TEST_TMPDIR}/overrides" run scripts/44_submit_sdk.sh
  assert_status 2
  assert_line 'error   The env_vars and overrides of the job have 20[0-9],[0-9]{3} bytes as JSON, but Linux takes 126,976 .*\.'
  { printf 'workload: ppo\nenv_vars: {BIG: "' && head -c 200000 /dev/zero | tr '\0' x && printf '"}\n'; } >"${BATS_TEST_TMPDIR}/big.yaml"
  run scripts/44_submit_sdk.sh "${BATS_TEST_TMPDIR}/big.yaml"
  assert_status 2
  assert_line 'error   The env_vars and overrides of the job have 20[0-9],[0-9]{3} bytes as JSON, but Linux takes 126,976 .*\.'
}

@test "a snapshot that was changed" {
  snapshots=${WORKDIR}/shared/common/code/verl
  cp -a "${snapshots}/codeA" "${snapshots}/bad-code"
  sed -i 's/"code_id": "codeA"/"code_id": "bad-code"/' "${snapshots}/bad-code/snapshot.json"
  chmod -R u+w "${snapshots}/bad-code"
  printf '# changed\n' >>"${snapshots}/bad-code/verl/protocol.py"
  remember
  CODE_ID=bad-code run scripts/40_submit_ppo_epoch1.sh
  assert_status 2
  assert_line 'error   CODE_ID=bad-code \(from the command line\) was changed after it was made \('"${snapshots}"'/bad-code: tree [0-9a-f]{12}, recorded [0-9a-f]{12}\): remove it \(chmod .* && rm -rf .*\) and make it again with .make snapshot CODE_ID=bad-code VERL_SOURCE=.*\.'
  is_as_remembered
  rm -r "${snapshots}/bad-code"
}

@test "a worker that is down: a job that needs it is refused within seconds" {
  docker kill "vrtest-quick-worker-1" >/dev/null
  SECONDS=0
  refused 2 "The job asks for 8 cpu (trainer.nnodes times trainer.n_gpus_per_node of verl's config), but the nodes that are up have 4: ask for less, or bring up more with 'make up'." \
    env OVERRIDES='trainer.nnodes=2 trainer.n_gpus_per_node=4' scripts/40_submit_ppo_epoch1.sh
  ((SECONDS < 20)) || fail "took ${SECONDS} s" # about four if nothing else runs: three for a connection to a dead node
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
  refused 8 "The container engine does not answer ('docker version' fails): start it, then 'make up'." \
    env DOCKER_HOST=unix:///no/such.sock scripts/40_submit_ppo_epoch1.sh
  refused 1 "No container engine answers ('docker version' fails): start it, or run 'scripts/dev/bootstrap_host.sh --engine'." \
    env DOCKER_HOST=unix:///no/such.sock scripts/01_up.sh
}

@test "make up restores the worker and the head: a job on both workers is accepted" {
  make --no-print-directory up >"${BATS_TEST_TMPDIR}/up" 2>&1 || fail "$(tail -n 20 "${BATS_TEST_TMPDIR}/up")"
  OVERRIDES='trainer.nnodes=2 trainer.n_gpus_per_node=4' SUBMISSION_ID="bad-up-${RANDOM}" run scripts/40_submit_ppo_epoch1.sh
  assert_status 0
  JOB=$(tail -n 1 <<<"$(grep -x 'bad-up-[0-9]*' <<<"$output")") run scripts/54_stop.sh
  assert_status 0
}
