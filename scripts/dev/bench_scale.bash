# scale: the rows of the bench about a large site: 10,000 jobs of 20 users ("many"), next to 10 of them ("few"); a queue of 200; 64 nodes;
# and a disk on which each call takes 5 ms.
# shellcheck shell=bash

readonly SCALE_FEW=10 SCALE_MANY=10000
readonly SCALE_COMMANDS=(jobs status wait logs stop) # of one job: the caller's latest, which is over
SCALE_SHOWN=own                                      # the set in shared/jobs; the others are in shared/SET/jobs

scale::python() { PYTHONPATH="${REPO_DIR}/py" "${VENV_DIR}/bin/python" "${REPO_DIR}/scripts/dev/bench_scale.py" "$@"; }

# scale::prepare: both sets, each of their jobs as a real one left it.
scale::prepare() {
  local model shared=${WORKDIR}/shared
  [[ ! -d ${shared}/many ]] || return 0
  bench::quietly bench::make sft WAIT=1
  model=$(find "${shared}/jobs" -mindepth 1 -maxdepth 1 -name 'sft-*' | sort | tail -n 1)
  mkdir -p "${shared}/own"
  bench::quietly scale::python jobs "$model" "${shared}/few/jobs" "$SCALE_FEW"
  bench::quietly scale::python jobs "$model" "${shared}/many/jobs" "$SCALE_MANY"
}

# scale::show SET: the jobs of this set are those of the shared root.
scale::show() {
  [[ $1 != "$SCALE_SHOWN" ]] || return 0
  mv -T -- "${WORKDIR}/shared/jobs" "${WORKDIR}/shared/${SCALE_SHOWN}/jobs"
  mv -T -- "${WORKDIR}/shared/$1/jobs" "${WORKDIR}/shared/jobs"
  SCALE_SHOWN=$1
}

row::many_jobs() {
  local round command
  scale::prepare
  for ((round = 0; round < BENCH_ROUNDS; round++)); do
    for command in "${SCALE_COMMANDS[@]}"; do
      scale::show few
      bench::time "many_jobs:${command}" '10 jobs' bench::make "$command"
      scale::show many
      bench::time "many_jobs:${command}" ours bench::make "$command"
    done
  done
  scale::show own
}

# How long a submitter waits at most while old checkpoints are removed: one of each job of the caller's.
row::gc_many_jobs() {
  local round
  scale::prepare
  for ((round = 0; round < BENCH_ROUNDS; round++)); do
    scale::show few
    scale::_gc '10 jobs'
    scale::show many
    scale::_gc ours
  done
  scale::show own
}

scale::_gc() {
  local waited
  bench::quietly scale::python checkpoints "${WORKDIR}/shared/jobs"
  waited=$(scale::python longest_wait "${WORKDIR}/shared/jobs" make --no-print-directory -C "$REPO_DIR" gc KEEP=0 2>>"$BENCH_LOG") ||
    cli::die 1 "'make gc' (the side '$1') failed: read the end of ${BENCH_LOG}."
  bench::record gc_many_jobs "$1" "$waited"
}

# One job has the only slot and ends, as a killed launcher does.
row::queue() {
  local round
  for ((round = 0; round < BENCH_ROUNDS; round++)); do
    scale::_next_start '10 waiting jobs' 10
    scale::_next_start ours 200
  done
}

scale::_next_start() {
  local waited
  rm -rf "${BENCH_DIR}/queue"
  waited=$(scale::python next_start "${BENCH_DIR}/queue" "$2" 2>>"$BENCH_LOG") ||
    cli::die 1 "The queue of $2 jobs failed: read the end of ${BENCH_LOG}."
  bench::record queue "$1" "$waited"
}

