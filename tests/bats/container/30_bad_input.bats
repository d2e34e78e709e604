#!/usr/bin/env bats
# Bad input on a live cluster: one sentence with the value, where it came from and the cure, the right exit status, and nothing
# created.

setup_file() {
  load container_helper
  container::use bad 18266
  container::cluster
}

teardown_file() {
  load container_helper
  container::use bad 18266
  make --no-print-directory down FORCE=1 >/dev/null 2>&1
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

@test "an unknown WORKLOAD" {
  refused 2 "WORKLOAD='pppo' (from the command line or environment) is not usable: did you mean ppo? Use one of grpo, ppo, sft." \
    env WORKLOAD=pppo scripts/44_submit_sdk.sh
}

@test "a CODE_ID that has no snapshot: says which exist" {
  known=$(find "${WORKDIR}/shared/common/code/verl" -mindepth 1 -maxdepth 1 -not -name '.*' -printf '%f\n' | sort | paste -sd, | sed 's/,/, /g')
  [[ $known == *codeA* ]]
  refused 2 "CODE_ID=codeX (from the command line) has no snapshot under ${WORKDIR}/shared/common/code/verl: make one with 'make snapshot CODE_ID=codeX VERL_SOURCE=…' or use one of: ${known}." \
    env CODE_ID=codeX scripts/40_submit_ppo_epoch1.sh
}

@test "a JobSpec with an unknown key, with the nearest real one" {
  file=$(spec <<<$'workload: ppo\ntrainer_override: []')
  run scripts/44_submit_sdk.sh "$file"
  assert_status 2
  [[ $output == *"${file} has the unknown key 'trainer_override' in the document: did you mean 'trainer_overrides'? known keys are "* ]] || fail 'wrong sentence'
  is_as_remembered
}

@test "a JobSpec with a wrong type" {
  file=$(spec <<<$'workload: ppo\ntrainer_overrides: trainer.total_epochs=2')
  refused 2 "trainer_overrides=\"trainer.total_epochs=2\" in ${file} has the wrong type: it must be of type array." \
    scripts/44_submit_sdk.sh "$file"
}

@test "a misspelt override is refused within seconds, by the snapshot's own config, with the nearest real key" {
  printf '%s\n' '# mine' 'trainer.logger=["a b"]' 'trainer.totl_epochs=2' >"${BATS_TEST_TMPDIR}/overrides"
  SECONDS=0
  refused 2 "The override 'trainer.totl_epochs=2' (from OVERRIDES_FILE ${BATS_TEST_TMPDIR}/overrides line 3) sets a key that ppo_trainer of CODE_ID=codeA (verl 0.9.1) lacks: did you mean trainer.total_epochs? To add a new key, write '+trainer.totl_epochs=2'." \
    env OVERRIDES_FILE="${BATS_TEST_TMPDIR}/overrides" scripts/44_submit_sdk.sh
  ((SECONDS < 20)) # about one second if nothing else runs
}

@test "a JobSpec that is not there" {
  refused 2 "the JobSpec '/no/such.yaml' is not a readable file: name one that is." scripts/44_submit_sdk.sh /no/such.yaml
}

@test "bad submission ids: ../x, 300 characters, empty, spaces" {
  pattern='it must match ^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$, or leave it out to get a generated one.'
  long=$(printf 'a%.0s' {1..300})
  refused 2 "submission_id '../x' (from SUBMISSION_ID on the command line) is not usable: ${pattern}" \
    env SUBMISSION_ID=../x scripts/40_submit_ppo_epoch1.sh
  refused 2 "submission_id '${long::40}… (300 characters)' (from SUBMISSION_ID on the command line) is not usable: ${pattern}" \
    env SUBMISSION_ID="$long" scripts/40_submit_ppo_epoch1.sh
  refused 2 "submission_id '' (from SUBMISSION_ID on the command line) is not usable: ${pattern}" \
    env SUBMISSION_ID= scripts/40_submit_ppo_epoch1.sh
  refused 2 "submission_id 'a b' (from SUBMISSION_ID on the command line) is not usable: ${pattern}" \
    env SUBMISSION_ID='a b' scripts/40_submit_ppo_epoch1.sh
}

@test "an existing submission id is refused, and its directory is unchanged" {
  mkdir -p "${WORKDIR}/shared/jobs/taken"
  touch "${WORKDIR}/shared/jobs/taken/mine"
  remember
  refused 2 "submission_id 'taken' is taken: ${WORKDIR}/shared/jobs/taken exists and is never reused; give another one, or leave it out to get a generated one." \
    env SUBMISSION_ID=taken scripts/40_submit_ppo_epoch1.sh
  rm -r "${WORKDIR}/shared/jobs/taken"
}

@test "a missing dataset, and a DATASET_SOURCE that cannot be read" {
  refused 2 "dataset=nothing (from the knob DATASET) is not usable, because ${WORKDIR}/shared/datasets/nothing/train.parquet is missing: run 'make prepare', or name another dataset." \
    env DATASET=nothing scripts/40_submit_ppo_epoch1.sh
  refused 2 "/no/such/train.jsonl (from DATASET_SOURCE=path:/no/such) is not a file that can be read: DIR must contain GSM8K's train.jsonl and test.jsonl." \
    env DATASET_SOURCE=path:/no/such DATASET=gsm8k scripts/30_prepare_data_and_model.sh
}

@test "worker_node 0 would put the driver on the head" {
  file=$(spec <<<$'workload: ppo\nresources: {entrypoint_resources: {worker_node: 0}}')
  refused 2 "entrypoint_resources.worker_node=0 (from ${file}) would let the driver run on the head: it must be above 0, usually 1." \
    scripts/44_submit_sdk.sh "$file"
}

@test "DRY_RUN=1 prints the resolved config, the runtime_env and a line to paste, and creates nothing" {
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
  run docker exec vrtest-bad-worker-0 python3 -c '
import pyarrow.parquet as parquet
for split, rows in (("train", 1024), ("test", 256)):
    table = parquet.read_table(f"/private/datasets/gsm8k/{split}.parquet")
    assert table.num_rows == rows, table.num_rows
    assert table.column_names == ["data_source", "prompt", "ability", "reward_model", "extra_info"], table.column_names
    assert table["reward_model"][0].as_py()["style"] == "rule"'
  assert_status 0
}

@test "a misspelt argument or knob, as it is typed: one sentence, and nothing is submitted, removed or changed" {
  argument="is not an argument of"
  refused 2 "'--dryrun' ${argument} 70_gc.sh: a knob comes before the command, as in 'DRY_RUN=1 scripts/70_gc.sh'." scripts/70_gc.sh --dryrun
  refused 2 "'--hlep' ${argument} 40_submit_ppo_epoch1.sh: did you mean --help? It takes none." scripts/40_submit_ppo_epoch1.sh --hlep
  tail="Use the knobs of env/defaults.env; export other variables, such as secrets, before you run make."
  refused 2 "COD_ID on make's command line is not a knob: did you mean CODE_ID? ${tail}" make submit COD_ID=codeB
  refused 2 "WORKLAOD on make's command line is not a knob: did you mean WORKLOAD? ${tail}" make submit WORKLAOD=grpo
  containers=$(docker ps --all --no-trunc --filter "label=verl-regress.cluster=${CLUSTER_NAME}" --format '{{.ID}} {{.Status}}' | wc -l)
  refused 2 "WORKER on make's command line is not a knob: did you mean WORKERS? ${tail}" make up WORKER=3
  refused 2 "'prepar' is not a target of make: did you mean prepare? Use one of those that 'make' lists." make up prepar
  [[ $containers == 3 && $(docker ps --quiet --filter "label=verl-regress.cluster=${CLUSTER_NAME}" | wc -l) == 3 ]]
}

@test "DRY_RUN=true is a dry run, of a submission and of gc; WAIT=yes and JSON=true mean 1; other values are refused" {
  mkdir -p "${WORKDIR}/shared/common/code/verl_regress/0123456789ab" # an old version of the helper, which gc removes
  touch --date '2 days ago' "${WORKDIR}/shared/common/code/verl_regress/0123456789ab"
  run make --no-print-directory submit DRY_RUN=true WAIT=yes
  assert_status 0
  assert_line '# runtime_env'
  run make --no-print-directory gc DRY_RUN=true KEEP=0
  assert_status 0
  [[ -d ${WORKDIR}/shared/common/code/verl_regress/0123456789ab ]]
  rmdir "${WORKDIR}/shared/common/code/verl_regress/0123456789ab"
  run --separate-stderr make --no-print-directory status JSON=true
  assert_status 0
  python3 -c 'import json, sys; assert len(json.loads(sys.argv[1])["nodes"]) == 3' "$output"
  refused 2 "DRY_RUN='maybe' (from the command line or environment) is not usable: use 1, true, yes or on, or 0, false, no, off or nothing." \
    make submit DRY_RUN=maybe
  is_as_remembered
}

@test "bad values of knobs end make check, make up and make verify before anything is done" {
  tried=0
  while IFS='|' read -r targets setting cure; do
    for target in $targets; do
      refused 2 "${setting%%=*}='${setting#*=}' (from the command line or environment) is not usable: ${cure}." make "$target" "$setting"
      tried=$((tried + 1))
    done
  done <<'CASES'
check up|WORKERS=0|use a whole number from 1 to 99
check|DASHBOARD_PORT=99999|use a TCP port from 1024 to 65535
check|SHM_SIZE=abc|use a size such as 2gb or 512m
check|WORKER_CPUS=x|use a whole number from 1 to 9999, or leave it empty
check|WORKER_RESOURCES={bad|use a JSON object of numbers with "worker_node" above 0, such as {"worker_node": 100}
check|OBJECT_STORE_BYTES=5|use a whole number from 78643200 to 999999999999999
check|LIMIT=-1|use a whole number from 1 to 999999
check|DATASET_SOURCE=foo|use synthetic, hub or path:DIR
check verify|ONLY=nope|use some of submission, placement, head, outputs, prepare, checkpoints, further, debug, imports, workloads, rules, token, secrets, separated by commas, or leave it empty
CASES
  ((tried == 11))
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

@test "the cluster is down: Ray stopped, containers gone" {
  docker restart --time 0 vrtest-bad-head >/dev/null
  run scripts/40_submit_ppo_epoch1.sh
  assert_status 8
  [[ $output == *"error   Ray does not answer at http://127.0.0.1:8265 as seen from the head ("*"): bring the cluster up with 'make up'."* ]] || fail 'wrong sentence'
  docker stop --time 0 vrtest-bad-head >/dev/null
  refused 8 "The node 'head' is not running (container vrtest-bad-head, from CLUSTER_NAME=vrtest-bad): bring the cluster up with 'make up'." \
    scripts/40_submit_ppo_epoch1.sh
}

@test "the engine is down" {
  refused 8 "The container engine does not answer ('docker version' fails): start it, then 'make up'." \
    env DOCKER_HOST=unix:///no/such.sock scripts/40_submit_ppo_epoch1.sh
  refused 1 "No container engine answers ('docker version' fails): start it, join the group docker, or run 'scripts/dev/bootstrap_host.sh --engine'." \
    env DOCKER_HOST=unix:///no/such.sock scripts/01_up.sh
}

@test "the node image is missing" {
  refused 1 "The node image no-such-image:1 is not on this machine: build it with 'make build'." \
    env NODE_IMAGE=no-such-image:1 scripts/01_up.sh
}

@test "the port is taken, and version 1 is still there" {
  run "$REPO/.venv/bin/python" -c '
import os, socket, subprocess, sys
held = socket.create_server(("127.0.0.1", 18267))
sys.exit(subprocess.run(["scripts/00_prereq_check.sh"], env={**os.environ, "DASHBOARD_PORT": "18267"}).returncode)'
  assert_status 1
  assert_line 'error   Port 127\.0\.0\.1:18267 \(DASHBOARD_PORT, from the command line or environment\) is taken by python[0-9.]* \(pid [0-9]+\): end that process, or set DASHBOARD_PORT to a free port\.'
  is_as_remembered || fail 'something was created'
  image=$(scripts/10_build_image.sh --name 2>/dev/null)
  docker create --name mvp-ray-worker-7 "$image" true >/dev/null
  run scripts/00_prereq_check.sh
  docker rm mvp-ray-worker-7 >/dev/null
  assert_status 1
  assert_line "error   Containers of version 1 are still here \(mvp-ray-worker-7\): remove them with 'scripts/03_cleanup_v1_legacy\.sh'\."
}

# up_again: restores the cluster after a test that removed a part of it.
up_again() { make --no-print-directory up >"${BATS_TEST_TMPDIR}/up" 2>&1 || fail "$(tail -n 20 "${BATS_TEST_TMPDIR}/up")"; }

@test "an override of 200 KiB in OVERRIDES_FILE (before: LOST with an empty log) and a variable of 1 MB (before: PENDING for 300 s)" {
  up_again # the tests before leave the cluster down
  remember
  { printf "trainer.project_name='" && head -c 204800 /dev/zero | tr '\0' x && printf "'\n"; } >"${BATS_TEST_TMPDIR}/overrides"
  OVERRIDES_FILE="${BATS_TEST_TMPDIR}/overrides" run scripts/44_submit_sdk.sh
  assert_status 2
  assert_line 'error   The override .*x… \(204825 characters\) \(from OVERRIDES_FILE .*/overrides line 1\) has 204,823 bytes, but Linux allows at most 131,071 in one word of a command line \(execve\(2\)\): put long values into files on the shared root, and give their paths instead\.'
  { printf 'workload: ppo\nenv_vars: {BIG: "' && head -c 1000000 /dev/zero | tr '\0' x && printf '"}\n'; } >"${BATS_TEST_TMPDIR}/big.yaml"
  refused 2 "env_vars.BIG (from ${BATS_TEST_TMPDIR}/big.yaml) has 1,000,004 bytes with its name, but Linux allows at most 131,071 in one variable (execve(2)): put long values into files on the shared root, and give their paths instead." \
    scripts/44_submit_sdk.sh "${BATS_TEST_TMPDIR}/big.yaml"
}

@test "a reward function with a syntax error, and one without compute_score (before: a minute of the job)" {
  code=${WORKDIR}/shared/user/code
  file=$(spec <<<$'workload: grpo\nreward_fn_path: ${shared_root}/user/code/bad-reward.py')
  printf 'import re\ndef compute_score(:\n    return 1\n' >"${code}/bad-reward.py"
  remember
  run scripts/44_submit_sdk.sh "$file"
  assert_status 2
  assert_line "error   reward_fn_path=/private/user/code/bad-reward\.py \(from ${file}\) is not usable, because line 2 of it cannot be parsed by the head's Python 3\.[0-9]+ \(invalid syntax\): fix it\."
  printf 'def compute_scores(**_):\n    return 1\n' >"${code}/bad-reward.py"
  remember
  refused 2 "reward_fn_path=/private/user/code/bad-reward.py (from ${file}) does not define compute_score at its top level (did you mean compute_scores?): define it there, or name another function with reward.custom_reward_function.name." \
    scripts/44_submit_sdk.sh "$file"
  rm "${code}/bad-reward.py"
}

@test "a snapshot that was changed (before: the job failed after training), half removed, and removed" {
  snapshots=${WORKDIR}/shared/common/code/verl
  cp -a "${snapshots}/codeA" "${snapshots}/bad-code"
  sed -i 's/"code_id": "codeA"/"code_id": "bad-code"/' "${snapshots}/bad-code/snapshot.json"
  chmod -R u+w "${snapshots}/bad-code"
  printf '# changed\n' >>"${snapshots}/bad-code/verl/protocol.py"
  remember
  CODE_ID=bad-code run scripts/40_submit_ppo_epoch1.sh
  assert_status 2
  assert_line 'error   CODE_ID=bad-code \(from the command line\) is not usable, because the snapshot '"${snapshots}"'/bad-code was changed after it was made \(tree [0-9a-f]{12}, recorded [0-9a-f]{12}\): remove it \(find .* && rm -rf .*\) and make it again with .make snapshot CODE_ID=bad-code VERL_SOURCE=….\.'
  is_as_remembered
  rm -r "${snapshots}/bad-code/verl"
  CODE_ID=bad-code run scripts/40_submit_ppo_epoch1.sh
  assert_status 2
  assert_line 'error   CODE_ID=bad-code \(from the command line\) is not usable, because '"${snapshots}"'/bad-code has no complete snapshot \(verl/__init__.py is missing\): remove it .*'
  rm -r "${snapshots}/bad-code"
  CODE_ID=bad-code run scripts/40_submit_ppo_epoch1.sh
  assert_status 2
  assert_line 'error   CODE_ID=bad-code \(from the command line\) has no snapshot under '"${snapshots}"': make one with .*'
}

@test "a worker that is down: a job that needs it is refused within seconds with the worker's name, and make up restores it" {
  docker kill "vrtest-bad-worker-1" >/dev/null
  SECONDS=0
  refused 2 "The job asks for 8 cpu (trainer.nnodes times trainer.n_gpus_per_node of verl's config), but the nodes that are up have 4; worker-1 is down: bring it back with 'make up', or ask for less." \
    env OVERRIDES='trainer.nnodes=2 trainer.n_gpus_per_node=4' scripts/40_submit_ppo_epoch1.sh
  ((SECONDS < 20)) || fail "took ${SECONDS} s" # about four if nothing else runs: three for a connection to a dead node
  up_again
  OVERRIDES='trainer.nnodes=2 trainer.n_gpus_per_node=4' SUBMISSION_ID="bad-up-${RANDOM}" run scripts/40_submit_ppo_epoch1.sh
  assert_status 0
  JOB=$(tail -n 1 <<<"$(grep -x 'bad-up-[0-9]*' <<<"$output")") run scripts/54_stop.sh
  assert_status 0
}
