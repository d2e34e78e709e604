# lifecycle/engine: the container engine that all commands of a script go to: docker, or podman through its socket, which speaks
# Docker's API. Both get the same commands of the docker client and Compose v2; DOCKER_HOST says where they go.
# shellcheck shell=bash

ENGINE='' # docker or podman, as engine::choose chose; with a DOCKER_HOST of the user's, the engine that CONTAINER_ENGINE names

# engine::choose: sets ENGINE, and DOCKER_HOST if that is podman; once for a script. It fails only if CONTAINER_ENGINE contradicts the
# cluster that is up: what needs the engine says itself that it does not answer (engine::need).
engine::choose() {
  local made # the engine of the cluster that is up, from engine::keep
  [[ -z $ENGINE ]] || return 0
  ENGINE=$CONTAINER_ENGINE
  [[ -z ${DOCKER_HOST:-} ]] || return 0
  made=$(sed -nE 's/^CONTAINER_ENGINE=(docker|podman)$/\1/p' -- "${WORKDIR}/clusters/${CLUSTER_NAME}/engine" 2>/dev/null) || true
  if [[ $CONTAINER_ENGINE == auto ]]; then
    ENGINE=${made:-$(engine::_find)}
    [[ -z $made ]] || ENV_ORIGIN[CONTAINER_ENGINE]="the cluster ${CLUSTER_NAME}"
  elif [[ -n $made && $made != "$CONTAINER_ENGINE" ]]; then
    cli::die 2 "CONTAINER_ENGINE is ${CONTAINER_ENGINE} (from ${ENV_ORIGIN[CONTAINER_ENGINE]}), but the cluster ${CLUSTER_NAME} was brought up with ${made}: take it down with 'make down CONTAINER_ENGINE=${made}' first, or set another CLUSTER_NAME (if ${made} is gone, remove ${WORKDIR}/clusters/${CLUSTER_NAME})."
  fi
  CONTAINER_ENGINE=$ENGINE
  [[ $ENGINE != podman ]] || engine::use_podman
}

# engine::keep: the scripts after `make up` use the same engine, also without the knob (cluster_knobs::forget ends that).
engine::keep() { cluster_knobs::keep engine CONTAINER_ENGINE; }

# engine::_find: the engine that answers; docker if both do, or none.
engine::_find() {
  # `docker ps`, because `docker version` takes podman (4.3) a second: it runs its parts to ask for their versions.
  if ! docker version >/dev/null 2>&1 && DOCKER_HOST=$(engine::podman_host) docker ps --quiet >/dev/null 2>&1; then
    printf 'podman\n'
  else
    printf 'docker\n'
  fi
}

engine::use_podman() {
  DOCKER_HOST=$(engine::podman_host)
  export DOCKER_HOST
}

# engine::podman_host: where podman listens: root's socket or the user's own, as in podman-system-service(1).
engine::podman_host() {
  if [[ -n ${CONTAINER_HOST:-} ]]; then
    printf '%s\n' "$CONTAINER_HOST"
  elif (($(id -u) == 0)); then
    printf 'unix://%s/run/podman/podman.sock\n' "${HOST_ROOT:-}"
  else
    printf 'unix://%s/podman/podman.sock\n' "${XDG_RUNTIME_DIR:-/run/user/$(id -u)}"
  fi
}

# What the engine says of itself, from engine::ask; if none answers, ENGINE_REASON is what the client says last.
ENGINE_ASKED='' ENGINE_VERSION='' ENGINE_LICENSE='' ENGINE_SECURITY='' ENGINE_REASON=''
# A client before 23 says only here why no engine answers.
readonly _ENGINE_QUESTION='|{{.ServerVersion}}|{{.ProductLicense}}|{{.SecurityOptions}}|{{range .ServerErrors}}{{.}}{{end}}'

# engine::ask: asks the engine what it is, once for a script: a script that uses the answer in several subshells asks before them.
engine::ask() {
  local said line status=0 error=''
  [[ -z $ENGINE_ASKED ]] || return 0
  ENGINE_ASKED=1
  if ! command -v docker >/dev/null; then
    ENGINE_REASON='there is no command docker'
    return
  fi
  said=$(docker info --format "$_ENGINE_QUESTION" 2>&1) || status=$?
  while IFS= read -r line; do
    if [[ $line == '|'* ]]; then
      IFS='|' read -r _ ENGINE_VERSION ENGINE_LICENSE ENGINE_SECURITY error <<<"$line"
    elif [[ -n $line ]]; then
      ENGINE_REASON=$line
    fi
  done <<<"$said"
  ((status == 0)) || error=${error:-"'docker info' fails"}
  if [[ -n $ENGINE_VERSION ]]; then
    ENGINE_REASON='' # a warning
  else
    ENGINE_REASON=$(cli::shown "${ENGINE_REASON:-$error}")
  fi
}

