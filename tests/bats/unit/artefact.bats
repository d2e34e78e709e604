#!/usr/bin/env bats
# The training data and the model: what the helper is asked to make, and which files of this machine it gets. The helper is a stub.

setup() {
  load ../test_helper
  sandbox::make
  # shellcheck disable=SC2016  # expanded when the script runs
  printf '%s\n' 'source "$(dirname "$0")/lib/regress.bash"' cli::begin env::load_knobs \
    'helper::run() { printf "%s\n" "$*" >>"${HOST_ROOT}/asked"; [[ $* != *--check ]] || cat -- "${HOST_ROOT}/state"; }' \
    'helper::run_in() { printf "in %s\n" "$*" >>"${HOST_ROOT}/asked"; tar -x -C "${HOST_ROOT}/got"; }' '"$@"' >"${HERE}/scripts/verb.sh"
  mkdir -p "${BOX}/root/got" "${BOX}/my files/.git"
  MINE="${BOX}/my files"
}

# ensure WHAT [KNOB=VALUE...]
ensure() {
  rm -rf "${BOX}/root/asked" "${BOX}/root/got"
  mkdir "${BOX}/root/got"
  sandbox::run SEED=7 DATASET=sums MODEL=small "${@:2}" scripts/verb.sh "artefact::ensure_$1"
}

asked() { cat "${BOX}/root/asked"; }
got() { (cd "${BOX}/root/got" && find . ! -type d | sort | tr '\n' ' '); }

@test "for data and a model that a node makes, the helper is asked once without a file" {
  ensure data DATASET_SOURCE=synthetic
  assert_status 0
  [[ $(asked) == 'worker-0 prepare-data --source synthetic --name sums --seed 7' ]]
  ensure model MODEL_SOURCE=hub:a/b@main PROFILE=gpu
  assert_status 0
  [[ $(asked) == 'worker-0 prepare-model --source hub:a/b@main --name small --seed 7' ]]
  ensure model MODEL_SOURCE=tiny PROFILE=gpu # vLLM needs larger heads
  [[ $(asked) == 'worker-0 prepare-model --source tiny-for-gpu --name small --seed 7' ]]
  ensure model MODEL_SOURCE=tiny PROFILE=cpu MODEL=small-for-gpu
  [[ $(asked) == 'worker-0 prepare-model --source tiny-for-gpu --name small-for-gpu --seed 7' ]]
  ensure model MODEL_SOURCE=hub:a/b # a rehearsal
  assert_status 0
  [[ $(asked) == $'worker-0 prepare-model --source hub:a/b --name small --seed 7\nworker-0 prepare-model --source hub:a/b --name small --seed 7 --critic' ]]
}

# bats test_tags=slow
@test "data from a folder or a file: its data alone, links resolved, whole name" {
  echo train >"${BOX}/elsewhere"
  ln -s ../elsewhere "${MINE}/train.jsonl"
  echo test >"${MINE}/test.jsonl"
  echo private >"${MINE}/other"
  ensure data DATASET_SOURCE="path:../my files"
  assert_status 0
  [[ $(asked) == "in worker-0 prepare-data --source path:${MINE} --name sums --seed 7" ]]
  [[ $(got) == './test.jsonl ./train.jsonl ' && ! -L ${BOX}/root/got/train.jsonl && $(<"${BOX}/root/got/train.jsonl") == train ]]
  mv "${MINE}/test.jsonl" "${MINE}/val.parquet"
  ensure data DATASET_SOURCE="path:${MINE}"
  [[ $(got) == './train.jsonl ./val.parquet ' ]]
  ensure data DATASET_SOURCE="path:${MINE}/other"
  assert_status 0
  [[ $(asked) == "in worker-0 prepare-data --source path:${MINE}/other --name sums --seed 7" && $(got) == './other ' ]]
}

@test "data that are not there are refused before the helper is asked" {
  local rest='is not a file that can be read: name a folder with one train and one test or val, each .parquet or .jsonl, or one such file.'
  ensure data DATASET_SOURCE="path:${MINE}"
  assert_error 2 "${MINE}/train.parquet (from DATASET_SOURCE=path:${MINE}) ${rest}"
  ensure data DATASET_SOURCE="path:${MINE}/no"
  assert_error 2 "${MINE}/no (from DATASET_SOURCE=path:${MINE}/no) ${rest}"
  [[ ! -e ${BOX}/root/asked ]]
}

# bats test_tags=slow
@test "a model from a folder: no history, links resolved, only if it is missing" {
  echo '{}' >"${MINE}/config.json"
  echo weights >"${BOX}/blob"
  ln -s ../blob "${MINE}/model.safetensors"
  echo history >"${MINE}/.git/HEAD"
  echo absent >"${BOX}/root/state"
  ensure model MODEL_SOURCE="path:../my files" PROFILE=gpu
  assert_status 0
  [[ $(asked) =~ ^"worker-0 prepare-model --source path:${MINE} --name small --seed 7 --revision "([0-9a-f]{64})" --check"$'\n'(.*)$ ]] || fail "$(asked)"
  local revision=${BASH_REMATCH[1]}
  [[ ${BASH_REMATCH[2]} == "in worker-0 prepare-model --source path:${MINE} --name small --seed 7 --revision ${revision}" ]]
  [[ $(got) == './config.json ./model.safetensors ' && ! -L ${BOX}/root/got/model.safetensors ]]
  echo present >"${BOX}/root/state"
  ensure model MODEL_SOURCE="path:${MINE}" PROFILE=gpu
  assert_status 0
  [[ $(asked) == *" --revision ${revision} --check" && -z $(got) ]]
}

# bats test_tags=slow
@test "a folder's revision changes with sizes and times of files, not with its history" {
  echo '{}' >"${MINE}/config.json"
  echo present >"${BOX}/root/state"
  local before
  revision() {
    ensure model MODEL_SOURCE="path:${MINE}"
    assert_status 0
    [[ $(asked) =~ --revision\ ([0-9a-f]{64})\ --check ]] || fail "$(asked)"
    echo "${BASH_REMATCH[1]}"
  }
  before=$(revision)
  echo changed >"${MINE}/.git/HEAD"
  [[ $(revision) == "$before" ]]
  touch -d '2026-01-31T00:00:00Z' "${MINE}/config.json"
  [[ $(revision) != "$before" ]]
  # The same in each version, or a model that is there is one from another source.
  [[ $(revision) == "$(printf 'config.json\t3\t%s.0000000000\n' "$(date -d '2026-01-31T00:00:00Z' +%s)" | sha256sum | cut -d' ' -f1)" ]]
}

@test "a folder without config.json is refused before the helper is asked" {
  ensure model MODEL_SOURCE="path:${MINE}"
  assert_error 2 "${MINE} (from MODEL_SOURCE=path:${MINE}) has no config.json that can be read: name the folder of a Hugging Face model."
  [[ ! -e ${BOX}/root/asked ]]
}
