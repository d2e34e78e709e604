# transport/container: nodes are containers named ${CLUSTER_NAME}-<node>; serves every engine with docker's words.
# shellcheck shell=bash

# transport::load: one look at all containers serves the whole script: which of them run, and at what address.
transport::load() {
  local name running address
  while read -r name running address; do
    [[ $running != true || -z $address ]] || _TRANSPORT_ADDRESS[${name#"/${CLUSTER_NAME}-"}]=$address
  done < <(node::list | sed "s/^/${CLUSTER_NAME}-/" |
    xargs docker inspect --format '{{.Name}} {{.State.Running}} {{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}' 2>/dev/null)
}
declare -gA _TRANSPORT_ADDRESS=()

transport::exec() {
  local node=$1
  shift
  transport::_need "$node"
  docker exec "${CLUSTER_NAME}-${node}" "$@"
}

transport::exec_in() {
  local node=$1
  shift
  transport::_need "$node"
  docker exec --interactive "${CLUSTER_NAME}-${node}" "$@"
}

transport::is_alive() {
  [[ $(docker inspect --format '{{.State.Running}}' "${CLUSTER_NAME}-$1" 2>/dev/null) == true ]]
}

transport::address() {
  if [[ -n ${_TRANSPORT_ADDRESS[$1]:-} ]]; then
    printf '%s\n' "${_TRANSPORT_ADDRESS[$1]%% *}"
  else
    transport::exec "$1" hostname -i | awk '{ print $1 }'
  fi
}

# Says in one sentence why a node cannot be reached; asked once a node and script, then remembered.
declare -gA _TRANSPORT_SEEN=()
transport::_need() {
  [[ -z ${_TRANSPORT_ADDRESS[$1]:-}${_TRANSPORT_SEEN[$1]:-} ]] || return 0
  if ! transport::is_alive "$1"; then
    docker version >/dev/null 2>&1 ||
      cli::die 8 "The container engine does not answer ('docker version' fails): start it, then 'make up'."
    cli::die 8 "The node '$1' is not running (container ${CLUSTER_NAME}-$1, from CLUSTER_NAME=${CLUSTER_NAME}): bring the cluster up with 'make up'."
  fi
  _TRANSPORT_SEEN[$1]=1
}

transport::identity() { docker inspect --format '{{.Id}}' "${CLUSTER_NAME}-$1"; }
