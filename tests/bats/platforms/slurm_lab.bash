# A real Slurm whose hosts have an engine and an sshd each: those of hosts_lab, named gpu-a and gpu-b, with a slurmd in their namespaces
# and four GPUs that only Slurm counts. slurmctld and munged run on this machine, which is their login node. No registry.
# shellcheck shell=bash
source "${BASH_SOURCE[0]%/*}/hosts_lab.bash"
source "${BASH_SOURCE[0]%/*}/slurm_nodes.bash"

# slurm_lab::make: hosts_lab::make, and the hosts are idle in Slurm's table.
slurm_lab::make() {
  local dir host deb program device
  hosts_lab::make
  dir="${LAB}/slurm"
  mkdir -p "${dir}/debs/partial" "${dir}/state"
  apt-get -qq --yes --no-install-recommends --download-only -o "Dir::Cache::archives=${dir}/debs" -o APT::Sandbox::User=root \
    -o Debug::NoLocking=1 install slurmctld slurmd >/dev/null
  for deb in "${dir}"/debs/*.deb; do dpkg-deb --extract "$deb" "${dir}/root"; done
  for program in slurmctld slurmd slurmstepd; do ln -sf "${program}-wlm" "${dir}/root/usr/sbin/${program}"; done # as update-alternatives does it
  slurm_nodes::munged "$dir"
  for device in 0 1 2 3; do mknod "${dir}/gpu${device}" c 1 3; done # each is a /dev/null
  printf 'Name=gpu File=%s/gpu[0-3]\n' "$dir" >"${dir}/gres.conf"
  slurm_lab::_configure "$dir" >"${dir}/slurm.conf"
  export SLURM_CONF="${dir}/slurm.conf"
  slurm_lab::_run slurmctld
  for host in a b; do
    printf 'Host gpu-%s\n  HostName %s\n' "$host" "${HOSTS_IP[$host]}" >>"${LAB}/config"
    slurm_lab::boot "$host"
  done
  wait::until 120 - slurm_nodes::are_idle 2
}

# slurm_lab::boot HOST: after hosts_lab::boot: its engine is at the usual place, as Compose's plugin is, its connections are its own, and
# slurmd runs.
slurm_lab::boot() {
  mkdir -p "${LAB}/$1/home/.docker"
  install -d -m 700 "${LAB}/$1/sockets" "/tmp/verl-regress-${UID}"
  hosts_lab::in "$1" mount --bind "${LAB}/$1/sockets" "/tmp/verl-regress-${UID}"
  [[ ! -d ${HOME}/.docker/cli-plugins ]] || cp -r "${HOME}/.docker/cli-plugins" "${LAB}/$1/home/.docker"
  hosts_lab::in "$1" mount --bind "${LAB}/$1/docker.sock" /run/docker.sock
  slurm_lab::_run hosts_lab::in "$1" slurmd -N "gpu-$1" -d "${LAB}/slurm/root/usr/sbin/slurmstepd"
}

# slurm_lab::remove: nothing of it is left; slurmd ends with its host.
slurm_lab::remove() {
  local pid
  while read -r pid; do
    [[ $(cat "/proc/${pid}/comm" 2>/dev/null) != slurmctld ]] || kill -KILL "$pid"
  done < <(cat /tmp/vrh.??????/slurm/slurmctld.pid 2>/dev/null)
  hosts_lab::remove
  slurm_nodes::end_munged
}

slurm_lab::_run() { PATH="${LAB}/slurm/root/usr/sbin:${PATH}" "$@" >>"${LAB}/slurm/log" 2>&1 3>&- </dev/null; }

slurm_lab::_configure() {
  slurm_nodes::configure "$(uname -n)(${HOSTS_IP[here]})"
  cat <<CONFIGURATION
StateSaveLocation=$1/state
SlurmctldPidFile=$1/slurmctld.pid
SlurmctldLogFile=$1/slurmctld.log
SlurmdSpoolDir=$1/%n.spool
SlurmdPidFile=$1/%n.pid
SlurmdLogFile=$1/%n.log
GresTypes=gpu
NodeName=gpu-a NodeAddr=${HOSTS_IP[a]} CPUs=$(nproc) Gres=gpu:4 State=UNKNOWN
NodeName=gpu-b NodeAddr=${HOSTS_IP[b]} CPUs=$(nproc) Gres=gpu:4 State=UNKNOWN
PartitionName=train Nodes=ALL Default=YES OverSubscribe=YES:4 State=UP
CONFIGURATION
}
