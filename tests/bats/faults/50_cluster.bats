#!/usr/bin/env bats
# The cluster itself: started twice at once, with half of Ray running, restarted under a job.

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

# kill_ray NODE PROGRAM: SIGKILL to Ray's process there that is PROGRAM, but not to its child that has no title yet.
kill_ray() {
  docker exec --interactive "vrfault-work-$1" python3 - "$2" <<'END'
import os, signal, sys
from pathlib import Path
found = []
for path in Path("/proc").glob("[0-9]*"):
    try:
        words = (path / "cmdline").read_bytes().decode().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        continue
    names = [Path(word).name for word in words if word is words[0] or word.endswith(".py")]
    if sys.argv[1] in names:
        found.append(int(path.name))
os.kill(min(found), signal.SIGKILL)
END
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

@test "live containers with only part of Ray: make up starts all of Ray again" {
  fault::begin 'part of Ray is killed -9 in a live container'
  kill_ray worker-0 raylet
  kill_ray head gcs_server
  run make --no-print-directory up
  assert_status 0
  assert_line 'changed head: Ray started'
  assert_line 'changed worker-0: Ray starting'
  [[ $(container::api '/api/v0/nodes?filter_keys=state&filter_predicates=%3D&filter_values=ALIVE' | jq '.data.result.num_filtered') == 3 ]] ||
    fail 'not three nodes'
  fault::answered 0 "$(grep -m 1 '^changed' <<<"$output")"
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
