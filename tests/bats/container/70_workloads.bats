#!/usr/bin/env bats
# GRPO and SFT on the real trainers, a user's reward function, two releases at the same time, and jobs that fail because a process
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

@test "GRPO: ten steps of main_ppo without a critic, a checkpoint, and every actor proved its code" {
  run scripts/41_submit_grpo_epoch1.sh
  trained 10
  assert_line ' *step 10 of 10, .*critic/score/mean [0-9.]+'
  [[ $(jq -r '.argv[2]' "${job}/config/resolved.json") == verl.trainer.main_ppo ]]
  [[ $(jq -s 'all(.data["critic/vf_loss"] == null and .data["actor/kl_loss"] != null)' "${job}/logs/metrics.jsonl") == true ]]
  [[ ! -e ${job}/checkpoints/global_step_10/critic ]]
  [[ $(identity .passed) == true ]]
  [[ $(identity '.actors_by_class.TaskRunnerV1') == 1 && $(identity .actors) == "$(actors)" ]]
  JOB=${job##*/} run scripts/53_fidelity.sh
  assert_status 0
  assert_line 'ok      groups whose answers differ: [1-9][0-9]* of the first [1-9][0-9]* .*'
  printf '%s\n' "$job" >"${BATS_FILE_TMPDIR}/grpo"
}

@test "two GRPO jobs of the V1 trainer at once, the first is stopped: the other trains on, and as one alone does" {
  source scripts/lib/wait.bash
  run env WAIT= MAX_RUNNING=2 OVERRIDES='trainer.total_epochs=99 trainer.total_training_steps=200' scripts/41_submit_grpo_epoch1.sh
  assert_status 0
  first=$(job_of "$output")
  MAX_RUNNING=2 scripts/41_submit_grpo_epoch1.sh >"${BATS_TEST_TMPDIR}/second" 2>&1 &
  wait::until 200 - grep -q 'step 1 of 10' "${BATS_TEST_TMPDIR}/second" || fail "$(<"${BATS_TEST_TMPDIR}/second")"
  second=$(job_of "$(<"${BATS_TEST_TMPDIR}/second")")
  wait::until 200 - test -s "${first}/logs/metrics.jsonl" || fail 'the first does not come to its first step'
  [[ ! -e ${first}/state/ended && ! -e ${second}/state/ended ]] # both train at this moment
  JOB=${first##*/} scripts/54_stop.sh
  wait "$!" || fail "$(<"${BATS_TEST_TMPDIR}/second")"
  container::same_metrics "$(<"${BATS_FILE_TMPDIR}/grpo")" "$second"
}

@test "SFT: ten steps, a device for each worker, a driver that has none, a checkpoint, the loss in every line" {
  OVERRIDES='trainer.total_training_steps=10' run scripts/42_submit_sft_minimal.sh
  trained 10
  assert_line ' *step 10 of 10, train/loss [0-9.]+'
  [[ $(jq -r '.argv[2]' "${job}/config/resolved.json") == verl.trainer.sft_trainer_ray ]]
  asked=$(container::api '/api/v0/placement_groups?detail=1&limit=1000' |
    jq -c --arg job "$(container::api "/api/jobs/${job##*/}" | jq -r .job_id)" \
      '[.data.result.result[] | select(.creator_job_id == $job).bundles[].unit_resources | keys] | unique')
  [[ $asked == '[["CPU","cpu"]]' ]] || fail "the placement groups ask for ${asked}"
  [[ $(identity '.passed') == true && $(identity '.actors_by_class.TrainingWorker') == 2 ]]
}

@test "two releases train at once with the user's reward function, each with its own code; one has the V0 trainer of 0.9.1" {
  export OVERRIDES='trainer.total_training_steps=2 trainer.save_freq=2'
  CODE_ID=codeA OVERRIDES="${OVERRIDES} trainer.use_v1=False" scripts/44_submit_sdk.sh examples/grpo_reward_fn.yaml >"${BATS_TEST_TMPDIR}/a" 2>&1 &
  CODE_ID=verl071 run scripts/44_submit_sdk.sh examples/grpo_reward_fn.yaml
  b=$output
  wait "$!" || fail "$(<"${BATS_TEST_TMPDIR}/a")"
  for output in "$(<"${BATS_TEST_TMPDIR}/a")" "$b"; do
    trained 2
    jq -r '.argv[]' "${job}/config/resolved.json" | grep -x 'reward.custom_reward_function.path=/private/user/code/examples/reward_fn.py'
    # 0.1 for any number: GSM8K's own function returns only 0 and 1.
    [[ $(jq -s 'any(.data["critic/score/mean"] * 8 | (. - floor) as $rest | $rest > 0.01 and $rest < 0.99)' "${job}/logs/metrics.jsonl") == true ]]
  done
  a=$(job_of "$(<"${BATS_TEST_TMPDIR}/a")") b=$(job_of "$b")
  [[ $(jq -r .time "${a}/state/started") < $(jq -r .time "${b}/state/ended") ]]
  [[ $(jq -r .time "${b}/state/started") < $(jq -r .time "${a}/state/ended") ]]
  [[ $(jq -r .files_sha256 "${a}/state/identity") != "$(jq -r .files_sha256 "${b}/state/identity")" ]]
  for one in "$a codeA" "$b verl071"; do
    files=$(jq -r '.modules[].file' "${one% *}"/state/reports/identity-*.json)
    [[ -n $files ]]
    run ! grep -v "^/private/common/code/verl/${one#* }/" <<<"$files"
  done
}

@test "a reward function of the user's that raises is named with its line and the step" {
  mkdir -p "${WORKDIR}/shared/user/code/raises"
  printf '%s\n' 'def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_kwargs):' \
    '    return extra_info["solution"]' >"${WORKDIR}/shared/user/code/raises/reward_fn.py"
  # shellcheck disable=SC2016  # filled in by the helper
  printf '%s\n' 'workload: grpo' 'reward_fn_path: ${shared_root}/user/code/raises/reward_fn.py' >"${BATS_TEST_TMPDIR}/spec.yaml"
  run scripts/44_submit_sdk.sh "${BATS_TEST_TMPDIR}/spec.yaml"
  assert_status 3
  assert_line "error   .* FAILED \(the trainer ended with exit status 1: KeyError: 'solution' \(user/code/raises/reward_fn\.py:2, at step 1\)\): read .*"
  assert_line '        \|     return extra_info\["solution"\]'
}

@test "SFT on a column that the data lack says which, where, and what to compare" {
  OVERRIDES='data.messages_key=conversation' run scripts/42_submit_sft_minimal.sh
  assert_status 3
  assert_line "error   .* FAILED \(the trainer ended with exit status 1: KeyError: 'conversation' \(verl/utils/dataset/multiturn_sft_dataset\.py:[0-9]+, before the first step\)\): read .*"
  assert_line "        hint: the data has no column 'conversation': .*"
}

@test "training succeeds but one actor loaded a module from elsewhere: FAILED, and the reason says so" {
  mkdir -p "${WORKDIR}/shared/user/code/shadow"
  printf 'HERE = 1\n' >"${WORKDIR}/shared/user/code/shadow/patched.py"
  cat >"${WORKDIR}/shared/user/code/shadow/reward_fn.py" <<'PY'
import importlib.util
import sys

spec = importlib.util.spec_from_file_location("verl.patched", "/private/user/code/shadow/patched.py")
sys.modules["verl.patched"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["verl.patched"])


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_kwargs):
    return 0.5
PY
  # shellcheck disable=SC2016  # filled in by the helper
  printf '%s\n' 'workload: grpo' 'reward_fn_path: ${shared_root}/user/code/shadow/reward_fn.py' >"${BATS_TEST_TMPDIR}/spec.yaml"
  # Without the file logger as well: then the steps come from the driver's log.
  OVERRIDES='trainer.total_training_steps=2 trainer.logger=[console]' run scripts/44_submit_sdk.sh "${BATS_TEST_TMPDIR}/spec.yaml"
  assert_status 3
  assert_line ' *step 1 of 2, .* s a step, critic/score/mean .*'
  assert_line ' *2 of 2 training steps, .*'
  assert_line "error   .* FAILED \(identity: process [0-9]+ on [0-9a-f]+ \(.*\) loaded verl.patched from ${WORKDIR}/shared/user/code/shadow/patched.py, which is not under ${WORKDIR}/shared/common/code/verl/codeA.*: see state/identity of the job\.\): read .*"
  job=$(job_of "$output")
  [[ $(identity .passed) == false && $(jq .exit_code "${job}/state/ended") == 1 ]]
  [[ $(container::api "/api/jobs/${job##*/}" | jq -r .status) == FAILED ]]
}

@test "a verl that only starts Ray and writes metrics ends well, and does not pass for one that trained" {
  cp -r "${WORKDIR}/shared/common/code/verl/codeA/verl" "$BATS_TEST_TMPDIR"
  chmod -R u+w "${BATS_TEST_TMPDIR}/verl"
  cat >"${BATS_TEST_TMPDIR}/verl/trainer/main_ppo.py" <<'PY'
import json
import os

import hydra
import ray


@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    ray.init()
    with open(os.environ["VERL_FILE_LOGGER_PATH"], "w") as metrics:
        for step in (1, 2):
            metrics.write(json.dumps({"step": step, "data": {"critic/score/mean": 0.1 * step}}) + "\n")


if __name__ == "__main__":
    main()
PY
  CODE_ID=stub VERL_SOURCE="path:${BATS_TEST_TMPDIR}" scripts/31_snapshot_verl_code.sh
  CODE_ID=stub OVERRIDES=trainer.total_training_steps=2 run scripts/40_submit_ppo_epoch1.sh
  assert_status 0
  assert_line ' *2 of \? training steps, no checkpoint'
  job=$(job_of "$output")
  [[ $(identity .passed) == true ]] # it ran the code that was asked for
  run ! weights::changed "$job"
}

@test "a marker that is not the snapshot's own fails the job before it trains" {
  snapshot="${WORKDIR}/shared/common/code/verl/codeA"
  chmod u+w "$snapshot" "${snapshot}/mvp_marker.py"
  printf 'MARKER = "swapped"\n' >"${snapshot}/mvp_marker.py"
  run scripts/42_submit_sft_minimal.sh
  printf 'MARKER = "codeA"\n' >"${snapshot}/mvp_marker.py"
  chmod a-w "$snapshot" "${snapshot}/mvp_marker.py"
  assert_status 3
  assert_line ' *MVP_PRECHECK_MARKER: swapped'
  [[ $output == *"FAILED (The job imported verl from ${WORKDIR}/shared/common/code/verl/codeA/verl/__init__.py with marker swapped, but "* ]] || fail 'another reason'
}
