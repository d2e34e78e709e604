#!/usr/bin/env bats
# Several hosts: their file, and why hosts are refused; stubs of ssh and docker answer as the host that was asked for.
# shellcheck disable=SC2016  # text in single quotes is expanded on the host

# bats file_tags=slow

setup() {
  load ../test_helper
  sandbox::make
  ln -sf "$(real_python)" "${BOX}/bin/python3" # it knows what an address of IPv6 is
  printf '%s\n' 'head ssh://me@10.0.0.1' 'worker-0 ssh://me@10.0.0.2:2222' >"${HERE}/env/hosts"
  cp -r "${REPO}"/docker-compose*.yaml "$HERE"
  stub_ssh
  stub docker - <<'STUB'
    case "${DOCKER_HOST:-this} $*" in
      *10.0.0.4*' version '*) echo 'Cannot connect to the Docker daemon.' >&2 && exit 1 ;;
      *' version '*) echo '28.2.2 amd64' ;;
      *' info '*) echo 'io.containerd.runc.v2 nvidia runc ' ;;
    esac
STUB
  stub hostname 'cat "${BOX}/own"'
  : >"${BOX}/own"
}

# on_hosts [KNOB=VALUE...] ARGV...: a function of the libraries with HOSTS_FILE=env/hosts.
on_hosts() { sandbox::verb HOSTS_FILE=env/hosts CLUSTER_NAME=mine "$@"; }

# hosts LINE...: the file.
hosts() { printf '%s\n' "$@" >"${HERE}/env/hosts"; }

@test "WORKERS follows from the file; comments and empty lines are ignored" {
  hosts '# mine' '' '  worker-1 ssh://[fd00::3]:2222 address=fd00::3' 'worker-0 ssh://gpu-0 gpus=4,5,6,7' 'head local address=10.0.0.1'
  on_hosts node::list
  assert_status 0
  assert_line 'worker-1'
  on_hosts hosts::describe worker-1
  assert_line 'worker-1 (ssh://[fd00::3]:2222, line 3 of env/hosts)'
}

@test "a wrong line is refused with its number, before anything is touched" {
  while IFS='|' read -r line sentence; do
    hosts 'head ssh://me@10.0.0.1' "$line"
    on_hosts node::list
    assert_error 2 "${sentence}"
  done <<'CASES'
boss ssh://me@10.0.0.2|'boss' (line 2 of env/hosts) is not a node, or occurs twice: name head, worker-0, worker-1, … once each.
head ssh://me@10.0.0.2|'head' (line 2 of env/hosts) is not a node, or occurs twice: name head, worker-0, worker-1, … once each.
worker-0 me@10.0.0.2|'me@10.0.0.2' (line 2 of env/hosts) is not a host: use local (this machine), ssh://user@host or ssh://user@host:port.
worker-0 ssh://-oProxyCommand=x|'ssh://-oProxyCommand=x' (line 2 of env/hosts) is not a host: use local (this machine), ssh://user@host or ssh://user@host:port.
worker-0 ssh://me@10.0.0.2 gpu=0|'gpu=0' (line 2 of env/hosts) is not a setting of a host: use address=IP (by which the other hosts reach it) or gpus=0,1,….
worker-0 ssh://me@10.0.0.2 gpus=0-3|'gpus=0-3' (line 2 of env/hosts) is not usable: use ids of that host's GPUs, separated by commas, as in gpus=0,1,2,3.
worker-0 ssh://me@10.0.0.2 gpus=0,1|'gpus=0,1' (line 2 of env/hosts) names 2 GPUs, but GPUS_PER_WORKER=4 (from env/defaults.env): name as many, or set GPUS_PER_WORKER.
worker-0 ssh://me@10.0.0.2 address=gpu-0|'address=gpu-0' (line 2 of env/hosts) is no IP address that other machines can use: write the one by which they reach this one, without zeros in front of a number.
worker-1 ssh://me@10.0.0.2|env/hosts (HOSTS_FILE) has no line 'worker-0 ssh://user@host': name the head, and its workers from worker-0 on, without a gap.
#|env/hosts (HOSTS_FILE) has no line 'worker-0 ssh://user@host': name the head, and its workers from worker-0 on, without a gap.
CASES
  [[ ! -s $CALLS ]] || fail "called: $(<"$CALLS")"
}

