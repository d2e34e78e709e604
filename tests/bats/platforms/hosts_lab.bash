# Two "hosts" for HOSTS_FILE on this machine: each is a network namespace and a mount namespace with an engine and an sshd of its own,
# a home directory of its own and the same file system. A bridge connects them and this machine, which can be the third host.
# shellcheck shell=bash

source "${BASH_SOURCE[0]%/*}/../../../scripts/lib/wait.bash"

HOSTS_BRIDGE=vrt-hosts
HOSTS_NET=10.213.77
declare -gA HOSTS_IP=([a]="${HOSTS_NET}.11" [b]="${HOSTS_NET}.12" [here]="${HOSTS_NET}.1")

# hosts_lab::make: both hosts answer; HOSTS_FILE and SSH_CONFIG name them: the head on a, worker-0 on b. LAB is their directory.
hosts_lab::make() {
  local dir host
  dir=$(mktemp -d /tmp/vrh.XXXXXX) # short, because paths of sockets are in it
  mkdir -p "${dir}/sshd"
  hosts_lab::_sshd "$dir"
  ssh-keygen -q -t ed25519 -N '' -f "${dir}/key"
  : >"${dir}/known_hosts"
  ip link add "$HOSTS_BRIDGE" type bridge
  ip address add "${HOSTS_IP[here]}/24" dev "$HOSTS_BRIDGE"
  ip link set "$HOSTS_BRIDGE" up
  iptables -I FORWARD -i "$HOSTS_BRIDGE" -o "$HOSTS_BRIDGE" -j ACCEPT # whatever an engine makes of FORWARD
  for host in a b; do hosts_lab::_network "$host"; done
  for host in a b; do hosts_lab::boot "$dir" "$host"; done
  printf 'IdentityFile %s\nIdentitiesOnly yes\nUserKnownHostsFile %s\n' "${dir}/key" "${dir}/known_hosts" >"${dir}/config"
  printf '%s\n' "head ssh://root@${HOSTS_IP[a]}" "worker-0 ssh://root@${HOSTS_IP[b]}" >"${dir}/hosts"
  export LAB=$dir HOSTS_FILE="${dir}/hosts" SSH_CONFIG="${dir}/config"
}

# hosts_lab::docker HOST ARGV...: that host's engine, not through ssh.
hosts_lab::docker() { docker -H "unix://${LAB}/$1/docker.sock" "${@:2}"; }

# hosts_lab::in HOST ARGV...: a command on that host.
hosts_lab::in() { nsenter --target "$(<"${LAB}/$1/pid")" --net --mount --wd="$PWD" -- "${@:2}"; }

# hosts_lab::programs HOST: what runs there, in containers too.
hosts_lab::programs() { ip netns pids "vrt-$1" | sed 's#.*#/proc/&/comm#' | xargs cat 2>/dev/null; }

# hosts_lab::boot DIR HOST: its processes start: the first keeps the namespaces, the others are an engine and an sshd.
hosts_lab::boot() {
  local dir=$1/$2 name="vrt-$2"
  mkdir -p "${dir}/home/.ssh" "${dir}/data" "${dir}/exec"
  [[ -e ${dir}/hostkey ]] || {
    ssh-keygen -q -t ed25519 -N '' -f "${dir}/hostkey"
    printf '%s %s\n' "${HOSTS_IP[$2]}" "$(cut -d' ' -f1,2 "${dir}/hostkey.pub")" >>"$1/known_hosts"
  }
  cp "$1/key.pub" "${dir}/home/.ssh/authorized_keys"
  cat >"${dir}/sshd_config" <<CONFIG
ListenAddress ${HOSTS_IP[$2]}
HostKey ${dir}/hostkey
PidFile ${dir}/sshd.pid
UsePAM no
StrictModes no
PasswordAuthentication no
SetEnv DOCKER_HOST=unix://${dir}/docker.sock
CONFIG
  cat >"${dir}/init" <<'INIT'
dir=$1 lab=$2
mount --bind "${lab}/etc" /etc # not a file in it: who replaces that (useradd) ends its mount
mount --bind "${dir}/home" "$HOME"
mount -t tmpfs -o mode=755 none /run/sshd
[ ! -d /run/containerd ] || mount -t tmpfs none /run/containerd # the engine starts its own
LD_LIBRARY_PATH="${lab}/sshd/lib" "${lab}/sshd/usr/sbin/sshd" -f "${dir}/sshd_config" -E "${dir}/sshd.log"
exec dockerd --data-root "${dir}/data" --exec-root "${dir}/exec" --pidfile "${dir}/dockerd.pid" -H "unix://${dir}/docker.sock" \
  --bridge=none --iptables=false --ip6tables=false
INIT
  mkdir -p /run/sshd
  rm -f "${dir}"/{docker.sock,dockerd.pid}
  ip link set "$name" up
  nsenter --net="/run/netns/${name}" unshare --mount sh "${dir}/init" "$dir" "$1" >"${dir}/log" 2>&1 3>&- </dev/null &
  printf '%s\n' "$!" >"${dir}/pid"
  disown "$!"
  wait::until 120 - docker -H "unix://${dir}/docker.sock" version >/dev/null 2>&1
  wait::until 60 - bash -c "exec 3<>/dev/tcp/${HOSTS_IP[$2]}/22" 2>/dev/null
}

