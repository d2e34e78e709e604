#!/usr/bin/env bats
# The cluster on podman, through its socket: the transport contract, `make up` twice, a real job, and `make down`. The node image comes
# from docker, because loading it takes a third of the time that building it takes. Setting all this up takes a minute or two.

setup_file() {
  load ../container/container_helper
  container::use podman 18275 vrplatform
  export CONTAINER_ENGINE=podman
  image=$(CONTAINER_ENGINE=docker scripts/10_build_image.sh --name)
  container::quietly engine scripts/dev/bootstrap_host.sh --engine
  export PODMAN=unix:///run/podman/podman.sock
  DOCKER_HOST=$PODMAN docker image inspect "$image" >/dev/null 2>&1 || docker save "$image" | DOCKER_HOST=$PODMAN docker load --quiet
  container::cluster
}

teardown_file() {
  load ../container/container_helper
  make --no-print-directory down FORCE=1 >/dev/null 2>&1
  scripts/dev/bootstrap_host.sh --stop-engine >/dev/null 2>&1
}

setup() {
  load ../container/container_helper
  load ../contract/transport_contract
  export TRANSPORT=container WORKERS=2 SHARED_ROOT=/private
}

# ours WHAT: the names of podman's containers or networks that bear this cluster's label.
ours() {
  case $1 in
    containers) podman ps --all --filter "label=verl-regress.cluster=${CLUSTER_NAME}" --format '{{.Names}}' | sort ;;
    networks) podman network ls --filter "label=verl-regress.cluster=${CLUSTER_NAME}" --format '{{.Name}}' ;;
  esac
}

@test "podman: the transport contract" {
  contract::all
}

@test "podman: containers and network are podman's, with our label; docker has none" {
  [[ $(ours containers) == "${CLUSTER_NAME}-head"$'\n'"${CLUSTER_NAME}-worker-0"$'\n'"${CLUSTER_NAME}-worker-1" ]]
  [[ $(ours networks) == "${CLUSTER_NAME}_ray" ]]
  [[ -z $(docker ps --all --quiet --filter "label=verl-regress.cluster=${CLUSTER_NAME}") ]]
  [[ $(podman exec "${CLUSTER_NAME}-head" cat /proc/1/comm) == podman-init ]] # catatonit
  podman exec "${CLUSTER_NAME}-head" getent hosts "${CLUSTER_NAME}-worker-1"
  [[ $(podman port "${CLUSTER_NAME}-head") == '8265/tcp -> 127.0.0.1:18275' ]]
}

@test "podman: a second make up changes nothing, with localhost/ before the image" {
  run env -u CONTAINER_ENGINE NODE_IMAGE="localhost/$(scripts/10_build_image.sh --name)" make --no-print-directory up
  assert_status 0
  assert_line 'ok      container engine podman [0-9.]+'
  assert_line "ok      containers run: ${CLUSTER_NAME}-head ${CLUSTER_NAME}-worker-0 ${CLUSTER_NAME}-worker-1"
  [[ $output != *changed* ]] || fail 'something was changed'
  run make --no-print-directory status CONTAINER_ENGINE=docker
  assert_status 2
  [[ $output == *"error   CONTAINER_ENGINE is docker (from the command line or environment), but the cluster ${CLUSTER_NAME} was brought up with podman: take it down with 'make down CONTAINER_ENGINE=podman' first, or set another CLUSTER_NAME (if podman is gone, remove ${WORKDIR}/clusters/${CLUSTER_NAME})."* ]]
}

@test "podman: a job trains from its snapshot, and the owner of WORKDIR owns its files" {
  run make --no-print-directory submit WORKLOAD=sft WAIT=1 SUBMISSION_ID=podman-sft OVERRIDES=trainer.total_training_steps=2
  assert_status 0
  assert_line 'ok      podman-sft SUCCEEDED \(the trainer ended\)'
  run scripts/53_fidelity.sh
  assert_status 0
  assert_line 'ok      fidelity: [0-9]+ of [0-9]+ checks passed'
  [[ -z $(find "${WORKDIR}/shared/jobs/podman-sft" ! -user "$(stat -c %u "$WORKDIR")") ]]
}

@test "podman: make down removes exactly what is ours, and nothing of it is left" {
  neighbour=$(podman create --name "${CLUSTER_NAME}-neighbour" "$(scripts/10_build_image.sh --name)" true)
  run make --no-print-directory down
  assert_status 0
  [[ -z $(ours containers)$(ours networks) ]]
  [[ ! -e ${WORKDIR}/shared/secrets/${CLUSTER_NAME} && ! -e ${WORKDIR}/clusters/${CLUSTER_NAME} ]]
  podman rm "$neighbour"
}