@test "no file, no head, other WORKERS, a GPU for the head: each is refused" {
  on_hosts WORKERS=3 node::list
  assert_error 2 'WORKERS=3 (from the command line or environment) but env/hosts names 1 workers: leave WORKERS out, because that file decides.'
  hosts 'head ssh://me@10.0.0.1 gpus=0' 'worker-0 ssh://me@10.0.0.2'
  on_hosts node::list
  assert_error 2 "'gpus=0' (line 1 of env/hosts) is for a worker: the head never gets a GPU."
  hosts 'worker-0 ssh://me@10.0.0.1'
  on_hosts node::list
  assert_error 2 "env/hosts (HOSTS_FILE) has no line 'head ssh://user@host': name the head, and its workers from worker-0 on, without a gap."
  rm "${HERE}/env/hosts"
  on_hosts node::list
  assert_error 2 'HOSTS_FILE=env/hosts is not a readable file: copy env/hosts.example there and name your hosts in it.'
}

@test "an address comes from the line, or from the connection to that host" {
  on_hosts hosts::need
  assert_status 0
  hosts 'head local address=10.0.0.254' 'worker-0 ssh://me@10.0.0.2' 'worker-1 ssh://me@10.0.0.5 address=10.1.0.5'
  printf '10.0.0.254 10.1.0.5\n' >"${BOX}/own"
  on_hosts eval 'hosts::need; for node in head worker-0 worker-1; do hosts::address "$node"; done'
  assert_status 0
  assert_line 10.0.0.254
  assert_line 10.0.0.2
  assert_line 10.1.0.5
}

@test "a host that is not one other machine for the others is refused" {
  hosts 'head ssh://me@10.0.0.1' 'worker-0 ssh://me@gpu-0'
  on_hosts ADDRESS=127.0.0.1 hosts::need
  assert_error 2 "head (ssh://me@10.0.0.1, line 1 of env/hosts) has no address by which the other hosts reach it (found: '127.0.0.1'): add address=IP to its line."
  on_hosts ADDRESS=10.0.0.7 hosts::need
  assert_error 2 "worker-0 (ssh://me@gpu-0, line 2 of env/hosts) has the address 10.0.0.7, as head has: on several hosts nodes use the host's network, where a driver attaches to the first Ray node of its address, so give each host one node."
  printf '10.0.0.1\n' >"${BOX}/own"
  hosts 'head ssh://me@10.0.0.1' 'worker-0 ssh://me@gpu-0 address=10.9.9.9'
  on_hosts hosts::need
  assert_error 2 "address=10.9.9.9 of worker-0 (ssh://me@gpu-0, line 2 of env/hosts) is not an address of that host, which has: 10.0.0.1: use one of those."
}

@test "a host that refuses our key, and an engine that does not answer, are named" {
  hosts 'head ssh://me@10.0.0.1' 'worker-0 ssh://me@10.0.0.9:22'
  on_hosts hosts::need
  assert_error 8 "The host of worker-0 (ssh://me@10.0.0.9:22, line 2 of env/hosts) cannot be reached (me@10.0.0.9: Permission denied (publickey)): 'ssh -p 22 me@10.0.0.9 true' must work without a prompt; fix that first."
  hosts 'head ssh://me@10.0.0.1' 'worker-0 ssh://me@10.0.0.4'
  on_hosts hosts::need
  assert_error 8 "The container engine of worker-0 (ssh://me@10.0.0.4, line 2 of env/hosts) does not answer (Cannot connect to the Docker daemon): start it there, and let that user run 'docker version'."
}

@test "the engine's client reaches a host by our ssh, and reads no greeting" {
  stub docker 'if [[ $* == "system dial-stdio" ]]; then cat; else echo "from $DOCKER_HOST" | ssh -T -- me@10.0.0.2 docker system dial-stdio; fi'
  on_hosts SSH_CONFIG=/my/config hosts::docker worker-0 ps
  assert_status 0
  [[ ${lines[0]} == 'from ssh://me@10.0.0.2:2222' ]] || fail 'other words'
  refute_text 'module loaded'
  assert_called 'ssh -F /my/config -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15'
}

