#!/usr/bin/env bats
# bootstrap_host: checks first, changes nothing if it cannot finish, and says skip the second time.

# bats file_tags=slow

setup() {
  load ../test_helper
  sandbox::make
  printf 'ID=debian\n' >"${BOX}/root/etc/os-release"
  # A machine that has everything except .venv.
  for tool in make jq git ssh apt-get iptables mmdebstrap dockerd; do stub "$tool"; done
  stub apt-cache
  stub parallel 'echo "GNU parallel 2022"'
  user_id 0
  stub docker - <<'SH'
    [[ $* == "compose version"* ]] && echo v2.40.3 || echo 20.10
SH
  stub python3 - <<'SH'
    case "$*" in
      --version) echo "Python 3.11.7" ;;
      "-m venv --clear "*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
    esac
SH
}

user_id() {
  stub id - <<SH
    case \$1 in -u) echo $1 ;; -un) echo alice ;; esac
SH
}
bootstrap() { sandbox::run "$@"; }
detached_starts() {
  stub setsid - <<'SH'
    shift
    ("$@" &)
SH
}
# An engine that never answers, with its messages.
no_engine() { stub docker "echo '${1:-Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?}' >&2; exit 1"; }

# promise: starts a second container engine, or reconfigures yours
@test "makes .venv from the lock, and skips everything the second time" {
  bootstrap scripts/dev/bootstrap_host.sh --engine
  assert_status 0
  assert_line "        will make ${HERE}/.venv from requirements-dev.lock"
  assert_line "skip    packages (all there)"
  assert_called "-m pip install --requirement ${HERE}/requirements-dev.lock"
  : >"$CALLS"
  bootstrap scripts/dev/bootstrap_host.sh --engine
  assert_status 0
  assert_line "skip    packages (all there)"
  assert_line "skip    ${HERE}/.venv (exists, same requirements-dev.lock)"
  assert_line "skip    container engine (answers, version 20.10)"
  assert_line "skip    Compose v2 (version v2.40.3)"
  refute_text changed
  refute_called "pip install"
  refute_called "apt-get"
}

@test "an option installs what it needs, unless that is there" {
  local option packages tools
  while read -r option packages tools; do
    : >"$CALLS"
    bootstrap scripts/dev/bootstrap_host.sh "$option"
    assert_status 0
    assert_called "apt-get install --yes --no-remove --no-install-recommends ${packages//,/ }"
    : >"$CALLS"
    for tool in $tools; do stub "$tool"; done
    bootstrap scripts/dev/bootstrap_host.sh "$option"
    assert_status 0
    refute_called "apt-get"
  done <<'EOT'
--slurm slurm-client sbatch munged
--rootless uidmap,slirp4netns newuidmap slirp4netns
--browser chromium google-chrome
EOT
}

@test "installs what is missing, and moreutils' parallel is not GNU parallel" {
  rm "${BOX}"/bin/{jq,git}
  stub parallel 'echo "parallel: not this one"'
  bootstrap scripts/dev/bootstrap_host.sh
  assert_status 0
  assert_line "        missing: jq parallel git"
  assert_line "        will install with apt-get: jq parallel git"
  assert_line "changed installed jq parallel git"
  assert_called "apt-get install --yes --no-remove --no-install-recommends jq parallel git"
}

@test "without root and sudo, or on another distribution, it only prints the list" {
  local list="Nothing was changed. Do this by hand, then run this again: install with apt-get: jq; make ${HERE}/.venv from requirements-dev.lock."
  rm "${BOX}/bin/jq"
  user_id 1000
  bootstrap scripts/dev/bootstrap_host.sh
  assert_error 1 "This needs root, and alice is not root and has no working sudo. ${list}"
  printf 'ID=fedora\n' >"${BOX}/root/etc/os-release"
  bootstrap scripts/dev/bootstrap_host.sh
  assert_error 1 "This machine is not Debian or Ubuntu (${BOX}/root/etc/os-release). ${list}"
  refute_called "apt-get"
  [[ ! -e ${HERE}/.venv ]]
}

@test "a Python that is too old" {
  stub python3 - <<'SH'
    case "$*" in --version) echo "Python 3.9.2" ;; "-c import sys"*) exit 1 ;; esac
SH
  bootstrap scripts/dev/bootstrap_host.sh
  assert_error 1 "python3 is Python 3.9.2, and 3.10 or newer is needed: put a newer python3 first on PATH. Nothing was changed."
}

