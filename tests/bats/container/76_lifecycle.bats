#!/usr/bin/env bats
# The life of a job on a real cluster: stopped while it trains, resumed, followed by a wait that is cut off, stopped while it waits. Listed
# while the cluster is down: 79_cluster.bats; retried: 95_readme.bats.

setup_file() {
  load container_helper
  container::use quick 18265
  container::cluster
}

setup() {
  load container_helper
  load weights
}

job_dir() { printf '%s/shared/jobs/%s\n' "$WORKDIR" "$1"; }

# await SECONDS COMMAND...: waits until it is true.
await() { timeout "$1" bash -c 'source scripts/lib/wait.bash; wait::until "$@"' await "$1" - "${@:2}"; }

# too_big ID: a job that waits for resources as long as we let it.
too_big() {
  printf '%s\n' 'workload: ppo' 'resources: {entrypoint_resources: {worker_node: 1000}}' >"${BATS_TEST_TMPDIR}/big.yaml"
  SUBMISSION_ID=$1 scripts/44_submit_sdk.sh "${BATS_TEST_TMPDIR}/big.yaml"
}

# waits [SIGNAL]: the processes in the head that follow a job, one per line; with SIGNAL they receive it.
waits() {
  docker exec "${CLUSTER_NAME}-head" python3 -c '
import os, pathlib, sys
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    words = path.read_bytes().split(b"\0")
    if b"--attached" in words and int(path.parent.name) != os.getpid():
        print(path.parent.name)
        if len(sys.argv) > 1:
            os.kill(int(path.parent.name), int(sys.argv[1]))' "$@"
}

# of_worker WORKER NAMESPACE... -- COMMAND...: a command of this machine's root in namespaces of that worker.
of_worker() { nsenter --target "$(docker inspect --format '{{.State.Pid}}' "${CLUSTER_NAME}-$1")" "${@:2}"; }

# name_both NAME...: gives worker-0 and worker-1 these hostnames; prints those before.
name_both() {
  local worker address
  for worker in worker-0 worker-1; do
    docker exec "${CLUSTER_NAME}-${worker}" hostname
    address=$(docker inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "${CLUSTER_NAME}-${worker}")
    docker exec --user 0 "${CLUSTER_NAME}-${worker}" sh -c 'grep -qw "$1" /etc/hosts || echo "$2 $1" >>/etc/hosts' name "$1" "$address"
    of_worker "$worker" --uts -- hostname "$1"
    shift
  done
}

# same_pid WORKER PID...: a process of the job's user there that no job knows, with the first of these ids that is free; prints which.
# shellcheck disable=SC2016  # expanded there
same_pid() {
  of_worker "$1" --pid -- sh -ec '
    user=$1
    shift
    for pid; do
      echo "$((pid - 1))" >/proc/sys/kernel/ns_last_pid
      setpriv --reuid "$user" --clear-groups sleep 1002 >/dev/null 2>&1 3>&- &
      if [ "$!" = "$pid" ]; then echo "$pid" && exit; fi
      kill "$!"
    done' same_pid "$(docker exec "${CLUSTER_NAME}-$1" id -u)" "${@:2}"
}

