#!/usr/bin/env bats
# Many submissions at the same moment, on a cluster that trains one job at a time: none is lost, none overwrites another, each says behind
# which job it waits. All but the last are stopped at once, while they wait; the last moves up, and trains to its end when it gets the slot.

setup_file() {
  load fault_helper
  fault::use work 18295
  fault::cluster
  export MAX_RUNNING=1 WORKLOAD=sft # the fastest to train
}

setup() { load fault_helper; }

# load::submit COUNT: submits that many at once; their ids, one per line, go to the file ids, their output next to it.
load::submit() {
  local i pids=()
  for ((i = 0; i < $1; i++)); do
    OVERRIDES='trainer.total_training_steps=2 trainer.nnodes=1' scripts/44_submit_sdk.sh >"${BATS_TEST_TMPDIR}/id.${i}" 2>"${BATS_TEST_TMPDIR}/said.${i}" 3>&- &
    pids+=("$!")
  done
  for ((i = 0; i < $1; i++)); do
    wait "${pids[i]}" || fail "submission ${i} ended with $?: $(<"${BATS_TEST_TMPDIR}/said.${i}")"
  done
  cat "${BATS_TEST_TMPDIR}"/id.* >"${BATS_TEST_TMPDIR}/ids"
}

# load::in_order: the jobs of this test, in the order in which they were reserved.
load::in_order() {
  local id
  while read -r id; do
    printf '%s %s\n' "$(stat -c %.Y "${WORKDIR}/shared/jobs/${id}/config")" "$id"
  done <"${BATS_TEST_TMPDIR}/ids" | sort -n | cut -d' ' -f2
}

# load::is_at ID POSITION: the job waits in the queue, at that position.
load::is_at() { [[ -s ${WORKDIR}/shared/jobs/$1/state/queued && $(jq -r .reason "${WORKDIR}/shared/jobs/$1/state/queued") == "$2" ]]; }

load::is_queue_empty() { [[ -z $(ls "${WORKDIR}/shared/queue/${CLUSTER_NAME}") ]]; }

# load::await_position ID POSITION
load::await_position() { wait::until 300 - load::is_at "$@" || fail "$1 is not at '$2': $(cat "${WORKDIR}/shared/jobs/$1/state/queued")"; }

# load::stop ID...: stops all of them at once, while they wait in the queue.
load::stop() {
  local job pids=() i
  for job; do
    JOB=$job scripts/54_stop.sh >"${BATS_TEST_TMPDIR}/stop.${job}" 2>&1 3>&- &
    pids+=("$!")
  done
  for i in "${!pids[@]}"; do
    job=${*:i+1:1}
    wait "${pids[i]}" || fail "$(<"${BATS_TEST_TMPDIR}/stop.${job}")"
    [[ $(jq -r .reason "${WORKDIR}/shared/jobs/${job}/state/ended") == 'stopped while it waited for a slot' ]] || fail "$(<"${BATS_TEST_TMPDIR}/stop.${job}")"
    [[ ! -e ${WORKDIR}/shared/jobs/${job}/state/started ]] || fail "${job} has trained"
  done
  printf '# %d stopped while they waited\n' "${#pids[@]}" >&3
}

# load::run COUNT: behind one job that keeps the only slot until all others are submitted and all but the last are stopped.
load::run() {
  local jobs job dir moments first last i
  fault::begin "$1 submissions at once, one trains at a time"
  first=$(OVERRIDES="${FAULT_EPOCHS} trainer.total_training_steps=5000 trainer.nnodes=1" scripts/44_submit_sdk.sh 2>"${BATS_TEST_TMPDIR}/first") ||
    fail "$(<"${BATS_TEST_TMPDIR}/first")"
  load::submit "$1"
  [[ $(sort -u "${BATS_TEST_TMPDIR}/ids" | wc -l) == "$1" ]] || fail "$(<"${BATS_TEST_TMPDIR}/ids")"
  mapfile -t jobs < <(load::in_order)
  for job in "${jobs[@]}"; do
    dir="${WORKDIR}/shared/jobs/${job}"
    [[ $(jq -r .accepted "${dir}/state/submitted") == true && $(jq -r .submission_id "${dir}/config/resolved.json") == "$job" ]] || fail "$job"
  done
  [[ $(container::api /api/jobs/ | jq -r '.[].submission_id' | grep -cxFf "${BATS_TEST_TMPDIR}/ids") == "$1" ]] || fail 'Ray does not have them all'
  load::await_position "${jobs[0]}" "position 1 of $1: behind ${first} (MAX_RUNNING=1)"
  for ((i = 1; i < $1; i++)); do load::await_position "${jobs[i]}" "position $((i + 1)) of $1: behind ${jobs[i - 1]}"; done
  run make --no-print-directory status
  assert_status 0
  assert_line "${jobs[0]} +codeA +QUEUED +- +position 1 of $1: behind ${first} \(MAX_RUNNING=1\)"
  assert_line "${jobs[1]} +codeA +QUEUED +- +position 2 of $1: behind ${jobs[0]}"
  last=${jobs[-1]}
  load::stop "${jobs[@]:0:$1-1}"
  load::await_position "$last" "position 1 of 1: behind ${first} (MAX_RUNNING=1)"

  JOB=$last timeout 600 scripts/52_wait.sh >"${BATS_TEST_TMPDIR}/wait" 2>&1 3>&- &
  wait::until 120 - grep -q "${last} is QUEUED (position 1 of 1: behind ${first} (MAX_RUNNING=1))" "${BATS_TEST_TMPDIR}/wait" || fail "$(<"${BATS_TEST_TMPDIR}/wait")"
  JOB=$first scripts/54_stop.sh >"${BATS_TEST_TMPDIR}/stop" 2>&1 || fail "$(<"${BATS_TEST_TMPDIR}/stop")"
  wait "$!" || fail "${last}: $(<"${BATS_TEST_TMPDIR}/wait")"
  dir="${WORKDIR}/shared/jobs/${last}"
  grep -q '"step":2' <(tr -d ' ' <"${dir}/logs/metrics.jsonl") || fail "${last} did not take its steps"
  weights::changed "$dir" || fail "${last} changed no weights"
  # One at a time, in queue order.
  moments=$(cd "${WORKDIR}/shared/jobs" && for job in "$first" "$last"; do jq -r .time "${job}/state/turn" "${job}/state/ended"; done)
  [[ $(wc -l <<<"$moments") == 4 && $moments == "$(sort <<<"$moments")" ]] || fail "they did not train one after the other: ${moments}"
  wait::until 30 - load::is_queue_empty || fail 'the queue is not empty'
  fault::answered 0 "$1 accepted, 1 trained, $(($1 - 1)) stopped while they waited"
  fault::recovered kind=load "tries=$1"
}

@test "three at once: each says where it waits, two are stopped, the last trains" { load::run 3; }
