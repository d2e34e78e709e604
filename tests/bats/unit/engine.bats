#!/usr/bin/env bats
# Which container engine a script uses (CONTAINER_ENGINE), how it is reached, and every message about one that is not there.

# bats file_tags=slow

setup() {
  load ../test_helper
  sandbox::make
  mkdir -p "${BOX}/state"
  user_id 0
  # Docker's client: each endpoint answers if its file is in state/. The output of podman 4.3.1, shortened.
  stub docker - <<'SH'
    kind=docker
    case ${DOCKER_HOST-} in *podman.sock) kind=podman ;; *other.sock) kind=other ;; esac
    case $1 in
      --version) echo "Docker version 28.2.2, build e6534b4"; exit ;;
    esac
    [[ $1 != context ]] || { cat "${BOX}/state/endpoint"; exit; }
    [[ -e ${BOX}/state/${kind} ]] || { echo "${REASON:-Cannot connect to the Docker daemon at ${DOCKER_HOST-unix:///var/run/docker.sock}. Is the docker daemon running?}" >&2; exit 1; }
    [[ $1 == info ]] || exit 0
    license='' version=20.10.24
    [[ $kind != podman ]] || license=Apache-2.0 version=4.3.1
    echo "|${version}|${license}|$(cat "${BOX}/state/${kind}")|"
SH
  SOCKET="unix://${BOX}/root/run/podman/podman.sock"
}

user_id() { stub id "case \$1 in -un) echo alice ;; *) echo $1 ;; esac"; }
# socket_of UID: podman's socket belongs to that user.
socket_of() { stub stat "[[ \$* == *podman.sock ]] && echo $1 || exec $(type -P stat) \"\$@\""; }
# answers ENGINE [OPTION...]: it runs, with these security options.
answers() { echo "[${*:2}]" >"${BOX}/state/$1"; }
lib() { sandbox::lines "${@:1:$#-1}" <<<"${*: -1}"; }
# The engine that is used, and where.
# shellcheck disable=SC2016  # expanded by the script
chosen() { lib "$@" 'engine::need; echo "$ENGINE at ${DOCKER_HOST-default}: $(engine::describe)"'; }
brought_up_with() {
  mkdir -p "${BOX}/work dir/clusters/mvp11"
  echo "CONTAINER_ENGINE=$1" >"${BOX}/work dir/clusters/mvp11/engine"
}
@test "auto takes docker if both answer, podman if only podman does" {
  answers docker
  answers podman
  chosen
  assert_line "docker at default: docker 20.10.24"
  rm "${BOX}/state/docker"
  chosen
  assert_line "podman at ${SOCKET}: podman 4.3.1"
}

@test "auto goes on with the engine that the cluster was brought up with" {
  answers docker
  answers podman
  brought_up_with podman
  chosen
  assert_line "podman at ${SOCKET}: podman 4.3.1"
  : >"$CALLS"
  brought_up_with docker
  lib engine::keep
  [[ $(<"${BOX}/work dir/clusters/mvp11/engine") == CONTAINER_ENGINE=docker ]]
  refute_called "docker version"
  refute_called "docker ps"
}

@test "an engine that runs and refuses this user is no engine that is to be started" {
  stub docker 'echo "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock" >&2; exit 1'
  for ask in image::need_engine 'node::exec head true'; do
    lib "$ask"
    assert_error 1 "The container engine runs, but alice may not use it: run 'sudo usermod -aG docker alice' and log in again, or run this as root."
  done
}

@test "another engine than the cluster's" {
  answers docker
  brought_up_with podman
  lib CONTAINER_ENGINE=docker true
  assert_error 2 "CONTAINER_ENGINE is docker (from the command line or environment), but the cluster mvp11 was brought up with podman: take it down with 'make down CONTAINER_ENGINE=podman' first, or set another CLUSTER_NAME (if podman is gone, remove ${BOX}/work dir/clusters/mvp11)."
}

@test "a DOCKER_HOST of the user's is used as it is, by auto and by docker" {
  answers other
  answers docker
  for engine in auto docker; do
    chosen CONTAINER_ENGINE="$engine" DOCKER_HOST=unix:///other.sock
    assert_line "${engine} at unix:///other.sock: docker 20.10.24"
  done
  lib CONTAINER_ENGINE=podman DOCKER_HOST=unix:///other.sock image::need_engine
  assert_error 1 "DOCKER_HOST=unix:///other.sock (from the environment) does not lead to podman, which CONTAINER_ENGINE=podman (from the command line or environment) asks for: unset DOCKER_HOST, or set it to podman's socket."
}

@test "podman's own CONTAINER_HOST names its socket" {
  answers podman
  chosen CONTAINER_ENGINE=podman CONTAINER_HOST=unix:///mine/podman.sock
  assert_line "podman at unix:///mine/podman.sock: podman 4.3.1"
}

