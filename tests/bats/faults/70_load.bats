#!/usr/bin/env bats
# Many submissions at the same moment, on a cluster that trains one job at a time: none is lost, none overwrites another, the first
# trains to its end when it gets the slot, and the rest are stopped, all at once, while they wait.

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
    OVERRIDES=trainer.total_training_steps=2 scripts/44_submit_sdk.sh >"${BATS_TEST_TMPDIR}/id.${i}" 2>"${BATS_TEST_TMPDIR}/said.${i}" 3>&- &
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

load::is_queued() { [[ -s ${WORKDIR}/shared/jobs/$1/state/queued ]]; }

# load::stop ID...: stops all of them at once, while they wait in the queue.
load::stop() {
  local job pids=() i
  for job; do
    wait::until 300 - load::is_queued "$job" || fail "${job} does not wait for a slot"
  done
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

# load::run COUNT: behind one job that keeps the only slot until all others are submitted and all but the first are stopped.
load::run() {
  local jobs job dir moments first
  fault::begin "$1 submissions at once, one trains at a time"
  first=$(OVERRIDES="${FAULT_EPOCHS} trainer.total_training_steps=5000" scripts/44_submit_sdk.sh 2>"${BATS_TEST_TMPDIR}/first") ||
    fail "$(<"${BATS_TEST_TMPDIR}/first")"
  load::submit "$1"
  [[ $(sort -u "${BATS_TEST_TMPDIR}/ids" | wc -l) == "$1" ]] || fail "$(<"${BATS_TEST_TMPDIR}/ids")"
  mapfile -t jobs < <(load::in_order)
  for job in "${jobs[@]}"; do
    dir="${WORKDIR}/shared/jobs/${job}"
    [[ $(jq -r .accepted "${dir}/state/submitted") == true && $(jq -r .submission_id "${dir}/config/resolved.json") == "$job" ]] || fail "$job"
  done
  [[ $(container::api /api/jobs/ | jq -r '.[].submission_id' | grep -cxFf "${BATS_TEST_TMPDIR}/ids") == "$1" ]] || fail 'Ray does not have them all'
  load::stop "${jobs[@]:1}"
  JOB=$first scripts/54_stop.sh >"${BATS_TEST_TMPDIR}/stop" 2>&1 || fail "$(<"${BATS_TEST_TMPDIR}/stop")"
  job=${jobs[0]} dir="${WORKDIR}/shared/jobs/${jobs[0]}"
  JOB=$job timeout 600 scripts/52_wait.sh >"${BATS_TEST_TMPDIR}/wait" 2>&1 || fail "${job}: $(<"${BATS_TEST_TMPDIR}/wait")"
  grep -q '"step":2' <(tr -d ' ' <"${dir}/logs/metrics.jsonl") || fail "${job} did not take its steps"
  weights::changed "$dir" || fail "${job} changed no weights"
  # One at a time, in queue order.
  moments=$(cd "${WORKDIR}/shared/jobs" && for job in "$first" "${jobs[0]}"; do jq -r .time "${job}/state/turn" "${job}/state/ended"; done)
  [[ $(wc -l <<<"$moments") == 4 && $moments == "$(sort <<<"$moments")" ]] || fail "they did not train one after the other: ${moments}"
  fault::answered 0 "$1 accepted, 1 trained, $(($1 - 1)) stopped while they waited"
  fault::recovered kind=load "tries=$1"
}

@test "four at once" { load::run 4; }