# promise: starts a second container engine, or reconfigures yours
@test "an engine that is asked elsewhere, or wrongly, is not replaced by one of ours" {
  no_engine 'Cannot connect to the Docker daemon at tcp://far:1. Is the docker daemon running?'
  bootstrap DOCKER_HOST=tcp://far:1 scripts/dev/bootstrap_host.sh --engine
  assert_error 1 "The container engine cannot be asked (Cannot connect to the Docker daemon at tcp://far:1. Is the docker daemon running?): correct or unset DOCKER_HOST=tcp://far:1, or start the engine that this names."
  no_engine 'Failed to initialize: unable to resolve docker endpoint: open /ca.pem: no such file or directory'
  bootstrap DOCKER_TLS_VERIFY=1 scripts/dev/bootstrap_host.sh --engine
  assert_error 1 "The container engine cannot be asked (Failed to initialize: unable to resolve docker endpoint: open /ca.pem: no such file or directory): correct or unset DOCKER_TLS_VERIFY=1, or start the engine that this names."
  refute_text 'will '
}

@test "a dockerd that ends at once is not waited for, and its last lines are shown" {
  no_engine
  detached_starts
  stub dockerd 'echo "failed to start daemon: no cgroups"; exit 1'
  bootstrap scripts/dev/bootstrap_host.sh --engine
  assert_status 1
  assert_line "        will start the container engine (dockerd, log in ${BOX}/root/var/log/verl-regress-dockerd.log)"
  assert_line "failed to start daemon: no cgroups"
  assert_line "error   dockerd ended at once; the last lines of ${BOX}/root/var/log/verl-regress-dockerd.log are above."
}

@test "where there is systemd, it starts the engine" {
  no_engine
  mkdir -p "${BOX}/root/run/systemd/system"
  stub systemctl "printf '#!/bin/bash\necho 20.10\n' >'${BOX}/bin/docker'"
  bootstrap scripts/dev/bootstrap_host.sh --engine
  assert_line "changed container engine started (version 20.10)"
  assert_called "systemctl start docker"
  refute_called "dockerd"
}

@test "CONTAINER_ENGINE=podman without systemd: podman is installed, its socket started" {
  no_engine
  detached_starts
  stub podman - <<'SH'
    trap 'rm -f "${BOX}/listening"; exit' TERM
    printf '%s\n' "${CONTAINERS_CONF-}" >"${BOX}/listening"
    while :; do read -rt 0.1 <> <(:) || true; done
SH
  mv "${BOX}/bin/podman" "${BOX}/podman"
  stub apt-get - <<'SH'
    [[ $* != *install* ]] || {
      printf '#!/bin/bash\n[[ $* == "compose version"* ]] && echo v2.40.3 || { [[ -e %q ]] && echo 4.3.1; }\n' "${BOX}/listening" >"${BOX}/bin/docker"
      cp "${BOX}/podman" "${BOX}/bin/podman"
    }
SH
  bootstrap CONTAINER_ENGINE=podman scripts/dev/bootstrap_host.sh --engine
  assert_status 0
  assert_line "        missing: podman catatonit netavark aardvark-dns"
  assert_line "        will start podman's socket (podman system service, log in ${BOX}/root/var/log/verl-regress-podman.log)"
  assert_line "changed container engine started (podman, version 4.3.1)"
  assert_called "podman system service --time=0 unix://${BOX}/root/run/podman/podman.sock"
  refute_called dockerd
  [[ $(<"${BOX}/listening") == "$([[ ! -e ${BOX}/root/run/verl-regress-podman.conf ]] || echo "${BOX}/root/run/verl-regress-podman.conf")" ]]
  bootstrap CONTAINER_ENGINE=podman scripts/dev/bootstrap_host.sh --stop-engine
  assert_status 0
  assert_line "changed container engine stopped (podman)"
  [[ ! -e ${BOX}/listening ]]
  bootstrap CONTAINER_ENGINE=podman scripts/dev/bootstrap_host.sh --stop-engine
  assert_line "skip    container engine (none that we started is running)"
}

@test "CONTAINER_ENGINE=podman with systemd: it starts the socket, a user's too" {
  no_engine
  stub dpkg # its parts are installed
  stub podman
  stub newuidmap
  stub slirp4netns
  mkdir -p "${BOX}/root/run/systemd/system"
  stub systemctl "printf '#!/bin/bash\necho 4.3.1\n' >'${BOX}/bin/docker'"
  bootstrap CONTAINER_ENGINE=podman scripts/dev/bootstrap_host.sh --engine
  assert_called "systemctl start podman.socket"
  no_engine
  user_id 1000
  bootstrap CONTAINER_ENGINE=podman scripts/dev/bootstrap_host.sh --engine
  assert_line "        will start podman's socket"
  assert_line "changed container engine started (podman, version 4.3.1)"
  assert_called "systemctl --user start podman.socket"
}