# engine::need [STATUS]: an engine answers, and it is the one that CONTAINER_ENGINE names; else the script ends with the reason.
engine::need() {
  local status=${1:-1} settings name
  engine::ask
  if [[ -z $ENGINE_REASON ]]; then
    [[ ${CONTAINER_ENGINE-} != podman ]] || engine::is_podman ||
      cli::die "$status" "DOCKER_HOST=${DOCKER_HOST} (from the environment) does not lead to podman, which CONTAINER_ENGINE=podman (from ${ENV_ORIGIN[CONTAINER_ENGINE]}) asks for: unset DOCKER_HOST, or set it to podman's socket."
    return
  fi
  [[ $ENGINE != podman ]] || engine::_need_podman "$status"
  if [[ $ENGINE_REASON == *'permission denied'* ]]; then
    name=$(id -un 2>/dev/null) || name=$(id -u)
    cli::die 1 "The container engine runs, but ${name} may not use it: run 'sudo usermod -aG docker ${name}' and log in again, or run this as root."
  fi
  ! engine::is_startable ||
    cli::die "$status" "No container engine answers (${ENGINE_REASON}): start it, or run 'scripts/dev/bootstrap_host.sh --engine'."
  settings=$(engine::_settings)
  [[ -n $settings ]] || settings="the client's context ('docker context show')"
  cli::die "$status" "The container engine cannot be asked (${ENGINE_REASON}): correct or unset ${settings}, or start the engine that this names."
}

# engine::is_startable: nothing answers where an engine of this machine listens, so starting or installing one would help.
engine::is_startable() {
  ! command -v docker >/dev/null || [[ $ENGINE_REASON == *'//var/run/docker.sock'* && $ENGINE_REASON != *'permission denied'* ]]
}

# engine::_settings: the environment's settings of the client, as NAME=VALUE.
engine::_settings() {
  local name set=()
  for name in DOCKER_HOST DOCKER_CONTEXT DOCKER_API_VERSION DOCKER_TLS DOCKER_TLS_VERIFY DOCKER_CERT_PATH DOCKER_CONFIG; do
    [[ -z ${!name:-} ]] || set+=("${name}=${!name}")
  done
  printf '%s' "${set[*]}"
}

engine::_need_podman() {
  local start='systemctl start podman.socket'
  [[ -x $(command -v docker) && $(docker --version 2>/dev/null) != podman* ]] ||
    cli::die "$1" "CONTAINER_ENGINE=podman (from ${ENV_ORIGIN[CONTAINER_ENGINE]}) is driven with Docker's own client, and the command docker is missing or podman's (package podman-docker): install docker-cli (docker.io before Debian 13); its daemon need not run."
  (($(id -u) == 0)) || start='systemctl --user start podman.socket'
  cli::die "$1" "podman does not answer at ${DOCKER_HOST} (CONTAINER_ENGINE=podman, from ${ENV_ORIGIN[CONTAINER_ENGINE]}; ${ENGINE_REASON}): start it with '${start}', or where there is no systemd with 'podman system service --time=0 ${DOCKER_HOST}'."
}

# engine::is_podman: the engine that answers. Docker's has another license, or names none.
engine::is_podman() {
  engine::ask
  [[ $ENGINE_LICENSE == Apache-2.0 ]]
}

# engine::describe: prints which engine answers, after engine::need: "podman 4.3.1".
engine::describe() { if engine::is_podman; then printf 'podman %s\n' "$ENGINE_VERSION"; else printf 'docker %s\n' "$ENGINE_VERSION"; fi; }

# engine::is_rootless: root in a container is the user who runs the engine.
engine::is_rootless() {
  [[ -n $ENGINE ]] || return 1
  engine::ask
  [[ $ENGINE_SECURITY == *name=rootless* ]] || engine::_is_podman_of_user
}

# engine::_is_podman_of_user: podman before 5 does not say that it is rootless; its socket then belongs to its user.
engine::_is_podman_of_user() {
  local socket owner
  engine::is_podman || return 1
  socket=${DOCKER_HOST:-$(docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null)} || return 1
  owner=$(stat -c %u -- "${socket#unix://}" 2>/dev/null) || return 1
  ((owner != 0))
}

# engine::user: who the containers run as, as UID:GID: RUN_AS, or else the owner of WORKDIR, so that a person can delete what jobs wrote.
# Without root that is the containers' root; each other user of theirs is one of the user's subordinate ids.
engine::user() {
  if [[ -n $RUN_AS ]]; then
    printf '%s\n' "$RUN_AS"
  elif engine::is_rootless; then
    printf '0:0\n'
  elif [[ -e $WORKDIR ]]; then
    stat -c '%u:%g' -- "$WORKDIR"
  else # `make up` makes it
    printf '%s:%s\n' "$(id -u)" "$(id -g)"
  fi
}
