# lifecycle/engine: the container engine that all commands of a script go to: docker, or podman through its socket, which speaks
# Docker's API. Both get the same commands of the docker client and Compose v2; DOCKER_HOST says where they go.
# shellcheck shell=bash

ENGINE='' # docker or podman, as engine::choose chose; with a DOCKER_HOST of the user's, the engine that CONTAINER_ENGINE names

# engine::choose: sets ENGINE, and DOCKER_HOST if that is podman; once for a script. It fails only if CONTAINER_ENGINE contradicts the
# cluster that is up: what needs the engine says itself that it does not answer (engine::version).
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

# engine::version: prints which engine answers, its version and its product: "podman 4.3.1|linux/amd64/debian-12". Docker Desktop has a name
# there, the Docker engine mostly none. If no engine answers, one sentence instead of a page.
engine::version() {
  local said about
  said=$(docker version --format '{{.Server.Version}}|{{.Server.Platform.Name}}|{{json .Server.Components}}' 2>/dev/null) || engine::_does_not_answer
  about=${said%|*}
  if [[ $said == *'"Podman Engine"'* ]]; then
    printf 'podman %s\n' "$about"
  elif [[ $CONTAINER_ENGINE == podman ]]; then
    cli::die 1 "DOCKER_HOST=${DOCKER_HOST} (from the environment) does not lead to podman, which CONTAINER_ENGINE=podman (from ${ENV_ORIGIN[CONTAINER_ENGINE]}) asks for: unset DOCKER_HOST, or set it to podman's socket."
  else
    printf 'docker %s\n' "$about"
  fi
}

engine::_does_not_answer() {
  local start='systemctl start podman.socket'
  [[ $ENGINE == podman ]] || engine::need_permission
  [[ $ENGINE == podman ]] ||
    cli::die 1 "No container engine answers ('docker version' fails): start it, or run 'scripts/dev/bootstrap_host.sh --engine'."
  [[ -x $(command -v docker) && $(docker --version 2>/dev/null) != podman* ]] ||
    cli::die 1 "CONTAINER_ENGINE=podman (from ${ENV_ORIGIN[CONTAINER_ENGINE]}) is driven with Docker's own client, and the command docker is missing or podman's (package podman-docker): install docker-cli (docker.io before Debian 13); its daemon need not run."
  (($(id -u) == 0)) || start='systemctl --user start podman.socket'
  cli::die 1 "podman does not answer at ${DOCKER_HOST} (CONTAINER_ENGINE=podman, from ${ENV_ORIGIN[CONTAINER_ENGINE]}): start it with '${start}', or where there is no systemd with 'podman system service --time=0 ${DOCKER_HOST}'."
}

# engine::need_permission: Docker does not refuse this user; whether it answers is another question.
engine::need_permission() {
  local said name
  said=$(docker version 2>&1) || true
  name=$(id -un 2>/dev/null) || name=$(id -u)
  [[ $said != *'permission denied'* ]] ||
    cli::die 1 "The container engine runs, but ${name} may not use it: run 'sudo usermod -aG docker ${name}' and log in again, or run this as root."
}

# engine::is_rootless: root in a container is the user who runs the engine, and to whom its socket belongs. (podman 4.3 does not say so
# in what `docker info` shows.) Docker's default is not, and is not asked.
engine::is_rootless() {
  local owner
  [[ -n $ENGINE && ${DOCKER_HOST:-} == unix://* ]] || return 1
  owner=$(stat -c %u -- "${DOCKER_HOST#unix://}" 2>/dev/null) || return 1
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
