#!/usr/bin/env bats
# Nodes die, are paused or cannot be reached while a job trains on them.

setup_file() {
  load fault_helper
  fault::use work 18285
  fault::cluster
}

setup() { load fault_helper; }

teardown() {
  # Whatever a test left: the next one starts with running nodes.
  docker unpause "${CLUSTER_NAME}-worker-0" "${CLUSTER_NAME}-worker-1" >/dev/null 2>&1 || true
}

teardown_file() {
  load fault_helper
  fault::down
}

@test "the worker without the driver is killed: LOST, and which; a job submitted right after make up trains" {
  fault::train 'the worker without the driver is killed' 60
  fault::find_driver
  lost="${OTHER} \($(container::ip "$OTHER")\)"
  fault::inject docker kill "${CLUSTER_NAME}-${OTHER}"
  # verl 0.9.1 fails at once, or waits for the rollouts of that worker; then the launcher ends it.
  why="ended with exit status 1, when ${lost} did not answer any more|waited for ${lost}, which Ray had given up, and was ended"
  fault::reports 7 "error   ${JOB} LOST \(the trainer (${why})\): read 'make logs JOB=${JOB}'\."
  fault::recovered
  fault::nothing_left
  fault::trains_now
}

@test "the worker with the driver is killed, make up is there before Ray gives it up: LOST then, and a job trains at once" {
  fault::train 'the worker with the driver is killed, make up at once' 60
  fault::find_driver
  fault::inject docker kill "${CLUSTER_NAME}-${DRIVER}"
  run make --no-print-directory up
  assert_status 0
  assert_line "changed ${DRIVER} \([0-9.:]+\) was killed: unregistered it from Ray"
  fault::reports 7 "error   ${JOB} LOST \(the driver's node ${DRIVER} died: Ray says its raylet does not answer any more\): read 'make logs JOB=${JOB}'\."
  fault::trains_now
  fault::nothing_left
  status=7 fault::recovered
}

@test "the worker with the driver is killed and no command is run: LOST with the node's name, when Ray gives it up" {
  fault::train 'the worker with the driver is killed' 60
  fault::find_driver
  fault::inject docker kill "${CLUSTER_NAME}-${DRIVER}"
  fault::reports 7 "error   ${JOB} LOST \(the driver's node ${DRIVER} died: Ray says health check failed due to missing too many heartbeats\): read 'make logs JOB=${JOB}'\."
  fault::recovered
  fault::nothing_left
}

@test "a worker is paused for 60 s: the job runs to its end, and nothing wrong is reported meanwhile" {
  fault::train 'a worker is paused for 60 s' 10
  fault::find_driver
  fault::inject docker pause "${CLUSTER_NAME}-${OTHER}"
  run timeout 60 tail --pid="$FOLLOWER" --follow /dev/null
  [[ $status == 124 ]] || fail "make wait ended while the worker stood still: $(<"${BATS_TEST_TMPDIR}/printed")"
  docker unpause "${CLUSTER_NAME}-${OTHER}"
  fault::reports 0 "ok      ${JOB} SUCCEEDED \(the trainer ended\)"
  [[ $(grep -cE ' is [A-Z_]+$' <<<"$output") -le 3 ]] || fail 'more than PENDING, RUNNING and SUCCEEDED was said'
  fault::recovered
}

# sever NODE, heal NODE: cut and restore the network between that worker and the head; the workers still reach each other.
sever() { network_of "$1" --append; }
heal() { network_of "$1" --delete; }
network_of() {
  local head pid way
  head=$(container::ip head)
  pid=$(docker inspect --format '{{.State.Pid}}' "${CLUSTER_NAME}-$1")
  for way in "INPUT --source ${head}" "OUTPUT --destination ${head}"; do
    read -r -a way <<<"$way"
    nsenter --target "$pid" --net iptables "$2" "${way[@]}" --jump DROP
  done
}

@test "a worker is cut from the head for 20 s: the job runs to its end, and nothing wrong is reported meanwhile" {
  [[ $(id -u) == 0 ]] || skip 'only root may change the network of a node'
  fault::train 'the network between head and a worker is cut for 20 s' 45
  fault::find_driver
  fault::inject sever "$OTHER"
  run timeout 20 tail --pid="$FOLLOWER" --follow /dev/null
  heal "$OTHER"
  [[ $status == 124 ]] || fail "make wait ended while the worker was cut off: $(<"${BATS_TEST_TMPDIR}/printed")"
  fault::reports 0 "ok      ${JOB} SUCCEEDED \(the trainer ended\)"
  [[ $(grep -cE ' is [A-Z_]+$' <<<"$output") -le 3 ]] || fail 'more than PENDING, RUNNING and SUCCEEDED was said'
  fault::recovered
}

@test "a worker is cut from the head for good: LOST when Ray gives it up, and which; make up brings it back" {
  [[ $(id -u) == 0 ]] || skip 'only root may change the network of a node'
  fault::train 'the network between head and a worker is cut for good' 200
  fault::find_driver
  lost="${OTHER} \($(container::ip "$OTHER")\)"
  fault::inject sever "$OTHER"
  fault::reports 7 "error   ${JOB} LOST \(the trainer ended with exit status 1, when ${lost} had been given up by Ray\): read 'make logs JOB=${JOB}'\."
  heal "$OTHER"
  fault::recovered
  fault::nothing_left
}

# limit_memory SIZE: for both workers. Ray reads the limit once, when it starts.
limit_memory() {
  docker update --memory "$1" --memory-swap "$1" "${CLUSTER_NAME}-worker-0" "${CLUSTER_NAME}-worker-1" >/dev/null
  docker kill "${CLUSTER_NAME}-worker-0" "${CLUSTER_NAME}-worker-1" >/dev/null
}

# fill_memory NODE: fills the memory up to 96.5 % of the node's limit and keeps it for 20 s; Ray acts at 95 %.
fill_memory() {
  docker exec --interactive "${CLUSTER_NAME}-$1" python3 - <<'END'
import time
from pathlib import Path
new, old = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")
home, usage, limit = (old, "memory.usage_in_bytes", "memory.limit_in_bytes") if old.is_dir() else (new, "memory.current", "memory.max")
held, end = [], time.monotonic() + 20
while time.monotonic() < end:
    pages = dict(line.split() for line in (home / "memory.stat").read_text().splitlines())
    used = int((home / usage).read_text()) - int(pages["inactive_file"]) - int(pages["active_file"])
    if used < 0.965 * int((home / limit).read_text()):
        held.append(b"x" * (8 << 20))
    time.sleep(0.01)
END
}

@test "Ray's memory monitor kills the job's supervisor: LOST, with another reason than for a crash, and the memory in use" {
  limit_memory 3g
  make --no-print-directory up >"${BATS_TEST_TMPDIR}/limited" 2>&1
  fault::submit "Ray's memory monitor kills the job's supervisor" 60
  fault::await fault::has_started # before that, verl has no actors, and Ray has nothing else to kill on this node
  fault::find_driver
  fill_memory "$DRIVER" 3>&- &
  fault::inject true
  fault::reports 7 "error   ${JOB} LOST \(Ray's memory monitor killed its supervisor of the job on ${DRIVER} \([0-9.]+GB used / 3\.00GB limit\), and the launcher with it\): read 'make logs JOB=${JOB}'\."
  wait "$!"
  fault::nothing_left
  limit_memory 100g
  fault::recovered
}
