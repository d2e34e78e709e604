#!/usr/bin/env bats
# `make quickstart` from start to end, checked against its output, the files and Ray itself; then the same cluster from a tarball.

setup_file() {
  load container_helper
  container::use quick 18265
  (
    set -o pipefail
    make --no-print-directory quickstart 2>&1 | tee "${BATS_FILE_TMPDIR}/first" |
      while IFS= read -r line; do printf '%d %s\n' "$SECONDS" "$line"; done >"${BATS_FILE_TMPDIR}/first-by-seconds"
  ) || {
    container::show_end "${BATS_FILE_TMPDIR}/first"
    return 1
  }
  mkdir -p build/reports
  cp "${BATS_FILE_TMPDIR}/first" build/reports/quickstart.log # what the README shows (maintain/readme_capture.sh)
  JOB=$(grep -xE 'ppo-codeA-[0-9TZ]+-[0-9a-f]{4}' "${BATS_FILE_TMPDIR}/first")
  export JOB
  export JOB_DIR="${WORKDIR}/shared/jobs/${JOB}"
}

setup() {
  load container_helper
  output=$(<"${BATS_FILE_TMPDIR}/first")
}

@test "it prints the submission id, SUCCEEDED, and where verl came from" {
  assert_line "ok      ${JOB} SUCCEEDED \(the trainer ended\)"
  assert_line " *MVP_PRECHECK_VERL_FILE: /private/common/code/verl/codeA/verl/__init__.py"
  assert_line " *MVP_PRECHECK_MARKER: codeA"
}

@test "no phase is silent for more than ten seconds, also before step 1" {
  run awk 'NR > 1 && $1 - last > 15 { print last " to " $0 } { last = $1 } END { print NR " lines" }' "${BATS_FILE_TMPDIR}/first-by-seconds"
  [[ $output =~ ^[1-9][0-9]+\ lines$ ]] || fail 'a silence'
  output=$(sed -n "/${JOB} is RUNNING/,/step 1 of 10/p" "${BATS_FILE_TMPDIR}/first")
  assert_line ' *… proving the code that it imports'
  assert_line ' *… starting the trainer, or in its first step'
}

@test "what is printed can be used where the command was typed" {
  assert_line " *outputs: ${JOB_DIR}"
  assert_line "ok      dashboard: http://127.0.0.1:${DASHBOARD_PORT}, token in ${WORKDIR}/secrets/${CLUSTER_NAME}.token"
  [[ -d $JOB_DIR && -s ${WORKDIR}/secrets/${CLUSTER_NAME}.token ]]
  run ! grep -v MVP_PRECHECK_ <(grep -F "/private/" "${BATS_FILE_TMPDIR}/first")
}

@test "the driver ran on a worker, not on the head, by Ray's own word" {
  driver=$(container::api "/api/jobs/${JOB}" | jq -r .driver_info.node_ip_address)
  [[ $driver == "$(container::ip worker-0)" || $driver == "$(container::ip worker-1)" ]]
  [[ $driver != "$(container::ip head)" ]]
  assert_line " *driver_info.node_ip_address: ${driver}"
}

@test "ten steps of main_ppo with a critic, and checkpoints/global_step_10 of both" {
  assert_line " *10 of 10 training steps, checkpoints/global_step_10"
  [[ $(jq -s 'map(.step) == [range(1; 11)]' "${JOB_DIR}/logs/metrics.jsonl") == true ]]
  [[ $(jq -s 'all(.data["critic/vf_loss"] != null)' "${JOB_DIR}/logs/metrics.jsonl") == true ]]
  [[ $(jq -r '.argv[2]' "${JOB_DIR}/config/resolved.json") == verl.trainer.main_ppo ]]
  compgen -G "${JOB_DIR}/checkpoints/global_step_10/actor/model_world_size_2_rank_*.pt"
  compgen -G "${JOB_DIR}/checkpoints/global_step_10/critic/model_world_size_2_rank_*.pt"
}

@test "the actors ran on both workers, and each proved its code, by Ray's own word" {
  job=$(container::api "/api/jobs/${JOB}" | jq -r .job_id)
  nodes=$(container::api '/api/v0/nodes?detail=1' | jq '[.data.result.result[] | {(.node_id): .node_ip}] | add')
  places=$(container::api "/api/v0/actors?detail=1&limit=1000&filter_keys=job_id&filter_predicates=%3D&filter_values=${job}" |
    jq -r --argjson nodes "$nodes" '.data.result.result[] | select(.class_name | endswith("WorkerDict")) | $nodes[.node_id]' | sort)
  actors=$(container::api "/api/v0/actors?detail=1&limit=1000&filter_keys=job_id&filter_predicates=%3D&filter_values=${job}" |
    jq '[.data.result.result[] | select(.pid > 0)] | length')
  [[ $(jq -c '[.passed, .actors]' "${JOB_DIR}/state/identity") == "[true,${actors}]" ]] || fail "${actors} actors, $(<"${JOB_DIR}/state/identity")"
  [[ $places == "$(printf '%s\n' "$(container::ip worker-0)" "$(container::ip worker-1)" | sort)" ]] || fail "actors ran on: ${places}"
}