# An engine of stand-ins, each of whose answers takes 2 s, like those of a slow node. They are asked whether they see the shared root
# (make check), which packages they lack (make deps), and what is left of a job (make stop).
row::many_nodes() {
  local round engine=${BENCH_DIR}/nodes/docker
  mkdir -p "${engine%/*}"
  cat >"$engine" <<'SH'
#!/usr/bin/env bash
answer() { read -rt 2 <>"${0}.never" || true; }
case "$*" in
  'inspect --format {{.Name}}|'*) printf '/nodes-%s|true|since|10.0.0.1 |nodes||me|x||\n' head worker-{0..62} ;;
  'inspect --format {{.State.Running}} '*) echo true ;;
  inspect*) echo 'true since' ;;
  *' leftovers '*) answer && echo 0 ;;
  *'/deps.py missing helper' | *' writable '*) answer ;;
esac
SH
  chmod +x "$engine"
  [[ -p ${engine}.never ]] || mkfifo "${engine}.never"
  for ((round = 0; round < BENCH_ROUNDS; round++)); do
    bench::time many_nodes '2 nodes' scale::_ask_nodes 1
    bench::time many_nodes ours scale::_ask_nodes 63
  done
}

scale::_ask_nodes() {
  # shellcheck disable=SC2016  # expanded there
  PATH="${BENCH_DIR}/nodes:${PATH}" CLUSTER_NAME=nodes WORKERS=$1 CONTAINER_ENGINE=docker bash -c '
    source "$0" && cli::begin && env::load && prereq::shared_mount && deps::ensure && job::end_leftovers job /jobs/job' "${REPO_DIR}/scripts/lib/regress.bash"
}

# The shared root is on a file system of the tests (tests/py/remote_disk.py), which can make each call wait.
row::slow_disk() {
  local round command
  if ((EUID != 0)) || [[ ! -e /dev/fuse ]]; then
    log::skip 'slow_disk (to mount its disk takes root and /dev/fuse)'
    return
  fi
  scale::prepare
  scale::show many
  bench::quietly bench::take_down
  cli::on_exit scale::_unmount
  scale::_mount
  bench::quietly bench::make up
  for ((round = 0; round < BENCH_ROUNDS; round++)); do
    for command in "${SCALE_COMMANDS[@]}"; do
      bench::time "slow_disk:${command}" 'no delay' bench::make "$command"
      scale::_delay 0.005
      bench::time "slow_disk:${command}" ours bench::make "$command"
      scale::_delay 0
    done
  done
  scale::show own # what ends a cluster reads all jobs: too many open files for that disk
  bench::quietly bench::take_down
  scale::_unmount
  bench::quietly bench::make up
}

# A mount remembers names and attributes for 3 s, the least that an NFS client does (acregmin of nfs(5)).
scale::_mount() {
  mv -T -- "${WORKDIR}/shared" "${WORKDIR}/exported"
  mkdir -p "${WORKDIR}/shared" "${WORKDIR}/client-1"
  coproc SCALE_DISK {
    ulimit -n "$(ulimit -Hn)" # it has an open file for each that a mount knows
    exec python3 "${REPO_DIR}/tests/py/remote_disk.py" "${WORKDIR}"/{exported,shared,client-1} '{"valid": 3}' 2>>"$BENCH_LOG"
  }
  scale::_disk_says ready
}

# scale::_delay SECONDS: what each call takes from now on.
scale::_delay() {
  printf '{"delay": %s}\n' "$1" >&"${SCALE_DISK[1]}"
  scale::_disk_says calls
}

scale::_disk_says() {
  local said
  read -r -t 10 said <&"${SCALE_DISK[0]}" || cli::die 1 "tests/py/remote_disk.py did not say $1: read the end of ${BENCH_LOG}."
  printf 'remote_disk.py: %s\n' "$said" >>"$BENCH_LOG"
}

# Also for an interrupted bench: the signal may have ended the disk itself, which then has not unmounted.
scale::_unmount() {
  local to_disk=${SCALE_DISK[1]-} mount
  [[ -d ${WORKDIR}/exported ]] || return 0
  [[ -z $to_disk ]] || exec {to_disk}>&-
  for mount in "${WORKDIR}"/{shared,client-1}; do
    umount --lazy "$mount" 2>>"$BENCH_LOG" || true # it may just have done that itself
    rmdir -- "$mount"
  done
  mv -T -- "${WORKDIR}/exported" "${WORKDIR}/shared"
}