# hosts_lab::halt HOST: as if its power were cut: its processes and containers are gone, its disk stays. The network goes first, or
# those that are killed last would still report the others.
hosts_lab::halt() {
  ip link set "vrt-$1" down
  wait::until 30 - hosts_lab::_is_halted "$1"
}
hosts_lab::_is_halted() {
  local pids
  pids=$(ip netns pids "vrt-$1")
  # shellcheck disable=SC2086  # ids, one word each
  [[ -n $pids ]] && kill -KILL $pids 2>/dev/null
  [[ -z $pids ]]
}

# hosts_lab::remove: nothing of both hosts is left, nor our record of a cluster on them, which names a file that goes with them.
hosts_lab::remove() {
  local host
  for host in a b; do
    [[ ! -e /run/netns/vrt-${host} ]] || {
      hosts_lab::halt "$host"
      ip netns delete "vrt-${host}"
    }
    ip link delete "vrt-${host}" 2>/dev/null || true # what still holds the namespace would keep it for a while
  done
  while iptables -D FORWARD -i "$HOSTS_BRIDGE" -o "$HOSTS_BRIDGE" -j ACCEPT 2>/dev/null; do :; done
  ip link delete "$HOSTS_BRIDGE" 2>/dev/null || true
  rmdir /run/sshd 2>/dev/null || true
  rm -rf -- /tmp/vrh.?????? "${WORKDIR}/clusters/${CLUSTER_NAME}"
}

hosts_lab::_network() {
  local name="vrt-$1"
  ip netns add "$name"
  ip link add "$name" type veth peer name eth0 netns "$name"
  ip link set "$name" master "$HOSTS_BRIDGE" up
  ip -n "$name" address add "${HOSTS_IP[$1]}/24" dev eth0
  ip -n "$name" link set lo up
  ip -n "$name" link set eth0 up
  ip -n "$name" route add default via "${HOSTS_IP[here]}"
}

# sshd and the libraries that it needs, unpacked: installing it would start it on this machine. And the users that it asks for.
hosts_lab::_sshd() {
  local dir=$1
  mkdir -p "${dir}/debs/partial" "${dir}/sshd/lib"
  apt-get -qq --yes --no-install-recommends --download-only -o "Dir::Cache::archives=${dir}/debs" -o APT::Sandbox::User=root \
    -o Debug::NoLocking=1 install openssh-server >/dev/null
  for deb in "${dir}"/debs/*.deb; do dpkg-deb --extract "$deb" "${dir}/sshd"; done
  find "${dir}/sshd/usr/lib" "${dir}/sshd/lib" -name 'lib*.so.*' -exec cp --no-clobber -t "${dir}/sshd/lib" {} + 2>/dev/null
  cp -a /etc "${dir}/etc"
  {
    grep -v '^sshd:' /etc/passwd
    echo 'sshd:x:101:65534::/run/sshd:/usr/sbin/nologin'
  } >"${dir}/etc/passwd"
  sed -i 's/^root:[^:]*:/root:*:/' "${dir}/etc/shadow"
  # This machine's name server does not answer them, and Ray would wait for it. Here nobody listens, and says so.
  rm -f "${dir}/etc/resolv.conf"
  echo 'nameserver 127.0.0.1' >"${dir}/etc/resolv.conf"
}
