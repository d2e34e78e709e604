#!/usr/bin/env bats
# GRPO and SFT on the real trainers, a user's reward function, two releases at the same time, and a job that fails because a process
# ran other code than the snapshot's.

setup_file() {
  load container_helper
  container::use quick 18265
  container::cluster
  CODE_ID=verl071 VERL_SOURCE=pypi:0.7.1 scripts/31_snapshot_verl_code.sh
  export WAIT=1
}

setup() {
  load container_helper
  load weights
}

# job_of FILE: the directory of the job whose submission printed FILE.
job_of() { printf '%s/shared/jobs/%s\n' "$WORKDIR" "$(grep -xE '[a-z]+-[A-Za-z0-9]+-[0-9TZ]+-[0-9a-f]{4}' <<<"$1")"; }

# trained STEPS: it SUCCEEDED with that many steps in metrics.jsonl, which changed the weights, and a checkpoint of the last one.
trained() {
  assert_status 0
  job=$(job_of "$output")
  [[ $(jq -s "[.[] | select(.data[\"val/loss\"] == null).step] == [range(1; $1 + 1)]" "${job}/logs/metrics.jsonl") == true ]] || fail 'other steps'
  weights::changed "$job" || fail 'no weights changed'
  compgen -G "${job}/checkpoints/global_step_$1/*"
}

# actors: how many actor processes the job had, according to Ray's own table.
actors() {
  local id
  id=$(container::api "/api/jobs/${job##*/}" | jq -r .job_id)
  container::api "/api/v0/actors?detail=1&limit=1000&filter_keys=job_id&filter_predicates=%3D&filter_values=${id}" |
    jq '[.data.result.result[] | select(.pid > 0)] | length'
}

# identity QUERY: of the comparison at the end of the job.
identity() { jq -r "$1" "${job}/state/identity"; }

@test "SFT: four steps, a device for each worker, a checkpoint, the loss in every line" {
  OVERRIDES='trainer.total_training_steps=4 trainer.save_freq=4' run scripts/42_submit_sft_minimal.sh
  trained 4
  assert_line ' *step 4 of 4, train/loss [0-9.]+'
  [[ $(jq -r '.argv[2]' "${job}/config/resolved.json") == verl.trainer.sft_trainer_ray ]]
  asked=$(container::api '/api/v0/placement_groups?detail=1&limit=1000' |
    jq -c --arg job "$(container::api "/api/jobs/${job##*/}" | jq -r .job_id)" \
      '[.data.result.result[] | select(.creator_job_id == $job).bundles[].unit_resources | keys] | unique')
  [[ $asked == '[["CPU","cpu"]]' ]] || fail "the placement groups ask for ${asked}"
  [[ $(identity '.passed') == true && $(identity '.actors_by_class.TrainingWorker') == 2 ]]
}

@test "GRPO of two releases at once, with a reward function: each has its own code" {
  export OVERRIDES='trainer.total_training_steps=2 trainer.save_freq=2'
  CODE_ID=codeA scripts/44_submit_sdk.sh examples/grpo_reward_fn.yaml >"${BATS_TEST_TMPDIR}/a" 2>&1 &
  CODE_ID=verl071 OVERRIDES="${OVERRIDES} trainer.nnodes=1" run scripts/44_submit_sdk.sh examples/grpo_reward_fn.yaml
  b=$output
  wait "$!" || fail "$(<"${BATS_TEST_TMPDIR}/a")"
  for output in "$b" "$(<"${BATS_TEST_TMPDIR}/a")"; do
    trained 2
    jq -r '.argv[]' "${job}/config/resolved.json" | grep -x 'reward.custom_reward_function.path=/private/user/code/examples/reward_fn.py'
    # 0.1 for any number: GSM8K's own function returns only 0 and 1.
    [[ $(jq -s 'any(.data["critic/score/mean"] * 8 | (. - floor) as $rest | $rest > 0.01 and $rest < 0.99)' "${job}/logs/metrics.jsonl") == true ]]
    [[ $(identity .passed) == true && $(identity .actors) == "$(actors)" ]]
  done
  # The one of 0.9.1: no critic, and answers that differ within a group.
  [[ $(jq -s 'all(.data["critic/vf_loss"] == null and .data["actor/kl_loss"] != null)' "${job}/logs/metrics.jsonl") == true ]]
  [[ ! -e ${job}/checkpoints/global_step_2/critic && $(identity '.actors_by_class.TaskRunnerV1') == 1 ]]
  JOB=${job##*/} run scripts/53_fidelity.sh
  assert_status 0
  assert_line 'ok      groups whose answers differ: [1-9][0-9]* of the first [1-9][0-9]* .*'
  a=$job b=$(job_of "$b")
  [[ $(jq -r .time "${a}/state/started") < $(jq -r .time "${b}/state/ended") ]]
  [[ $(jq -r .time "${b}/state/started") < $(jq -r .time "${a}/state/ended") ]]
  [[ $(jq -r .files_sha256 "${a}/state/identity") != "$(jq -r .files_sha256 "${b}/state/identity")" ]]
  for one in "$a codeA" "$b verl071"; do
    files=$(jq -r '.modules[].file' "${one% *}"/state/reports/identity-*.json)
    [[ -n $files ]]
    run ! grep -v "^/private/common/code/verl/${one#* }/" <<<"$files"
  done
}

@test "an actor that loaded a module from elsewhere: FAILED, and the reason says so" {
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
    >"${BATS_TEST_TMPDIR}/spec.yaml"
  OVERRIDES=trainer.total_training_steps=1 run scripts/44_submit_sdk.sh "${BATS_TEST_TMPDIR}/spec.yaml"
  assert_status 3
  assert_line ' *step 1 of 1, .*train/loss .*'
  assert_line ' *1 of 1 training steps, .*'
  assert_line "error   .* FAILED \(identity: process [0-9]+ on [0-9a-f]+ \(.*\) loaded verl.patched from ${WORKDIR}/shared/user/code/shadow/patched.py, which is not under ${WORKDIR}/shared/common/code/verl/codeA.*: see state/identity of the job\.\): read .*"
  job=$(job_of "$output")
  [[ $(identity .passed) == false && $(jq .exit_code "${job}/state/ended") == 1 ]]
  [[ $(container::api "/api/jobs/${job##*/}" | jq -r .status) == FAILED ]]
}