@test "podman's socket does not answer" {
  lib CONTAINER_ENGINE=podman image::need_engine
  assert_error 1 "podman does not answer at ${SOCKET} (CONTAINER_ENGINE=podman, from the command line or environment; Cannot connect to the Docker daemon at ${SOCKET}. Is the docker daemon running?): start it with 'systemctl start podman.socket', or where there is no systemd with 'podman system service --time=0 ${SOCKET}'."
  user_id 1000
  lib CONTAINER_ENGINE=podman image::need_engine
  assert_error 1 "podman does not answer at unix:///run/user/1000/podman/podman.sock (CONTAINER_ENGINE=podman, from the command line or environment; Cannot connect to the Docker daemon at unix:///run/user/1000/podman/podman.sock. Is the docker daemon running?): start it with 'systemctl --user start podman.socket', or where there is no systemd with 'podman system service --time=0 unix:///run/user/1000/podman/podman.sock'."
}

@test "podman without docker's client, or with podman's own in its place" {
  stub docker '[[ $* != --version ]] || echo "podman version 4.3.1"; exit 125'
  for _ in 1 2; do
    lib CONTAINER_ENGINE=podman image::need_engine
    assert_error 1 "CONTAINER_ENGINE=podman (from the command line or environment) is driven with Docker's own client, and the command docker is missing or podman's (package podman-docker): install docker-cli (docker.io before Debian 13); its daemon need not run."
    rm -f "${BOX}/bin/docker"
  done
}

@test "who the containers run as" {
  answers podman
  answers docker
  user_id 1000
  lib CONTAINER_ENGINE=docker engine::user # WORKDIR is still to be made
  assert_line 1000:1000
  mkdir -p "${BOX}/work dir"
  lib CONTAINER_ENGINE=docker engine::user
  assert_line "$(stat -c %u:%g "${BOX}/work dir")"
  lib CONTAINER_ENGINE=docker RUN_AS=4242:4243 engine::user
  assert_line 4242:4243
  socket_of 1000 # podman without root: root in its containers is its user
  lib CONTAINER_ENGINE=podman engine::user
  assert_line 0:0
  echo "$SOCKET" >"${BOX}/state/endpoint" # the same one, named by a context of the client
  answers docker
  stub docker "[[ \$1 == context ]] && echo '${SOCKET}' || echo '|4.3.1|Apache-2.0|[]|'"
  lib CONTAINER_ENGINE=docker engine::user
  assert_line 0:0
}

@test "Docker without root is found by what it says, also through a context" {
  answers docker name=seccomp,profile=default name=rootless
  lib CONTAINER_ENGINE=docker engine::user
  assert_line 0:0
  [[ $(grep -c '^docker info' "$CALLS") == 1 ]] || fail 'asked again'
}

@test "why no engine answers is in the sentence, with the setting that names it" {
  lib image::need_engine
  assert_error 1 "No container engine answers (Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?): start it, or run 'scripts/dev/bootstrap_host.sh --engine'."
  while IFS='|' read -r setting reason; do
    stub docker "printf 'WARNING: old configuration\\n%s\\n' '${reason}' >&2; [[ \$1 == info ]]"
    lib "$setting" image::need_engine
    assert_error 1 "The container engine cannot be asked (${reason}): correct or unset ${setting}, or start the engine that this names."
  done <<'END'
DOCKER_API_VERSION=1.99|Error response from daemon: client version 1.99 is too new. Maximum supported API version is 1.41
DOCKER_CONTEXT=colima|Failed to initialize: unable to resolve docker endpoint: context "colima": context not found
DOCKER_TLS_VERIFY=1|Failed to initialize: unable to resolve docker endpoint: open /root/.docker/ca.pem: no such file or directory
DOCKER_HOST=unix:///other.sock|Cannot connect to the Docker daemon at unix:///other.sock. Is the docker daemon running?
END
  # shellcheck disable=SC2016  # expanded when the stub runs
  stub docker '[[ $1 != info ]] || echo "||||Error response from daemon: client version 1.43 is too new."' # a client of 20.10
  lib image::need_engine
  assert_error 1 "The container engine cannot be asked (Error response from daemon: client version 1.43 is too new.): correct or unset the client's context ('docker context show'), or start the engine that this names."
}

@test "NVIDIA GPUs cannot be had through podman's socket" {
  answers podman
  stub nvidia-smi 'printf "GPU %d: NVIDIA H200\n" 0 1'
  lib CONTAINER_ENGINE=podman PROFILE=gpu WORKERS=2 GPUS_PER_WORKER=1 'prereq::run prereq::engine prereq::gpus'
  assert_error 1 "podman 4.3.1 ignores requests for NVIDIA GPUs that come through its socket, so no worker would have one: set CONTAINER_ENGINE=docker, or use nodes that exist already (TRANSPORT=ssh)."
}
