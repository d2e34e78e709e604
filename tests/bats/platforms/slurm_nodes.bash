# Three hosts of a real Slurm: containers of the node image with munge and slurmd, each with its own address; slurmctld is on the
# first. This machine is their login node: it has Slurm's commands and the same munge key. No registry, no network in the build.
# shellcheck shell=bash
source "${BASH_SOURCE[0]%/*}/node_image.bash"
source "${BASH_SOURCE[0]%/*}/../../../scripts/lib/wait.bash"

SLURM_HOSTS=(gpu-0 gpu-1 gpu-2)
# The socket of munged has the same path on every host, because the path is in slurm.conf.
SLURM_RUN=/tmp/vrtest-slurm

# slurm_nodes::make DIR: the hosts are idle in Slurm's table; SLURM_CONF and SLURM_SHARED (the shared root, here) are exported.
slurm_nodes::make() {
  local dir=$1 host
  mkdir -p "${dir}/slurm" "${dir}/shared"
  slurm_nodes::munged "${dir}/slurm"
  slurm_nodes::_image "$dir"
  docker network create --label "verl-regress.cluster=${CLUSTER_NAME}" "$CLUSTER_NAME" >/dev/null
  for host in "${SLURM_HOSTS[@]}"; do
    docker run --detach --init --name "${CLUSTER_NAME}-${host}" --hostname "$host" --network "$CLUSTER_NAME" --shm-size 2g \
      --label "verl-regress.cluster=${CLUSTER_NAME}" --volume "${dir}/shared:/private" --volume "${dir}:${dir}" --volume "${REPO}:${REPO}" \
      "$CLUSTER_NAME" sleep infinity >/dev/null
  done
  slurm_nodes::_configure >"${dir}/slurm/slurm.conf"
  export SLURM_CONF="${dir}/slurm/slurm.conf" SLURM_SHARED="${dir}/shared"
  for host in "${SLURM_HOSTS[@]}"; do
    # shellcheck disable=SC2016  # expanded there
    docker exec "${CLUSTER_NAME}-${host}" bash -c '
      set -e; mkdir -p /etc/slurm /run/munge "$3" /var/spool/slurmctld /var/spool/slurmd
      install -m 400 "$1/munge.key" "$3/munge.key"
      munged --force --key-file "$3/munge.key" --socket "$3/socket" --pid-file "$3/pid" --seed-file "$3/seed" --log-file "$3/log"
      ln -s "$1/slurm.conf" /etc/slurm/slurm.conf
      [[ $2 != "$(hostname)" ]] || slurmctld
      slurmd' start "${dir}/slurm" "${SLURM_HOSTS[0]}" "$SLURM_RUN"
  done
  wait::until 120 - slurm_nodes::are_idle "${#SLURM_HOSTS[@]}"
}

# slurm_nodes::remove DIR: removes the hosts, the network, the image, our munged, and files that read-only snapshots would keep.
slurm_nodes::remove() {
  docker rm --force "${SLURM_HOSTS[@]/#/${CLUSTER_NAME}-}" >/dev/null 2>&1
  docker network rm "$CLUSTER_NAME" >/dev/null 2>&1
  docker image rm --force "$CLUSTER_NAME" >/dev/null 2>&1
  slurm_nodes::end_munged
  chmod -R u+w "$1/shared"
}

slurm_nodes::are_idle() { [[ $(sinfo --noheader --format='%T %D' 2>/dev/null) == "idle $1" ]]; }

# slurm_nodes::state_of ID STATE: that job is in this state.
slurm_nodes::state_of() { [[ $(squeue --noheader --states=all --jobs="$1" --format=%T) == "$2" ]]; }

# slurm_nodes::submit: make slurm; BATCH is its job's id.
slurm_nodes::submit() {
  run scripts/45_slurm.sh
  assert_status 0
  BATCH=$(grep -xE '[0-9]+' <<<"$output")
}