@test "each engine is asked for owners; one that does not answer is left out, and named" {
  hosts 'head local' 'worker-0 ssh://me@10.0.0.2:2222' 'worker-1 ssh://me@10.0.0.4' 'worker-2 ssh://me@10.0.0.9'
  stub docker - <<'STUB'
    [[ ${DOCKER_HOST-} != *10.0.0.4 ]] || { echo 'no engine' >&2 && exit 1; }
    [[ $1 == version ]] || echo "${DOCKER_HOST-this} $1"
STUB
  on_hosts compose::owners
  assert_status 0
  [[ $output == $'ssh://me@10.0.0.2:2222 network\nssh://me@10.0.0.2:2222 ps\nthis network\nthis ps\n=='* ]] || fail 'another order'
  on_hosts hosts::need_released
  assert_error 8 "Containers and Ray's token may still be on worker-1 (ssh://me@10.0.0.4, line 3 of env/hosts), worker-2 (ssh://me@10.0.0.9, line 4 of env/hosts): run 'make down' again when they answer."
}

@test "a script gets its words and our stdin on a host, here and there" {
  hosts 'head local' 'worker-0 ssh://me@10.0.0.2'
  on_hosts eval 'for node in head worker-0; do hosts::on "$node" "echo \"\$#:\$1|\$2 on \${HOST-this}\"; cat" "a  b" "it'\''s \$HOME" <<<"in $node"; done'
  assert_status 0
  [[ $output == $'2:a  b|it\'s $HOME on this\nin head\n2:a  b|it\'s $HOME on 10.0.0.2\nin worker-0\n=='* ]] || fail 'other words'
}

@test "a host that is lost while a command runs there: one sentence and exit 8" {
  stub docker - <<'STUB'
    case $* in
      inspect*) [[ ! -e ${BOX}/lost ]] && echo true ;;
      *'exec mine-head '*' said') echo 'step 1' >&2 && touch "${BOX}/lost" && exit 1 ;;
      *'exec mine-head '*' ends') exit 3 ;;
    esac
STUB
  on_hosts node::exec head ends
  assert_status 3
  on_hosts eval 'hosts::is_reached() { false; }; node::exec head said'
  assert_error 8 "The connection to the host of head (ssh://me@10.0.0.1, line 1 of env/hosts) was lost while 'said' ran there: check the host, then run this again."
  assert_line 'step 1'
}