@test "fidelity: rollout and actor agree at steps 1 and 10, weights after every update" {
  assert_line 'ok      rollout_actor_probs_pearson_corr at step 1: 0\.999[0-9]+ .*'
  assert_line 'ok      rollout_actor_probs_pearson_corr at step 10: 0\.999[0-9]+ .*'
  assert_line "ok      rollout's weights hash equal to the actor's: 22 of 22 updates on 2 replicas, 11 distinct weights"
  assert_line 'ok      fidelity: 11 of 11 checks passed'
  [[ $(jq -s '[.[0, 9].data["training/rollout_actor_probs_pearson_corr"] >= 0.999] | all' "${JOB_DIR}/logs/metrics.jsonl") == true ]]
  [[ $(jq -s '[.[].data["actor/lr"] >= 0.0001] | all' "${JOB_DIR}/logs/metrics.jsonl") == true ]]
}

@test "the seconds of every phase are at the end" {
  for phase in bootstrap_host 05_choose_gpus 10_build_image 01_up 11_doctor 20_start_head 21_start_workers 30_prepare_data_and_model \
    31_snapshot_verl_code 44_submit_sdk; do
    assert_line " +[0-9.]+ s  ${phase}"
  done
}

@test "the submission was made in the head: Ray's metadata has its id and address" {
  metadata=$(container::api "/api/jobs/${JOB}" | jq -c .metadata)
  [[ $(jq -r .submitted_from_container <<<"$metadata") == "$(docker inspect --format '{{.Id}}' "${CLUSTER_NAME}-head")" ]]
  [[ $(jq -r .submitted_from_ip <<<"$metadata") == "$(container::ip head)" ]]
}

@test "make status: the nodes and the job, and where it ran" {
  run make --no-print-directory status
  assert_line 'profile cpu \(rehearsal: no GPU\), cluster vrtest-quick'
  assert_line 'head +[0-9.]+ +ALIVE +0 +0 +0'
  assert_line "${JOB} +codeA +SUCCEEDED +worker-[01] \([0-9.]+\)"
}

@test "the token is readable by its owner alone, and in no file of the job" {
  token=$(<"${WORKDIR}/secrets/${CLUSTER_NAME}.token")
  [[ ${#token} == 64 && $(stat -c %a "${WORKDIR}/secrets/${CLUSTER_NAME}.token") == 600 ]]
  run ! grep -rF "$token" "${WORKDIR}/shared/jobs"
  run ! grep -F "$token" <(container::api "/api/jobs/${JOB}")
  run docker exec "${CLUSTER_NAME}-worker-0" python3 -c 'import urllib.request; urllib.request.urlopen("http://head:8265/api/jobs/")'
  [[ $status != 0 && $output == *'HTTP Error 401'* ]] || fail 'without the token Ray answers'
}

# Of this cluster alone: another suite starts and removes its own beside this one.
containers() { docker ps --no-trunc --filter "label=verl-regress.cluster=${CLUSTER_NAME}" --format '{{.ID}} {{.Names}}' | sort; }

@test "make up, prepare and snapshot work from the tarball of make dist, without git" {
  tarball=$(maintain/dist.sh)
  tar -C "$BATS_FILE_TMPDIR" -xzf "$tarball"
  unpacked="${BATS_FILE_TMPDIR}/$(basename "$tarball" .tar.gz)"
  ln -s "${REPO}/.venv" "${unpacked}/.venv"
  [[ ! -e ${unpacked}/.git ]]
  before=$(containers)
  run make --no-print-directory -C "$unpacked" up prepare snapshot
  assert_status 0
  assert_line 'skip    the nodes \(nothing to change\)'
  assert_line "skip    Ray's head \(nothing to change\)"
  assert_line "skip    Ray's workers \(nothing to change\)"
  assert_line "skip    ${WORKDIR}/shared/datasets/sums \(exists, same source\)"
  assert_line "skip    ${WORKDIR}/shared/common/models/tiny-qwen2 \(exists, same source\)"
  assert_line 'skip    snapshot codeA at .*'
  [[ $(grep -c '^changed' <<<"$output") == 0 ]] || fail 'something was changed'
  [[ -n $before && $before == "$(containers)" ]] || fail "before ${before}, after $(containers)"
}
