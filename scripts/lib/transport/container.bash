# transport/container: nodes are containers named ${CLUSTER_NAME}-<node>; works with every engine that has docker's commands.
# shellcheck shell=bash

# transport::set_knobs: the knobs that follow from an allocation. The tasks of an array may run the same commands at once on this host.
transport::set_knobs() {
  if hosts::are_allocated; then
    allocation::set_knobs HOSTS_FILE
  elif ! hosts::are_several && [[ -n ${SLURM_ARRAY_TASK_ID-} && ${SLURM_JOB_ID-} =~ ^[1-9][0-9]{0,9}$ ]]; then
    allocation::set_own DASHBOARD_PORT
  fi
}

# transport::load: lists all containers once for the whole script: which of them run, since when, at what address, and who owns
# them. It may be called again.
transport::load() {
  local said name running since address cluster id user path unknown=''
  hosts::load
  engine::choose
  _TRANSPORT_ADDRESS=() _TRANSPORT_SINCE=() _TRANSPORT_OWNERS=() _TRANSPORT_SEEN=()
  said=$(transport::_inspect)
  while IFS='|' read -r name running since address cluster id user path; do
    [[ $name == "/${CLUSTER_NAME}-"* ]] || continue
    name=${name#"/${CLUSTER_NAME}-"}
    if [[ $cluster == "$CLUSTER_NAME" && -n $id ]]; then
      _TRANSPORT_OWNERS["${id}|${user}|${path}"]=1
    else
      unknown+=" ${CLUSTER_NAME}-${name}" # not created by any checkout of this project
    fi
    [[ $running == true && -n $address ]] || continue
    _TRANSPORT_ADDRESS[$name]=$address _TRANSPORT_SINCE[$name]=$since
  done <<<"$said"
  [[ -z $unknown ]] || _TRANSPORT_OWNERS["||${unknown# }"]=1
}
declare -gA _TRANSPORT_ADDRESS=() _TRANSPORT_SINCE=() _TRANSPORT_OWNERS=()
# On a host's own network the engine knows no address: the container has it as a label.
# A paused container takes no command: for us it does not run.
readonly _TRANSPORT_RUNS='{{and .State.Running (not .State.Paused)}}'
_TRANSPORT_LOOK="{{.Name}}|${_TRANSPORT_RUNS}|"'{{.State.StartedAt}}|{{index .Config.Labels "verl-regress.address"}}{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}'
_TRANSPORT_LOOK+='|{{index .Config.Labels "verl-regress.cluster"}}|{{index .Config.Labels "verl-regress.owner"}}'
_TRANSPORT_LOOK+='|{{index .Config.Labels "verl-regress.user"}}|{{index .Config.Labels "verl-regress.workdir"}}'
readonly _TRANSPORT_LOOK

# transport::_inspect: what the engines that answer say of our containers.
transport::_inspect() {
  local names=() node pids=()
  mapfile -t names < <(node::list)
  if ! hosts::are_several; then
    docker inspect --format "$_TRANSPORT_LOOK" "${names[@]/#/${CLUSTER_NAME}-}" 2>/dev/null || true
    return
  fi
  for node in "${names[@]}"; do
    hosts::docker "$node" inspect --format "$_TRANSPORT_LOOK" "${CLUSTER_NAME}-${node}" 2>/dev/null &
    pids+=("$!")
  done
  wait "${pids[@]}" || true
}

transport::exec() { transport::_exec "$1" exec "${@:2}"; }

transport::exec_in() { transport::_exec "$1" 'exec --interactive' "${@:2}"; }

# transport::environment NODE: the container has the rest (docker-compose.yaml).
# shellcheck disable=SC2016  # expanded on the node
transport::environment() { printf 'set -- RAY_AUTH_TOKEN_PATH="$RAY_AUTH_TOKEN_PATH" "$@"\n'; }

# transport::_exec NODE WORDS ARGV...: a container may be removed or restarted at any moment, and a host lost. Then one sentence says so,
# because the status 1 or 137 with which the command seems to end is not its own.
transport::_exec() {
  local node=$1 words status=0
  read -r -a words <<<"$2"
  shift 2
  transport::_need "$node"
  hosts::docker "$node" "${words[@]}" "${CLUSTER_NAME}-${node}" sh -c "$(environment::of_node "$node")" sh "$@" || status=$?
  ((status != 1 && status < 125)) || ! transport::_is_gone "$node" "$status" || {
    hosts::is_reached "$node" ||
      cli::die 8 "The connection to the host of $(hosts::describe "$node") was lost while '$1' ran there: check the host, then run this again."
    cli::die 8 "The node '${node}' went away while '$1' ran there (container ${CLUSTER_NAME}-${node}): bring the cluster up with 'make up', then run this again."
  }
  return "$status"
}

# transport::_is_gone NODE STATUS: it does not run, or was restarted since we listed it. An engine that removes a container kills
# its processes some time before it reports that the container does not run, so after a kill the check repeats for a moment.
transport::_is_gone() {
  local seconds=0
  (($2 != 137 && $2 != 143)) || seconds=2
  wait::until "$seconds" - transport::_is_another "$1"
}

transport::_is_another() {
  local now
  now=$(hosts::docker "$1" inspect --format '{{.State.Running}} {{.State.StartedAt}}' "${CLUSTER_NAME}-$1" 2>/dev/null) || return 0
  [[ $now != true* || (-n ${_TRANSPORT_SINCE[$1]:-} && $now != "true ${_TRANSPORT_SINCE[$1]}") ]]
}

transport::is_alive() {
  [[ $(hosts::docker "$1" inspect --format "$_TRANSPORT_RUNS" "${CLUSTER_NAME}-$1" 2>/dev/null) == true ]]
}

transport::address() {
  if [[ -n ${_TRANSPORT_ADDRESS[$1]:-} ]]; then
    printf '%s\n' "${_TRANSPORT_ADDRESS[$1]%% *}"
  else
    transport::exec "$1" hostname -i | awk '{ print $1 }'
  fi
}

# Says in one sentence why a node cannot be reached; checked once for each node and script, then remembered.
declare -gA _TRANSPORT_SEEN=()
transport::_need() {
  [[ -z ${_TRANSPORT_ADDRESS[$1]:-}${_TRANSPORT_SEEN[$1]:-} ]] || return 0
  if ! transport::is_alive "$1"; then
    ! hosts::are_several || hosts::need_engine "$1" >/dev/null
    hosts::are_several || engine::need 8
    cli::die 8 "The node '$1' is not running (container ${CLUSTER_NAME}-$1, from CLUSTER_NAME=${CLUSTER_NAME}): bring the cluster up with 'make up'."
  fi
  _TRANSPORT_SEEN[$1]=1
}

# transport::peers: the names of the nodes, and the addresses of the running ones.
transport::peers() {
  local nodes
  mapfile -t nodes < <(node::list)
  printf '%s\n' "${nodes[@]/#/${CLUSTER_NAME}-}" "${_TRANSPORT_ADDRESS[@]%% *}"
}

transport::image() { hosts::docker "$1" inspect --format '{{.Image}}' "${CLUSTER_NAME}-$1"; }