@test "an engine that sees another directory at the shared root is refused first" {
  mkdir -p "${BOX}/work dir/shared"
  stub docker - <<'STUB'
    case $1 in
      import) cat >/dev/null && printf 'sha256:%064d\n' 7 ;;
      create)
        printf '%s\n' "${3#*\"source=}" >"${BOX}/bound"
        echo its-id
        ;;
      cp)
        directory=$(sed 's/".*//' "${BOX}/bound")
        [[ -e ${directory}/${2##*/} && $DOCKER_HOST != *"$(cat "${BOX}/apart")"* ]] || { echo 'no such file' >&2 && exit 1; }
        ;;
    esac
STUB
  echo nowhere >"${BOX}/apart"
  on_hosts shared::need_seen
  assert_status 0
  [[ $(grep -c '^docker rm its-id$' "$CALLS") == 2 && $(grep -c '^docker rmi sha256:0' "$CALLS") == 2 ]] || fail 'it leaves something'
  [[ -z $(ls -A "${BOX}/work dir/shared") ]] || fail 'it leaves a file'
  echo 10.0.0.2 >"${BOX}/apart"
  on_hosts shared::need_seen
  assert_error 1 "The container engine of worker-0 (ssh://me@10.0.0.2:2222, line 2 of env/hosts) does not see what this machine writes to ${BOX}/work dir/shared (WORKDIR, from the command line or environment; it says: no such file): mount the same directory on every host."
  [[ $(grep -c '^docker rmi sha256:0' "$CALLS") == 4 ]] || fail 'it leaves an image'
}

@test "HOSTS_FILE needs a Compose that can take a service's networks away" {
  hosts 'head local' 'worker-0 ssh://me@10.0.0.2'
  for version in v2.23.3 2.24.0 5.0.1 dev; do
    stub docker "echo ${version}"
    on_hosts prereq::compose
    if [[ $version != v2.23.3 ]]; then
      assert_line "ok      Compose ${version}"
    else
      assert_error 1 "Compose v2.23.3 ('docker compose version') is too old for HOSTS_FILE (from the command line or environment), which needs 2.24: install a newer docker-compose-plugin, or put one at ${BOX}/home dir/.docker/cli-plugins/docker-compose."
      sandbox::verb prereq::compose
      assert_line "ok      Compose v2.23.3"
    fi
  done
}

@test "each node gets its host's network, its own devices, and that home's token" {
  hosts 'head ssh://me@10.0.0.1' 'worker-0 ssh://me@10.0.0.2 gpus=4,5,6,7'
  on_hosts PROFILE=gpu eval 'hosts::need; compose::render worker-0'
  assert_status 0
  assert_line '    network_mode: host'
  assert_line '    labels: {verl-regress.address: "10.0.0.2"}'
  assert_line '    deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ["4", "5", "6", "7"], capabilities: [gpu]}]}}}'
  assert_line "      - {type: bind, source: \"${BOX}/home dir/.verl-regress/mine.token\", target: /run/secrets/ray_token, read_only: true}"
  assert_line '      - "mine-head=10.0.0.1"'
  assert_line '  head: {profiles: [elsewhere]}'
}

@test "GPUs and devices that a host lacks are named" {
  stub nvidia-smi 'for i in 0 1 2 3; do echo "GPU $i: NVIDIA"; done'
  hosts 'head ssh://me@10.0.0.1' 'worker-0 ssh://me@10.0.0.2 gpus=4,5,6,7'
  on_hosts PROFILE=gpu prereq::run hosts::check
  assert_error 1 'worker-0 (ssh://me@10.0.0.2, line 2 of env/hosts) has 4 NVIDIA GPUs (nvidia-smi -L), but worker-0 is to get those with the ids 4,5,6,7 (profile gpu): lower GPUS_PER_WORKER, or name others with gpus= in its line.'
  hosts 'head ssh://me@10.0.0.1' 'worker-0 ssh://me@10.0.0.2'
  on_hosts PROFILE=gpu prereq::run hosts::check
  assert_status 0
  assert_line 'ok      the container engine of worker-0 (ssh://me@10.0.0.2, line 2 of env/hosts) can hand out NVIDIA GPUs'
  on_hosts WORKER_DEVICES=/dev/no-such-device prereq::run hosts::check
  assert_error 1 'worker-0 (ssh://me@10.0.0.2, line 2 of env/hosts) has no /dev/no-such-device (from WORKER_DEVICES or the driver): load its driver, or leave it out.'
}

@test "a cluster that was brought up with another HOSTS_FILE is not taken for this one" {
  mkdir -p "${BOX}/work dir/clusters/mine"
  printf 'HOSTS_FILE=\n' >"${BOX}/work dir/clusters/mine/containers"
  on_hosts hosts::need_same_file
  assert_error 2 "The cluster mine was brought up with HOSTS_FILE='', but HOSTS_FILE is now 'env/hosts' (from the command line or environment): give the old value, or run 'make down HOSTS_FILE=' first."
  printf 'HOSTS_FILE=env/hosts\n' >"${BOX}/work dir/clusters/mine/containers"
  on_hosts eval 'hosts::need_same_file; echo same'
  assert_line same
}

@test "a host that runs a node and is no longer in the file is refused first" {
  local kept="${BOX}/work dir/clusters/mine/hosts"
  mkdir -p "${kept%/*}"
  on_hosts hosts::keep
  [[ $(<"$kept") == $'head ssh://me@10.0.0.1\nworker-0 ssh://me@10.0.0.2:2222' ]] || fail "$(<"$kept")"
  hosts 'worker-0 ssh://me@10.0.0.2:2222 gpus=0,1,2,3' 'worker-1 local' 'head ssh://me@10.0.0.1'
  on_hosts hosts::need_same_file
  assert_status 0
  hosts 'head ssh://me@10.0.0.1' 'worker-0 ssh://me@10.0.0.5'
  on_hosts hosts::need_same_file
  assert_error 2 "The cluster mine has its worker-0 on ssh://me@10.0.0.2:2222, but env/hosts (HOSTS_FILE) does not say so any more: restore that line, or run 'make down' before you change it."
}

@test "make tunnel leads to each node's host, where the port listens on 127.0.0.1 alone" {
  on_hosts SSH_CONFIG='/my files/config' nodes::show_forwards 8265:head:8265 5678:worker-0:41234
  assert_status 0
  assert_line 'ssh -N -F /my\ files/config -L 8265:127.0.0.1:8265 me@10.0.0.1'
  assert_line "ssh -N -F /my\ files/config -p 2222 -L 5678:127.0.0.1:41234 me@10.0.0.2"
  on_hosts nodes::dashboard_address
  assert_line "http://127.0.0.1:8265 after 'ssh -N -L 8265:127.0.0.1:8265 me@10.0.0.1'"
  on_hosts nodes::debugger_host
  assert_line 127.0.0.1
}