@test "make stop ends a running job, which leaves no process, and then skips it" {
  mapfile -t hostnames < <(name_both same same)
  SUBMISSION_ID=half run scripts/42_submit_sft_minimal.sh
  assert_status 9
  assert_line 'error   VR-NET-12, worker-0, worker-1: each is called same, so NCCL may take them for one machine, .*'
  of_worker worker-0 --pid -- sh -c 'echo 30000 >/proc/sys/kernel/ns_last_pid' # its next ids are free on worker-1
  export SKIP_DOCTOR=VR-NET-12
  job=$(SUBMISSION_ID=half OVERRIDES='trainer.total_epochs=99 trainer.total_training_steps=400 trainer.save_freq=2' scripts/42_submit_sft_minimal.sh 2>/dev/null)
  await 600 test -d "$(job_dir "$job")/checkpoints/global_step_6" # so two are complete
  mapfile -t pids < <(jq 'select(.node == "worker-0").pid' "$(job_dir half)"/state/reports/identity-*.json)
  pid=$(same_pid worker-1 "${pids[@]}")
  touch "$(job_dir half)"/state/reports/*.json # reports are written again while a process loads modules
  run make --no-print-directory stop JOB="$job"
  assert_status 0
  [[ $(docker exec "${CLUSTER_NAME}-worker-1" ps -o args= -p "$pid") == 'sleep 1002' ]] || fail "process ${pid} of worker-1 was not the job's, and is gone"
  of_worker worker-1 --pid -- kill "$pid"
  name_both "${hostnames[@]}"
  assert_line 'changed half was RUNNING, is STOPPED \(Job was intentionally stopped\.\)'
  [[ $(jq -r .status "$(job_dir half)/state/observed") == STOPPED && -s $(job_dir half)/state/ended ]]
  compgen -G "$(job_dir half)/debug/*Z-ended/bundle.json"
  ray_id=$(container::api /api/jobs/half | jq -r .job_id)
  [[ $(container::api "/api/v0/actors?detail=1&limit=1000" | jq "[.data.result.result[] | select(.job_id == \"${ray_id}\" and .state != \"DEAD\")] | length") == 0 ]]
  run make --no-print-directory stop JOB=half
  assert_status 0
  assert_line 'skip    half is over: STOPPED \(Job was intentionally stopped\.\)'
  JOB=half run scripts/52_wait.sh
  assert_status 4
}

@test "make resume continues from the newest checkpoint, and keeps the first attempt" {
  newest=$(<"$(job_dir half)/checkpoints/latest_checkpointed_iteration.txt")
  rm -r "$(job_dir half)/checkpoints/global_step_${newest}" # the first attempt went on from the one before
  step=$((newest - 2))
  ((step < 400)) || fail 'it was stopped too late'
  mkdir "$(job_dir half)/checkpoints/global_step_399" # like a job that died while it saved
  before=$(cd "$(job_dir half)" && find . -type f -print0 | sort -z | xargs -0 sha256sum)
  end=$((step + 4))
  run make --no-print-directory resume JOB=half WAIT=1 OVERRIDES="trainer.total_training_steps=${end}"
  assert_status 0
  assert_line "        attempt 2 of half, as asked for half, from $(job_dir half)/checkpoints/global_step_${step} \(step ${step}\)"
  assert_line 'half.a2'
  assert_line "        ${end} of ${end} training steps, .*checkpoints/global_step_${end}"
  [[ $(METRICS=1 JOB=half scripts/51_logs.sh 2>/dev/null | jq -c 'select(.data["val/loss"] == null).step' | paste -sd' ') == "$(seq -s' ' "$end")" ]]
  [[ $(jq -c .parent "$(job_dir half)/attempts/2/config/resolved.json") == "{\"attempt\":1,\"checkpoint\":\"/private/jobs/half/checkpoints/global_step_${step}\",\"step\":${step}}" ]]
  [[ $(container::api /api/jobs/half.a2 | jq -r '.metadata | .parent_attempt + " " + .parent_step') == "1 ${step}" ]]
  after=$(cd "$(job_dir half)" && find . -path ./attempts -prune -o -type f -print0 | sort -z | xargs -0 sha256sum)
  [[ $before == "$after" ]] || fail "$(diff <(printf '%s\n' "$before") <(printf '%s\n' "$after"))"
  loss() { jq --argjson step "$((step + 1))" 'select(.step == $step).data["train/loss"] | values' "$1/logs/metrics.jsonl"; }
  [[ -n $(loss "$(job_dir half)") && $(loss "$(job_dir half)/attempts/2") == "$(loss "$(job_dir half)")" ]] ||
    fail 'it did not go on with the weights of the checkpoint'
  weights::changed "$(job_dir half)/attempts/2" || fail 'it changed no weights'
  run make --no-print-directory resume JOB=half OVERRIDES="trainer.total_training_steps=${end}"
  assert_line "error   JOB=half has all its ${end} steps done \($(job_dir half)/attempts/2/checkpoints/global_step_${end}\): ask for more, as in OVERRIDES=trainer.total_training_steps=.*"
}

@test "a wait goes on without its connection; stop ends what is left on every node" {
  too_big waiting
  JOB=waiting scripts/52_wait.sh 2>"${BATS_TEST_TMPDIR}/said" 3>&- &
  waiter=$!
  await 120 grep -q 'waiting is PENDING' "${BATS_TEST_TMPDIR}/said"
  [[ $(waits 9 | wc -l) == 1 ]]
  await 120 grep -qxF "        lost the connection to the head; following 'waiting' again when the head is back" "${BATS_TEST_TMPDIR}/said"
  follows_again() { [[ $(grep -c 'waiting is PENDING' "${BATS_TEST_TMPDIR}/said") == 2 ]]; }
  export -f follows_again
  await 120 follows_again

  JOB=waiting setsid env --default-signal=INT scripts/52_wait.sh >"${BATS_TEST_TMPDIR}/cut" 2>&1 3>&- &
  cut=$!
  await 60 grep -q 'waiting is PENDING' "${BATS_TEST_TMPDIR}/cut"
  kill -INT -- "-${cut}"
  container::ended "$cut" "${BATS_TEST_TMPDIR}/cut"
  assert_status 130
  assert_line "        waiting keeps running: 'make wait JOB=waiting' follows it again"
  one_is_left() { [[ $(waits | wc -l) == 1 ]]; }
  export -f one_is_left waits
  await 120 one_is_left

  docker exec --detach --env VERL_REGRESS_JOB_DIR=/private/jobs/waiting "${CLUSTER_NAME}-worker-1" sleep 1000
  docker exec --detach --env VERL_REGRESS_JOB_DIR=/private/jobs/other "${CLUSTER_NAME}-worker-1" sleep 1001
  run make --no-print-directory stop JOB=waiting
  assert_status 0
  assert_line 'changed waiting was PENDING, is STOPPED \(stopped while it waited for resources\)'
  assert_line 'changed worker-1: ended 1 leftover processes of waiting'
  assert_line 'ok      nothing is left of waiting: 3 nodes checked, 1 processes found and ended'
  left=$(docker top "${CLUSTER_NAME}-worker-1" -eo pid,args)
  [[ $left != *'sleep 1000'* && $left == *'sleep 1001'* ]] || fail "$left"

  status=0 && wait "$waiter" || status=$?
  assert_status 4
  run make --no-print-directory status
  assert_line 'waiting +codeA +STOPPED +- +stopped while it waited for resources'
  [[ $(container::api /api/jobs/waiting | jq -r .status) != PENDING ]]
}
