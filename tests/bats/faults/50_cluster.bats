#!/usr/bin/env bats
# The cluster itself: started twice at once, restarted under a job.

setup_file() {
  load fault_helper
  fault::use work 18295
  fault::cluster
}

setup() { load fault_helper; }

# What the job says depends on which comes first: the new GCS, which ends the old raylets, or the end of the 60 s in which Ray's processes
# wait for one.
FORGOTTEN='Ray has forgotten it: its head was restarted, or it was deleted there'
GONE="Ray's head, whose GCS was at [0-9.:]+, is gone"

# containers: names and states of the containers with our label.
containers() { docker ps --all --filter label=verl-regress.cluster=vrfault-work --format '{{.Names}} {{.State}}' | sort; }

# all_run: one head and two workers, and no others.
all_run() {
  diff <(containers) <(printf 'vrfault-work-%s running\n' head worker-0 worker-1) || fail "$(containers)"
}

@test "two make up at once: both end well, and there is one cluster" {
  local one=0 two=0
  make --no-print-directory down FORCE=1 >/dev/null 2>&1
  fault::begin 'two make up at once'
  make --no-print-directory up >"${BATS_TEST_TMPDIR}/one" 2>&1 3>&- &
  make --no-print-directory up >"${BATS_TEST_TMPDIR}/two" 2>&1 || two=$?
  wait "$!" || one=$?
  for output in "$(<"${BATS_TEST_TMPDIR}/one")" "$(<"${BATS_TEST_TMPDIR}/two")"; do
    [[ $one == 0 && $two == 0 ]] || fail "they ended with ${one} and ${two}"
    for node in head worker-0 worker-1; do assert_line "ok      ${node} is ALIVE at .*"; done
  done
  [[ $(cat "${BATS_TEST_TMPDIR}"/{one,two} | grep -c '^changed head: Ray started') == 1 ]] || fail 'Ray was started twice'
  fault::answered 0 "$(grep -m 1 '^ok      head is ALIVE' <<<"$output")"
  all_run
  fault::recovered
}

@test "the head restarts under a job, and make up is run at once: LOST, and why" {
  UNREACHABLE_TIMEOUT=300 fault::train 'the head restarts, GCS in memory, make up at once' 400
  fault::inject docker restart --time 0 vrfault-work-head
  run make --no-print-directory up
  assert_status 0
  fault::reports 7 "error   ${JOB} LOST \(the (job recorded no end|trainer was ended by SIGTERM|trainer ended with exit status [0-9]+), and (${FORGOTTEN}|${GONE})\): read 'make logs JOB=${JOB}'\."
  fault::nothing_left
  fault::recovered
}
