#!/usr/bin/env bats
# SFT on the real trainer by two releases at the same time, each with its own code, and a job that fails because a process ran other code
# than the snapshot's: all three at once. PPO: 10_quickstart.bats; GRPO: 74_debugger.bats.

setup_file() {
  load container_helper
  container::use quick 18265
  container::cluster
  CODE_ID=verl071 VERL_SOURCE=pypi:0.7.1 container::quietly snapshot scripts/31_snapshot_verl_code.sh
  shadow_code
  local -x WAIT=1 OVERRIDES='trainer.total_training_steps=4 trainer.save_freq=4' pids=()
  CODE_ID=codeA trains a scripts/42_submit_sft_minimal.sh &
  pids+=("$!")
  CODE_ID=verl071 trains b scripts/42_submit_sft_minimal.sh &
  pids+=("$!")
  OVERRIDES='trainer.total_training_steps=1 trainer.nnodes=1' trains shadowed scripts/44_submit_sdk.sh "${BATS_FILE_TMPDIR}/spec.yaml" &
  wait "${pids[@]}" "$!"
}

setup() {
  load container_helper
  load weights
}

# trains NAME COMMAND...: its output and exit status are in the file's directory.
trains() {
  local status=0
  "${@:2}" >"${BATS_FILE_TMPDIR}/$1" 2>&1 3>&- || status=$?
  printf '%d\n' "$status" >"${BATS_FILE_TMPDIR}/$1.status"
}

# has_trained NAME: sets status, output and job, its directory.
has_trained() {
  output=$(<"${BATS_FILE_TMPDIR}/$1") status=$(<"${BATS_FILE_TMPDIR}/$1.status")
  job="${WORKDIR}/shared/jobs/$(grep -xE '[a-z]+-[A-Za-z0-9]+-[0-9TZ]+-[0-9a-f]{4}' <<<"$output")"
}

# shadow_code: spec.yaml, an SFT in which each of Ray's actors loads a module of verl from another place.
shadow_code() {
  mkdir -p "${WORKDIR}/shared/user/code/shadow"
  printf 'HERE = 1\n' >"${WORKDIR}/shared/user/code/shadow/patched.py"
  cat >"${WORKDIR}/shared/user/code/shadow/shadow_hook.py" <<'PY'
import importlib.util
import sys


def install():
    if any("default_worker.py" in word for word in sys.orig_argv):
        spec = importlib.util.spec_from_file_location("verl.patched", "/private/user/code/shadow/patched.py")
        sys.modules["verl.patched"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["verl.patched"])
PY
  # shellcheck disable=SC2016  # filled in by the helper
  printf '%s\n' 'workload: sft' 'env_vars:' '  PYTHONPATH: ${shared_root}/user/code/shadow' '  VERL_REGRESS_HOOKS: verl_rehearsal,shadow_hook' \
    >"${BATS_FILE_TMPDIR}/spec.yaml"
}

# identity QUERY: of the comparison at the end of the job.
identity() { jq -r "$1" "${job}/state/identity"; }

@test "SFT: four steps of two releases, which changed the weights, and a checkpoint" {
  for one in a b; do
    has_trained "$one"
    assert_status 0
    [[ $(jq -s '[.[] | select(.data["val/loss"] == null).step] == [1, 2, 3, 4]' "${job}/logs/metrics.jsonl") == true ]] || fail 'other steps'
    weights::changed "$job" || fail 'no weights changed'
    compgen -G "${job}/checkpoints/global_step_4/*"
    assert_line ' *step 4 of 4, train/loss [0-9.]+'
    [[ $(jq -r '.argv[2]' "${job}/config/resolved.json") == verl.trainer.sft_trainer_ray ]]
  done
}

@test "SFT: a device for each worker, and a driver that has none" {
  has_trained a
  asked=$(container::api '/api/v0/placement_groups?detail=1&limit=1000' |
    jq -c --arg job "$(container::api "/api/jobs/${job##*/}" | jq -r .job_id)" \
      '[.data.result.result[] | select(.creator_job_id == $job).bundles[].unit_resources | keys] | unique')
  [[ $asked == '[["CPU","cpu"]]' ]] || fail "the placement groups ask for ${asked}"
  [[ $(identity '.passed') == true && $(identity '.actors_by_class.TrainingWorker') == 2 ]]
}

@test "two releases at once: each has its own code, and every actor proved it" {
  has_trained b
  b=$job
  has_trained a
  a=$job
  [[ $(jq -r .time "${a}/state/started") < $(jq -r .time "${b}/state/ended") ]]
  [[ $(jq -r .time "${b}/state/started") < $(jq -r .time "${a}/state/ended") ]]
  [[ $(jq -r .files_sha256 "${a}/state/identity") != "$(jq -r .files_sha256 "${b}/state/identity")" ]]
  for one in "$a codeA" "$b verl071"; do
    [[ $(jq '.passed and .actors >= 2' "${one% *}/state/identity") == true ]]
    files=$(jq -r '.modules[].file' "${one% *}"/state/reports/identity-*.json)
    [[ -n $files ]]
    run ! grep -v "^/private/common/code/verl/${one#* }/" <<<"$files"
  done
}

@test "an actor that loaded a module from elsewhere: FAILED, and the reason says so" {
  has_trained shadowed
  assert_status 3
  assert_line ' *step 1 of 1, .*train/loss .*'
  assert_line ' *1 of 1 training steps, .*'
  assert_line "error   .* FAILED \(identity: process [0-9]+ on worker-[01] \(.*\) loaded verl.patched from ${WORKDIR}/shared/user/code/shadow/patched.py, which is not under ${WORKDIR}/shared/common/code/verl/codeA.*: see state/identity of the job\.\): read .*"
  [[ $(identity .passed) == false && $(jq .exit_code "${job}/state/ended") == 1 ]]
  [[ $(container::api "/api/jobs/${job##*/}" | jq -r .status) == FAILED ]]
}