# slurm_nodes::log_has ID PATTERN: a line of what the batch job has printed.
slurm_nodes::log_has() { grep -qE -- "$2" "${WORKDIR}/slurm/$1.log" 2>/dev/null; }

# slurm_nodes::await_line SECONDS PATTERN: the batch job BATCH prints such a line; otherwise the test fails with the end of its log.
slurm_nodes::await_line() { wait::until "$1" - slurm_nodes::log_has "$BATCH" "$2" || slurm_nodes::_fail; }

# slurm_nodes::is_over ID: that job neither waits nor runs.
slurm_nodes::is_over() { [[ $(squeue --noheader --states=all --jobs="$1" --format=%T) != @(PENDING|CONFIGURING|RUNNING|COMPLETING) ]]; }

# slurm_nodes::await_end: BATCH is COMPLETED; `output` is what it printed.
slurm_nodes::await_end() {
  wait::until 900 - slurm_nodes::is_over "$BATCH" || slurm_nodes::_fail
  slurm_nodes::state_of "$BATCH" COMPLETED || slurm_nodes::_fail
  output=$(<"${WORKDIR}/slurm/${BATCH}.log")
}

slurm_nodes::_fail() { fail "$(tail -n 30 "${WORKDIR}/slurm/${BATCH}.log")"; }

# slurm_nodes::munged DIR: munged runs on this machine, with a new key, DIR/munge.key.
slurm_nodes::munged() {
  slurm_nodes::end_munged # of a run that was killed
  mkdir -p "$SLURM_RUN"
  head -c 1024 /dev/urandom >"$1/munge.key"
  chmod 400 "$1/munge.key"
  install -m 400 "$1/munge.key" "${SLURM_RUN}/munge.key"
  PATH="${PATH}:/usr/sbin" munged --force --key-file "${SLURM_RUN}/munge.key" --socket "${SLURM_RUN}/socket" \
    --pid-file "${SLURM_RUN}/pid" --seed-file "${SLURM_RUN}/seed" --log-file "${SLURM_RUN}/log" 3>&- 2>/dev/null
}

slurm_nodes::end_munged() {
  local pid
  if pid=$(cat "${SLURM_RUN}/pid" 2>/dev/null) && slurm_nodes::_is_munged "$pid"; then
    kill "$pid"
    wait::until 10 - slurm_nodes::_is_gone "$pid" # at its end it writes a file there
  fi
  rm -rf -- "$SLURM_RUN"
}

slurm_nodes::_is_munged() { [[ $(cat "/proc/$1/comm" 2>/dev/null) == munged ]]; }
slurm_nodes::_is_gone() { ! slurm_nodes::_is_munged "$1"; }

slurm_nodes::_configure() {
  local host address=()
  for host in "${SLURM_HOSTS[@]}"; do address+=("$(container::ip "$host")"); done
  slurm_nodes::configure "${SLURM_HOSTS[0]}(${address[0]})"
  cat <<CONFIGURATION
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
KillWait=15
CONFIGURATION
  for host in "${!SLURM_HOSTS[@]}"; do
    printf 'NodeName=%s NodeAddr=%s CPUs=%d State=UNKNOWN\n' "${SLURM_HOSTS[host]}" "${address[host]}" "$(nproc)"
  done
  printf 'PartitionName=train Nodes=ALL Default=YES OverSubscribe=YES:4 State=UP\n'
}

# slurm_nodes::configure CONTROLLER: what every slurm.conf of ours has. The ids of an earlier Slurm here may have files of ours in /tmp.
slurm_nodes::configure() {
  cat <<CONFIGURATION
ClusterName=vrtest
FirstJobId=$((1000 + RANDOM))
SlurmctldHost=$1
AuthInfo=socket=${SLURM_RUN}/socket
SlurmUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
OverTimeLimit=0
CONFIGURATION
}

slurm_nodes::_image() {
  node_image::add "$1" slurmctld slurmd slurm-client munge make <<DOCKERFILE
RUN [ $(id -u) = 0 ] || useradd --uid $(id -u) --create-home --shell /bin/bash trainer
DOCKERFILE
}
