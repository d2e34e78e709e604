#!/usr/bin/env bats
# The cluster itself: started twice at once, with dead and foreign containers in its way, with half of Ray running, removed or
# restarted under a job, with clocks that differ.

setup_file() {
  load fault_helper
  fault::use cluster 18293
  fault::cluster
}

teardown_file() {
  load fault_helper
  fault::use cluster 18293
  fault::down
}

setup() { load fault_helper; }

FORGOTTEN='Ray has forgotten it: its head was restarted \(GCS_STORAGE=rocksdb keeps what it knows\), or it was deleted there'

# containers: names and states of the containers with our label.
containers() { docker ps --all --filter label=verl-regress.cluster=vrfault-cluster --format '{{.Names}} {{.State}}' | sort; }

# all_run: one head and two workers, and no others.
all_run() {
  diff <(containers) <(printf 'vrfault-cluster-%s running\n' head worker-0 worker-1) || fail "$(containers)"
}

# kill_ray NODE PROGRAM: SIGKILL to Ray's process there that is PROGRAM, but not to its child that has no title yet.
kill_ray() {
  docker exec --interactive "vrfault-cluster-$1" python3 - "$2" <<'END'
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

@test "containers with our names: a foreign one is refused and left alone, dead ones of ours are brought back" {
  local image
  image=$(scripts/10_build_image.sh --name 2>/dev/null)
  docker rm --force vrfault-cluster-worker-1 >/dev/null
  docker create --name vrfault-cluster-worker-1 "$image" true >/dev/null
  fault::begin 'foreign and dead containers with our names'
  run scripts/00_prereq_check.sh
  docker inspect vrfault-cluster-worker-1 >/dev/null
  docker rm vrfault-cluster-worker-1 >/dev/null
  assert_status 1
  assert_line 'error   Containers with our names do not bear our label \(vrfault-cluster-worker-1\): they are not ours to touch; rename them, or set another CLUSTER_NAME\.'
  fault::answered 1 "$(grep -m 1 '^error ' <<<"$output")"
  docker kill vrfault-cluster-head vrfault-cluster-worker-0 >/dev/null
  run make --no-print-directory up
  assert_status 0
  assert_line 'changed containers brought up: vrfault-cluster-head vrfault-cluster-worker-0 vrfault-cluster-worker-1'
  all_run
  status=1 fault::recovered # the status of the refusal, like its sentence
}

@test "a live container with only part of Ray: make up starts all of Ray again" {
  local node program tries=0
  fault::begin 'part of Ray is killed -9 in a live container'
  for node in worker-0:raylet head:raylet head:gcs_server head:dashboard.py; do
    program=${node#*:} node=${node%:*} tries=$((tries + 1))
    kill_ray "$node" "$program"
    run make --no-print-directory up
    assert_status 0
    [[ $node != head ]] || assert_line 'changed head: Ray started'
    [[ $node != worker-0 ]] || assert_line 'changed worker-0: Ray starting'
    [[ $(container::api '/api/v0/nodes?filter_keys=state&filter_predicates=%3D&filter_values=ALIVE' | jq '.data.result.num_filtered') == 3 ]] ||
      fail "${program} on ${node}: not three nodes"
  done
  fault::answered 0 "$(grep -m 1 '^changed' <<<"$output")"
  all_run
  fault::recovered "tries=${tries}"
}

@test "the cluster is taken down under a job: it is LOST, and a new one works" {
  local began
  UNREACHABLE_TIMEOUT=10 fault::train 'make down under a job' 60
  began=$EPOCHREALTIME
  fault::inject make --no-print-directory down FORCE=1
  printf '# make down: %s s\n' "$(fault::_since "$began")" >&3
  [[ -z $(containers) && -z $(docker network ls --quiet --filter label=verl-regress.cluster=vrfault-cluster) ]]
  fault::reports 8 "error   The head has not been there for 10 s \(UNREACHABLE_TIMEOUT\): '${JOB}' may run on; bring the cluster up with 'make up', then 'make wait JOB=${JOB}'\."
  run make --no-print-directory up
  assert_status 0
  fault::follow
  fault::reports 7 "error   ${JOB} LOST \(the job recorded no end, and ${FORGOTTEN}\): read 'make logs JOB=${JOB}'\."
  fault::recovered
}

@test "the head restarts under a job, GCS in memory, and make up is run at once: LOST, and why" {
  UNREACHABLE_TIMEOUT=300 fault::train 'the head restarts, GCS in memory, make up at once' 60
  fault::inject docker restart --time 0 vrfault-cluster-head
  run make --no-print-directory up
  assert_status 0
  fault::reports 7 "error   ${JOB} LOST \(the (job recorded no end|trainer was ended by SIGTERM|trainer ended with exit status [0-9]+), and ${FORGOTTEN}\): read 'make logs JOB=${JOB}'\."
  fault::nothing_left
  fault::recovered
}

@test "the head restarts under a job, GCS in memory, and nobody comes: LOST within two minutes, and why" {
  local gcs
  gcs="$(container::ip head):6379"
  UNREACHABLE_TIMEOUT=300 fault::train 'the head restarts, GCS in memory, nobody comes' 90
  fault::inject docker restart --time 0 vrfault-cluster-head
  fault::reports 7 "error   ${JOB} LOST \(the trainer ended with exit status [0-9]+, and Ray's head, whose GCS was at ${gcs}, is gone\): read 'make logs JOB=${JOB}'\."
  fault::nothing_left
  fault::recovered
}

# faketime: the path of libfaketime, downloaded from the distribution if it is not installed.
faketime() {
  local library
  for library in /usr/lib/*/faketime/libfaketime.so.1 "${BATS_FILE_TMPDIR}"/usr/lib/*/faketime/libfaketime.so.1; do
    [[ ! -f $library ]] || break
  done
  if [[ ! -f $library ]]; then
    (cd "$BATS_FILE_TMPDIR" && apt-get download libfaketime && dpkg -x libfaketime_*.deb .) >/dev/null 2>&1 || return 1
    library=$(printf '%s\n' "${BATS_FILE_TMPDIR}"/usr/lib/*/faketime/libfaketime.so.1)
  fi
  printf '%s\n' "$library"
}

# has_clock_of LIBRARY: the job's processes on worker-1 started with it.
has_clock_of() {
  local pid count=0
  while read -r pid _; do
    docker exec --user 0 vrfault-cluster-worker-1 grep -q "/${1##*/}" "/proc/${pid}/maps" || fail "process ${pid} of ${JOB} does not have ${1##*/}"
    count=$((count + 1))
  done < <(fault::_processes worker-1 '^ray::')
  ((count > 0)) || fail "no process of ${JOB} is on worker-1"
  printf '# %d processes with another clock\n' "$count" >&3
}

@test "a worker's clock is five minutes behind, also for the job's processes there: make up reports it, and the job trains" {
  local library behind='-(299|30[0-9])'
  library=$(faketime) || skip 'libfaketime is neither installed nor in the distribution'
  # Not the raylet itself, which was started before: Ray's native parts wait by the kernel's clock, and one that starts with a wrong
  # clock is not ready in time ("The current node timed out during startup", Ray 2.60).
  docker cp "$library" vrfault-cluster-worker-1:/usr/lib/libfaketime.so.1
  docker exec --user 0 vrfault-cluster-worker-1 sh -c 'echo -300s >/etc/faketimerc; echo /usr/lib/libfaketime.so.1 >/etc/ld.so.preload'
  run make --no-print-directory up
  assert_status 0
  assert_line "warning The clocks of the nodes differ by ${behind#-} s \(worker-1 ${behind}, (head|worker-0) [+-][0-9], (head|worker-0) [+-][0-9]\): times in logs and state/ are wrong by as much; synchronise them \(NTP\)\."
  fault::train 'the clock of one worker is five minutes behind' 10
  has_clock_of "$library"
  fault::inject true
  fault::reports 0 "ok      ${JOB} SUCCEEDED \(the trainer ended\)"
  docker exec --user 0 vrfault-cluster-worker-1 rm /etc/ld.so.preload /etc/faketimerc
  fault::recovered
  grep -qx 'ok      the clocks of 3 nodes differ by at most 5 s' "${BATS_TEST_TMPDIR}/up"
}
