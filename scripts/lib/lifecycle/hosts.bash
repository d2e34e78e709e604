# lifecycle/hosts: the hosts of our containers where they are several (HOSTS_FILE). Each has its own engine, is reached by that
# engine's own remote access over ssh, and runs one node with the host's network: Ray's processes find each other by address, and a
# driver attaches to the first raylet that has its address. Without HOSTS_FILE every function here means this host's engine. With the
# word slurm in it they are the hosts of our allocation. Here is which hosts there are, and how they are reached;
# hosts_check and hosts_put have the rest.
# shellcheck shell=bash

# Of each node, by name.
declare -gA _HOSTS_WHERE=() _HOSTS_ADDRESS=() _HOSTS_GPUS=()

hosts::are_several() { [[ -n $HOSTS_FILE ]]; }

hosts::are_allocated() { [[ $HOSTS_FILE == slurm ]]; }

# hosts::load: reads HOSTS_FILE, or asks Slurm; sets WORKERS to match. It may be called again.
hosts::load() {
  hosts::are_several || return 0
  [[ ${#_HOSTS_WHERE[@]} == 0 ]] || return 0
  if hosts::are_allocated; then
    hosts::_take_allocation
  else
    node::read_list HOSTS_FILE hosts ssh://user@host _HOSTS_WHERE hosts::_take_line
  fi
}

# hosts::_take_allocation: the hosts that Slurm gave, as `make up` has kept them, so that a job that has ended can be taken down.
hosts::_take_allocation() {
  local node host kept
  kept=$(hosts::_kept)
  if [[ -f $kept ]]; then
    hosts::need_same_file
    allocation::load_kept "$kept"
  else
    allocation::load
  fi
  for node in $(node::list); do
    host=$(allocation::host "$node")
    if allocation::is_here "$node"; then
      host=local
    else
      login::take "$node" "$host"
      host="ssh://${host}"
    fi
    _HOSTS_WHERE[$node]="${host}, $(allocation::where "$node")" _HOSTS_ADDRESS[$node]='' _HOSTS_GPUS[$node]=''
  done
}

# hosts::_take_line WHERE NAME local|ssh://[USER@]HOST[:PORT] [address=IP] [gpus=IDS]
hosts::_take_line() {
  local where=$1 name=$2 host=${3:-} word
  # shellcheck disable=SC2153  # of scripts/lib/lifecycle/login.bash
  if [[ $host == ssh://* && ${host#ssh://} =~ $LOGIN_FORM ]]; then
    login::take "$name" "${host#ssh://}"
  elif [[ $host != local ]]; then
    cli::die 2 "'${host}' (${where}) is not a host: use local (this machine), ssh://user@host or ssh://user@host:port."
  fi
  _HOSTS_WHERE[$name]="${host}, ${where}" _HOSTS_ADDRESS[$name]='' _HOSTS_GPUS[$name]=''
  for word in "${@:4}"; do
    case $word in
      address=*)
        node::need_address "$word" "$where"
        _HOSTS_ADDRESS[$name]=${word#*=}
        ;;
      gpus=*) hosts::_take_gpus "$name" "${word#*=}" "$where" ;;
      *) cli::die 2 "'${word}' (${where}) is not a setting of a host: use address=IP (by which the other hosts reach it) or gpus=0,1,…." ;;
    esac
  done
}

hosts::_take_gpus() {
  local ids
  [[ $1 != head ]] || cli::die 2 "'gpus=$2' ($3) is for a worker: the head never gets a GPU."
  [[ $2 =~ ^[0-9]{1,3}(,[0-9]{1,3})*$ ]] || cli::die 2 "'gpus=$2' ($3) is not usable: use ids of that host's GPUs, separated by commas, as in gpus=0,1,2,3."
  mapfile -d, -t ids < <(printf %s "$2")
  ((${#ids[@]} == GPUS_PER_WORKER)) ||
    cli::die 2 "'gpus=$2' ($3) names ${#ids[@]} GPUs, but GPUS_PER_WORKER=${GPUS_PER_WORKER} (from ${ENV_ORIGIN[GPUS_PER_WORKER]}): name as many, or set GPUS_PER_WORKER."
  _HOSTS_GPUS[$1]=$2
}

# hosts::_kept: where `make up` records which hosts it used; they are forgotten with the cluster (cluster_knobs::forget).
hosts::_kept() { printf '%s/clusters/%s/hosts\n' "$WORKDIR" "$CLUSTER_NAME"; }

# hosts::keep: records them. An allocation keeps its hosts: they are recorded before anything is put there (nodes::ensure_up).
hosts::keep() {
  local file node
  file=$(hosts::_kept)
  if hosts::are_allocated; then
    mkdir -p -- "${file%/*}"
    allocation::keep "$file"
  elif hosts::are_several; then
    for node in $(node::list); do printf '%s %s\n' "$node" "${_HOSTS_WHERE[$node]%%, *}"; done >"${file}.$$"
    mv -- "${file}.$$" "$file"
  fi
}

# hosts::need_same_file: the cluster was not brought up with another HOSTS_FILE, or without one, and its nodes are still on the hosts that
# the file names.
hosts::need_same_file() {
  local was node host
  was=$(cluster_knobs::changed containers HOSTS_FILE)
  [[ -z $was ]] ||
    cli::die 2 "The cluster ${CLUSTER_NAME} was brought up with HOSTS_FILE='${was#*=}', but HOSTS_FILE is now '${HOSTS_FILE}' (from ${ENV_ORIGIN[HOSTS_FILE]}): give the old value, or run 'make down HOSTS_FILE=${was#*=}' first."
  was=$(hosts::_kept)
  [[ -f $was ]] && ! hosts::are_allocated || return 0
  while read -r node host; do
    [[ ${_HOSTS_WHERE[$node]-} == "${host}, "* ]] ||
      cli::die 2 "The cluster ${CLUSTER_NAME} has its ${node} on ${host}, but ${HOSTS_FILE} (HOSTS_FILE) does not say so any more: restore that line, or run 'make down' before you change it."
  done <"$was"
}

# hosts::engines: one word for each engine of this cluster; "this" is the only one without HOSTS_FILE.
hosts::engines() {
  if hosts::are_several; then printf '%s\n' "${!_HOSTS_WHERE[@]}" | sort; else printf 'this\n'; fi
}

# hosts::nodes_of ENGINE: the nodes that it runs.
hosts::nodes_of() {
  if [[ $1 == this ]]; then node::list; else printf '%s\n' "$1"; fi
}

hosts::_is_remote() { [[ -v LOGIN_TARGET[$1] ]] && hosts::are_several; }

# hosts::docker NODE ARGV...: the engine's client, for the engine that runs this node (or for an engine of hosts::engines).
hosts::docker() {
  local node=$1
  shift
  if hosts::_is_remote "$node"; then
    hosts::_need_connection "$node"
    PATH="${REPO_DIR}/scripts/lib/lifecycle/engine:${PATH}" DOCKER_HOST="ssh://$(login::shown "$node")" docker "$@"
  else
    docker "$@"
  fi
}

# hosts::is_answering ENGINE: its host and the engine there answer now.
hosts::is_answering() { (hosts::docker "$1" version >/dev/null 2>&1) 2>/dev/null; }

# hosts::describe NODE: "worker-0 (ssh://me@gpu-1, line 3 of env/hosts)"
hosts::describe() { printf '%s (%s)\n' "$1" "${_HOSTS_WHERE[$1]}"; }

# hosts::is_reached NODE: its host accepts our login now.
hosts::is_reached() { ! hosts::_is_remote "$1" || login::connect "$1" /dev/null; }

hosts::_need_connection() { login::need "$1" "The host of $(hosts::describe "$1")"; }

# hosts::on NODE SCRIPT WORD...: runs a plain sh script on its host, with our stdin.
hosts::on() {
  local node=$1 script=$2 text='set --' word unmarked="${LOGIN_FILES}/${BASHPID}.unmarked" status=0
  shift 2
  if hosts::_is_remote "$node"; then
    for word in "$@"; do text+=" $(login::quoted "$word")"; done
    login::run "$unmarked" login::client "$node" -- "$(login::packed "${text}"$'\n'"${script}")" || status=$?
    ((status == 255)) || login::need_mark "$unmarked" "the host of $(hosts::describe "$node")" "$status"
    rm -f -- "$unmarked"
    return "$status"
  else
    sh -c "$script" hosts "$@"
  fi
}

# hosts::_lost STATUS NODE DOING: the end after hosts::on failed. With 8 it has said why.
hosts::_lost() {
  (($1 == 8)) || log::error "The host of $(hosts::describe "$2") was lost while $3: check the host, then run this again."
  exit 8
}

# hosts::gpus NODE: the ids, on its host, of its GPUs.
hosts::gpus() { printf '%s\n' "${_HOSTS_GPUS[$1]:-$(seq -s, 0 "$((GPUS_PER_WORKER - 1))")}"; }
