# lifecycle/hosts: the hosts of our containers where they are several (HOSTS_FILE). Each has an engine of its own, is reached by that
# engine's own remote access over ssh, and runs one node with the host's network: Ray's processes find each other by address, and a
# driver attaches to the first raylet that has its address. Without HOSTS_FILE every function here means this host's engine.
# shellcheck shell=bash

# Of each node, by name; a name with an @ is a host that HOSTS_FILE no longer names, and on which `make up` put a node.
declare -gA _HOSTS_WHERE=() _HOSTS_ADDRESS=() _HOSTS_GPUS=() _HOSTS_DEVICES=() _HOSTS_SEEN=()
declare -gA _HOSTS_FACT=() # what a host says about itself, as NODE:NAME
# The oldest API of an engine that these files need, and the Docker that came with it.
readonly HOSTS_OLDEST_API='1.41' HOSTS_OLDEST='20.10'

hosts::are_several() { [[ -n $HOSTS_FILE ]]; }

# hosts::load: reads HOSTS_FILE; sets WORKERS to match. It may be called again.
hosts::load() {
  hosts::are_several || return 0
  [[ ${#_HOSTS_WHERE[@]} == 0 ]] || return 0
  node::read_list HOSTS_FILE hosts ssh://user@host _HOSTS_WHERE hosts::_take_line
  hosts::_take_gone
}

# hosts::_take_line LINE WHERE: NAME local|ssh://[USER@]HOST[:PORT] [address=IP] [gpus=IDS] [devices=PATHS]
hosts::_take_line() {
  local where=$2 words=() name host word
  read -r -a words <<<"$1"
  name=${words[0]} host=${words[1]:-}
  [[ $name =~ ^(head|worker-(0|[1-9][0-9]?))$ ]] || cli::die 2 "'${name}' (${where}) is not a node: use head, worker-0, worker-1, …."
  [[ ! -v _HOSTS_WHERE[$name] ]] || cli::die 2 "'${name}' (${where}) occurs twice: name each node once."
  # shellcheck disable=SC2153  # of scripts/lib/lifecycle/login.bash
  if [[ $host == ssh://* && ${host#ssh://} =~ $LOGIN_FORM ]]; then
    login::take "$name" "${host#ssh://}"
  elif [[ $host != local ]]; then
    cli::die 2 "'${host}' (${where}) is not a host: use local (this machine), ssh://user@host or ssh://user@host:port."
  fi
  _HOSTS_WHERE[$name]="${host}, ${where}" _HOSTS_ADDRESS[$name]='' _HOSTS_GPUS[$name]='' _HOSTS_DEVICES[$name]=''
  for word in "${words[@]:2}"; do
    case $word in
      address=*) hosts::_take_address "$name" "${word#*=}" "$where" ;;
      gpus=*) hosts::_take_gpus "$name" "${word#*=}" "$where" ;;
      devices=*)
        [[ ${word#*=} =~ ^/dev/[A-Za-z0-9_./-]+(,/dev/[A-Za-z0-9_./-]+)*$ ]] ||
          cli::die 2 "'${word}' (${where}) is not usable: use paths under /dev, separated by commas, as in devices=/dev/infiniband."
        _HOSTS_DEVICES[$name]=${word#*=}
        ;;
      *) cli::die 2 "'${word}' (${where}) is not a setting of a host: use address=IP (by which the other hosts reach it), gpus=0,1,… or devices=/dev/…." ;;
    esac
  done
  hosts::_need_host_of_its_own "$name" "$host"
}

hosts::_take_address() {
  [[ $2 =~ ^[0-9]{1,3}(\.[0-9]{1,3}){3}$|^[0-9A-Fa-f]*:[0-9A-Fa-f:.]+$ ]] ||
    cli::die 2 "'address=$2' ($3) is not an IP address: use the one by which the other hosts reach this host."
  ! hosts::_is_loopback "$2" || cli::die 2 "'address=$2' ($3) reaches no other host: use the address that this host has in their network."
  _HOSTS_ADDRESS[$1]=$2
}

hosts::_is_loopback() { [[ $1 == 127.* || $1 == ::1 || $1 == 0.* ]]; }

hosts::_take_gpus() {
  local ids twice
  [[ $1 != head ]] || cli::die 2 "'gpus=$2' ($3) is for a worker: the head never gets a GPU."
  [[ $2 =~ ^[0-9]{1,3}(,[0-9]{1,3})*$ ]] || cli::die 2 "'gpus=$2' ($3) is not usable: use ids of that host's GPUs, separated by commas, as in gpus=0,1,2,3."
  mapfile -d, -t ids < <(printf %s "$2")
  twice=$(printf '%s\n' "${ids[@]}" | sort | uniq -d | paste -sd,)
  [[ -z $twice ]] || cli::die 2 "'gpus=$2' ($3) names GPU ${twice} twice: name each GPU once."
  ((${#ids[@]} == GPUS_PER_WORKER)) ||
    cli::die 2 "'gpus=$2' ($3) names ${#ids[@]} GPUs, but GPUS_PER_WORKER=${GPUS_PER_WORKER} (from ${ENV_ORIGIN[GPUS_PER_WORKER]}): name as many, or set GPUS_PER_WORKER."
  _HOSTS_GPUS[$1]=$2
}

# hosts::_need_host_of_its_own NAME HOST: no earlier line has the same host or address.
hosts::_need_host_of_its_own() {
  local other
  for other in "${!_HOSTS_WHERE[@]}"; do
    [[ $other != "$1" ]] || continue
    [[ ${_HOSTS_WHERE[$other]%%, *} != "$2" ]] || hosts::_refuse_two "$1" "is on $2, as $other is"
    [[ -z ${_HOSTS_ADDRESS[$1]:-} || ${_HOSTS_ADDRESS[$other]:-} != "${_HOSTS_ADDRESS[$1]}" ]] ||
      hosts::_refuse_two "$1" "has the address ${_HOSTS_ADDRESS[$1]}, as $other has"
  done
}

hosts::_refuse_two() {
  cli::die 2 "$(hosts::describe "$1") $2: on several hosts nodes use the host's network, where a driver attaches to the first Ray node of its address, so give each host one node."
}

# hosts::_take_gone: the hosts that the last `make up` used and HOSTS_FILE does not name any more.
hosts::_take_gone() {
  local file="${WORKDIR}/clusters/${CLUSTER_NAME}/hosts" name host
  [[ -f $file ]] || return 0
  while read -r name host; do
    [[ " ${_HOSTS_WHERE[*]/%, line */ }" != *" ${host} "* && ${host#ssh://} =~ $LOGIN_FORM ]] || continue
    name+="@${host}"
    [[ $host == local ]] || login::take "$name" "${host#ssh://}"
    _HOSTS_WHERE[$name]="${host}, from the last 'make up'"
  done <"$file"
}

# hosts::keep: records which hosts `make up` used; they are forgotten with the cluster (made::forget).
hosts::keep() {
  local file="${WORKDIR}/clusters/${CLUSTER_NAME}/hosts" node
  if hosts::are_several; then
    for node in $(node::list); do printf '%s %s\n' "$node" "${_HOSTS_WHERE[$node]%%, *}"; done >"${file}.$$"
    mv -- "${file}.$$" "$file"
  fi
}

# hosts::need_same_file: the cluster was not brought up with another HOSTS_FILE, or without one.
hosts::need_same_file() {
  local was
  was=$(made::changed containers | grep '^HOSTS_FILE=') || return 0
  was=${was#*=}
  cli::die 2 "The cluster ${CLUSTER_NAME} was brought up with HOSTS_FILE='${was}', and it is '${HOSTS_FILE}' now (from ${ENV_ORIGIN[HOSTS_FILE]}): give the old value, or run 'make down HOSTS_FILE=${was}' first."
}

# hosts::engines: one word for each engine of this cluster; "this" is the only one without HOSTS_FILE.
hosts::engines() {
  if hosts::are_several; then
    printf '%s\n' "${!_HOSTS_WHERE[@]}" | sort
  else
    printf 'this\n'
  fi
}

# hosts::nodes_of ENGINE: the nodes that it runs.
hosts::nodes_of() {
  if [[ $1 == this ]]; then
    node::list
  elif [[ $1 != *@* ]]; then
    printf '%s\n' "$1"
  fi
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

# hosts::docker_all ARGV...: the same command for every engine, all at once. An engine that does not answer says nothing; where that
# matters, hosts::need has been called.
hosts::docker_all() {
  local engine pids=()
  if ! hosts::are_several; then
    docker "$@"
    return
  fi
  for engine in $(hosts::engines); do
    hosts::docker "$engine" "$@" 2>/dev/null &
    pids+=("$!")
  done
  wait "${pids[@]}" || true
}

# hosts::lost: the hosts whose engine does not answer, one per line.
hosts::lost() {
  local engine
  local -A asked=()
  hosts::are_several || return 0
  for engine in $(hosts::engines); do
    hosts::is_answering "$engine" &
    asked[$engine]=$!
  done
  for engine in $(hosts::engines); do wait "${asked[$engine]}" || printf '%s\n' "$engine"; done
}

# hosts::is_answering ENGINE: its host and the engine there answer now.
hosts::is_answering() { (hosts::docker "$1" version >/dev/null 2>&1) 2>/dev/null; }

# hosts::describe NODE: "worker-0 (ssh://me@gpu-1, line 3 of env/hosts)"
hosts::describe() { printf '%s (%s)\n' "${1%%@*}" "${_HOSTS_WHERE[$1]}"; }

# hosts::is_reached NODE: its host accepts our login now.
hosts::is_reached() {
  local said="${LOGIN_SOCKETS}/${BASHPID}.said" status=0
  ! hosts::_is_remote "$1" || login::connect "$1" "$said" || status=1
  rm -f -- "$said"
  return "$status"
}

hosts::_need_connection() {
  local said="${LOGIN_SOCKETS}/${BASHPID}.said"
  [[ -z ${_HOSTS_SEEN[$1]:-} ]] || return 0
  login::connect "$1" "$said" ||
    cli::die 8 "The host of $(hosts::describe "$1") cannot be reached ($(login::last_words "$said")): 'ssh $(login::words "$1") true' must work without a prompt; fix that first."
  rm -f -- "$said"
  _HOSTS_SEEN[$1]=1
}

# hosts::on NODE SCRIPT WORD...: runs a plain sh script on its host, with our stdin.
hosts::on() {
  local node=$1 script=$2 text='set --' word
  shift 2
  if hosts::_is_remote "$node"; then
    for word in "$@"; do text+=" $(login::quoted "$word")"; done
    login::client "$node" -- "$(login::packed "${text}"$'\n'"${script}")"
  else
    sh -c "$script" hosts "$@"
  fi
}

# --- what must be true before anything is changed

# hosts::need: every host answers, its engine too, and we know its address. All are asked at once.
hosts::need() {
  local node
  hosts::are_several || return 0
  log::while 'asking the hosts' -- hosts::_ask_all
  for node in $(node::list); do
    [[ -n ${_HOSTS_FACT["${node}:address"]:-} ]] || hosts::_resolve "$node"
  done
  hosts::_need_other_addresses
}

# What a host says about itself. Its own address is where our connection ended; `client` is where it began. /proc/net/tcp has the
# ports that are listened on (state 0A) as hexadecimal numbers.
# shellcheck disable=SC2016  # expanded there
readonly HOSTS_QUESTIONS='
  set -- "$1" "$2" ${SSH_CONNECTION:-}
  echo "reached ${5:-}"; echo "client ${3:-}"
  echo "addresses $(hostname -I 2>/dev/null)"
  echo "user $(id -u)"; echo "home $HOME"
  echo "nvidia $(nvidia-smi -L 2>/dev/null | grep -c "^GPU ")"
  echo "render $(ls -d /dev/dri/renderD* 2>/dev/null | wc -l)"
  echo "memory $(awk "/^MemAvailable:/ { print int(\$2 / 1048576) }" /proc/meminfo)"
  echo "ports $(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk "\$4 == \"0A\" { sub(/.*:/, \"\", \$2); print \$2 }" | sort -u | tr "\n" " ")"
  for device in $1; do [ -e "$device" ] || echo "lacks $device"; done
  if [ -n "$2" ]; then echo "nonce $(cat "$2" 2>/dev/null)"; test -w "${2%/*}" && echo "writable yes"; fi
  true'

hosts::_ask_all() {
  local node dir name value
  local -A asked=()
  login::ensure_sockets
  cli::temp_dir dir
  for node in $(node::list); do
    hosts::_ask "$node" "${dir}/${node}" &
    asked[$node]=$!
  done
  for node in $(node::list); do
    wait "${asked[$node]}" || exit "$?"
    while read -r name value; do _HOSTS_FACT["${node}:${name}"]=$value; done <"${dir}/${node}"
    _HOSTS_SEEN[$node]=1
  done
}

# hosts::_ask NODE FILE: puts the answers of its host and of its engine into FILE, as NAME VALUE.
hosts::_ask() {
  local node=$1 file=$2 engine version api arch
  ! hosts::_is_remote "$node" || hosts::_need_connection "$node"
  hosts::on "$node" "$HOSTS_QUESTIONS" "${_HOSTS_DEVICES[$node]//,/ }${WORKER_DEVICES:+ ${WORKER_DEVICES}}" "${HOSTS_NONCE:-}" </dev/null >"$file" ||
    cli::die 8 "The host of $(hosts::describe "$node") was lost while we asked what it has: check the host, then run this again."
  engine=$(hosts::need_engine "$node")
  read -r version api arch <<<"$engine"
  printf 'engine %s\narch %s\n' "$version" "$arch" >>"$file"
  hosts::_is_new_enough "$api" ||
    cli::die 1 "The container engine of $(hosts::describe "$node") is ${version} with API ${api}: Docker ${HOSTS_OLDEST} or later (API ${HOSTS_OLDEST_API}) is needed there."
}

# hosts::need_engine NODE: its host and the engine there answer; prints the engine's version, API and architecture.
hosts::need_engine() {
  local said="${LOGIN_SOCKETS}/${BASHPID}.engine"
  login::ensure_sockets
  ! hosts::_is_remote "$1" || hosts::_need_connection "$1"
  hosts::docker "$1" version --format '{{.Server.Version}} {{.Server.APIVersion}} {{.Server.Arch}}' 2>"$said" ||
    cli::die 8 "The container engine of $(hosts::describe "$1") does not answer ($(login::last_words "$said")): start it there, and let that user run 'docker version'."
  rm -f -- "$said"
}

hosts::_is_new_enough() {
  [[ $1 =~ ^[0-9]+\.[0-9]+$ && $(printf '%s\n' "$HOSTS_OLDEST_API" "$1" | sort -V | sed -n 1p) == "$HOSTS_OLDEST_API" ]]
}

# hosts::_resolve NODE: its address: address= of its line, or where our connection to it ended. For this machine, where the first of
# our connections to another host began.
hosts::_resolve() {
  local node=$1 address=${_HOSTS_ADDRESS[$1]:-} own=" ${_HOSTS_FACT["$1:addresses"]:-} "
  if [[ -n $address ]]; then
    [[ $own == *[0-9a-f]* && $own != *" ${address} "* ]] &&
      cli::die 2 "address=${address} of $(hosts::describe "$node") is not an address of that host, which has:${own% }: use one of those."
  elif hosts::_is_remote "$node"; then
    hosts::_need_one_address "$node"
    address=${_HOSTS_FACT["${node}:reached"]:-}
  else
    address=$(hosts::_client)
  fi
  if [[ -z $address ]] || hosts::_is_loopback "$address"; then
    cli::die 2 "$(hosts::describe "$node") has no address by which the other hosts reach it (found: '${address}'): add address=IP to its line."
  fi
  _HOSTS_FACT["${node}:address"]=$address
}

# hosts::_client: this machine's address, as the first other host sees it, if this machine really has it.
hosts::_client() {
  local node client
  for node in $(node::list); do
    client=${_HOSTS_FACT["${node}:client"]:-}
    if [[ -n $client && " $(hostname -I 2>/dev/null) " == *" ${client} "* ]]; then
      printf '%s\n' "$client"
      return
    fi
  done
}

# hosts::_need_one_address NODE: the name of its host means one address, and that of another machine. A name that only ssh's own
# configuration knows is not looked up.
hosts::_need_one_address() {
  local host found
  host=$(login::client "$1" -G | sed -n 's/^hostname //p')
  [[ ! $host =~ ^(host|gateway|kubernetes)\.docker\.internal$ ]] ||
    cli::die 2 "$(hosts::describe "$1") is this machine as a container of Docker Desktop sees it (${host}): use the host's own name, or local."
  found=$(getent ahosts "$host" 2>/dev/null | awk '{ print $1 }' | grep -v '^fe80:' | sort -u | paste -sd' ' || true)
  if [[ $found == 127.* || $found == ::1 ]]; then
    cli::die 2 "$(hosts::describe "$1") means ${found} on this machine, where no other host reaches it: use the name or address that it has in the network, or add address=IP to its line."
  elif [[ $found == *' '* ]]; then
    cli::die 2 "$(hosts::describe "$1") has ${found// / and }: say by which one the other hosts reach it, with address=IP in its line."
  fi
}

hosts::_need_other_addresses() {
  local node other
  for node in $(node::list); do
    for other in $(node::list); do
      [[ $other != "$node" ]] || break
      [[ ${_HOSTS_FACT["${node}:address"]} != "${_HOSTS_FACT["${other}:address"]}" ]] ||
        hosts::_refuse_two "$node" "has the address ${_HOSTS_FACT["${node}:address"]}, as $other has"
    done
  done
}

# hosts::address NODE: after hosts::need.
hosts::address() { printf '%s\n' "${_HOSTS_FACT["$1:address"]}"; }

# hosts::check: the checks of several hosts, before anything is changed.
hosts::check() {
  local node
  [[ ! -d ${WORKDIR}/shared ]] || hosts::_plant_nonce
  hosts::need
  for node in $(node::list); do
    log::ok "$(hosts::describe "$node"): $(hosts::address "$node"), container engine ${_HOSTS_FACT["${node}:engine"]}, ${_HOSTS_FACT["${node}:memory"]} GiB of memory available"
  done
  for node in $(node::list); do
    hosts::_check_ports "$node"
    hosts::_check_memory "$node"
    hosts::_check_user "$node"
    [[ $node == head ]] || hosts::_check_gpus "$node"
  done
  log::ok 'the ports that Ray needs on the hosts are free, or our own'
  if [[ -n ${HOSTS_NONCE:-} ]]; then
    hosts::_compare_nonce
  else
    log::ok "${WORKDIR}/shared does not exist yet: 'make up' checks that it is one directory on all hosts"
  fi
}

# hosts::need_shared_root: this machine and every host have one directory at ${WORKDIR}/shared.
hosts::need_shared_root() {
  hosts::_plant_nonce
  hosts::_ask_all
  hosts::_compare_nonce
}

hosts::_plant_nonce() {
  HOSTS_NONCE="${WORKDIR}/shared/.verl-regress-$(date +%s)-$$-${RANDOM}"
  cli::on_exit rm -f -- "$HOSTS_NONCE"
  printf '%s' "${HOSTS_NONCE##*-}" >"$HOSTS_NONCE" ||
    cli::die 1 "${WORKDIR}/shared (from WORKDIR) cannot be written to here: fix its owner, or point WORKDIR elsewhere."
}

hosts::_compare_nonce() {
  local node
  for node in $(node::list); do
    [[ ${_HOSTS_FACT["${node}:nonce"]:-} == "${HOSTS_NONCE##*-}" ]] ||
      cli::die 1 "$(hosts::describe "$node") does not see at ${WORKDIR}/shared (from WORKDIR) what this machine wrote there: mount the same directory (NFS) at that path on every host."
  done
  log::ok "${WORKDIR}/shared is one directory on every host"
}

# A running node's own ports are in use.
hosts::_check_ports() {
  local port ports=("$GCS_PORT" 8265)
  [[ $1 == head ]] || ports=(52365) # Ray's agent
  ! transport::is_listed "$1" || return 0
  for port in "${ports[@]}"; do
    [[ " ${_HOSTS_FACT["$1:ports"]} " != *" $(printf '%04X' "$port") "* ]] ||
      cli::die 1 "Port ${port} of $(hosts::describe "$1") is in use, but Ray needs it on that host's network: end the process that listens there (another Ray?), or choose another host (the GCS port is GCS_PORT=${GCS_PORT})."
  done
}

hosts::_check_memory() {
  ((${_HOSTS_FACT["$1:memory"]} >= MIN_MEMORY_GIB)) || transport::is_listed "$1" ||
    cli::die 1 "$(hosts::describe "$1") has ${_HOSTS_FACT["$1:memory"]} GiB of memory available, but MIN_MEMORY_GIB=${MIN_MEMORY_GIB} are required: stop something there, or lower the knob."
}

# Ray's token is a file of mode 600 on the host, for the user of the containers.
hosts::_check_user() {
  local run_as user=${_HOSTS_FACT["$1:user"]}
  run_as=$(engine::user)
  [[ $user == 0 || $user == "${run_as%%:*}" ]] || ! hosts::_is_remote "$1" ||
    cli::die 1 "We log in to $(hosts::describe "$1") as user ${user}, but the containers run as ${run_as} (RUN_AS, or the owner of WORKDIR), who could not read Ray's token there: log in as that user or as root."
  [[ ${_HOSTS_FACT["$1:home"]}/ != "${WORKDIR}/shared/"* ]] ||
    cli::die 1 "HOME of $(hosts::describe "$1") is on the shared root, where Ray's token must not be: log in as another user."
}

hosts::_check_gpus() {
  local what='' count=0 ids highest runtimes
  [[ ! -v _HOSTS_FACT["$1:lacks"] ]] ||
    cli::die 1 "$(hosts::describe "$1") has no ${_HOSTS_FACT["$1:lacks"]} (from devices= there, or WORKER_DEVICES): load its driver, or leave it out."
  case $PROFILE in
    gpu) what='NVIDIA GPUs (nvidia-smi -L)' count=${_HOSTS_FACT["$1:nvidia"]} ;;
    rocm) what='GPUs (/dev/dri/renderD*)' count=${_HOSTS_FACT["$1:render"]} ;;
    *) return 0 ;;
  esac
  ids=$(hosts::gpus "$1")
  highest=$(tr , '\n' <<<"$ids" | sort -n | tail -n 1)
  ((highest < count)) ||
    cli::die 1 "$(hosts::describe "$1") has ${count} ${what}, but ${1} is to get those with the ids ${ids} (profile ${PROFILE}): lower GPUS_PER_WORKER, or name others with gpus= in its line."
  [[ $PROFILE == rocm ]] || {
    # shellcheck disable=SC2016  # a template of Go's
    runtimes=$(hosts::docker "$1" info --format '{{range $name, $_ := .Runtimes}}{{$name}} {{end}}')
    [[ " $runtimes" == *' nvidia '* ]] ||
      cli::die 1 "The container engine of $(hosts::describe "$1") cannot hand out NVIDIA GPUs (its runtimes are: ${runtimes% }): install the NVIDIA Container Toolkit there, run 'nvidia-ctk runtime configure --runtime=docker' and restart the engine."
  }
  log::ok "$(hosts::describe "$1"): ${count} ${what}"
}

# hosts::gpus NODE: the ids, on its host, of its GPUs.
hosts::gpus() { printf '%s\n' "${_HOSTS_GPUS[$1]:-$(seq -s, 0 "$((GPUS_PER_WORKER - 1))")}"; }

# hosts::devices NODE: device files that it gets apart from WORKER_DEVICES, separated by spaces.
hosts::devices() { ! hosts::are_several || printf '%s\n' "${_HOSTS_DEVICES[$1]//,/ }"; }

# --- what a host gets before its container

# hosts::ensure_images: every host has the node image; what it lacks is carried over, to all hosts at once. Images are compared by
# their layers and when they were made: engines that store them in different ways call the same image by different ids.
hosts::ensure_images() {
  local node own lacking=() dir
  local -A asked=()
  cli::temp_dir dir
  own=$(hosts::_image_of this)
  for node in $(node::list); do
    hosts::_image_of "$node" >"${dir}/${node}" 2>/dev/null &
    asked[$node]=$!
  done
  for node in $(node::list); do
    wait "${asked[$node]}" || true
    [[ $(<"${dir}/${node}") == "$own" ]] || lacking+=("$node")
  done
  for node in "${lacking[@]}"; do hosts::_need_same_arch "$node"; done
  ((${#lacking[@]} == 0)) ||
    log::while "carrying the image ${NODE_IMAGE} to the host of ${lacking[*]}" hosts::_carried "$dir" -- hosts::_carry_all "$dir" "${lacking[@]}"
}

hosts::_image_of() { hosts::docker "$1" image inspect --format '{{.Architecture}} {{.Created}} {{.RootFS.Layers}}' "$NODE_IMAGE"; }

hosts::_need_same_arch() {
  local own
  own=$(docker image inspect --format '{{.Architecture}}' "$NODE_IMAGE")
  [[ ${_HOSTS_FACT["$1:arch"]} == "$own" ]] ||
    cli::die 1 "$(hosts::describe "$1") is of the architecture ${_HOSTS_FACT["$1:arch"]}, and the image ${NODE_IMAGE} is for ${own}: use hosts of one architecture."
}

# hosts::_carry_all DIR NODE...: the engine packs it once, whatever the number of hosts.
hosts::_carry_all() {
  local dir=$1 node
  local -A asked=()
  shift
  mkfifo "${@/#/${dir}/pipe-}"
  for node in "$@"; do
    hosts::docker "$node" load --quiet <"${dir}/pipe-${node}" >/dev/null &
    asked[$node]=$!
  done
  docker save "$NODE_IMAGE" | dd bs=1M status=progress 2>"${dir}/bytes" | tee --output-error=warn-nopipe "${@/#/${dir}/pipe-}" >/dev/null
  for node in "$@"; do
    wait "${asked[$node]}" ||
      cli::die 1 "The image ${NODE_IMAGE} could not be carried to $(hosts::describe "$node"), as it says above: check the disk there, then run this again."
    log::changed "$(hosts::describe "$node"): carried the image ${NODE_IMAGE} over"
  done
}

# hosts::_carried DIR: how much each host has got so far, from dd's words.
hosts::_carried() { tr '\r' '\n' <"$1/bytes" | sed -nE 's/.*\(([^,]+),.*/\1/p' | tail -n 1; }

# hosts::ensure_tokens: every host has this cluster's token, for the user of the containers alone and outside the shared root. On the
# head's host also the directory where the GCS keeps its state.
hosts::ensure_tokens() {
  local node dir state
  local -A asked=()
  cli::temp_dir dir
  for node in $(node::list); do
    hosts::_is_remote "$node" || continue
    # shellcheck disable=SC2016  # expanded there; the token itself comes on stdin
    hosts::on "$node" '
      set -e; umask 077; file="$HOME/.verl-regress/$1.token"; token=$(cat)
      mkdir -p "${file%/*}" "${file%.token}.gcs"; chmod 700 "${file%/*}" "${file%.token}.gcs"
      own() { [ "$(id -u)" != 0 ] || chown "$2" "$1"; }
      own "${file%.token}.gcs" "$2"
      [ ! -f "$file" ] || [ "$(cat "$file")" != "$token" ] || { chmod 600 "$file"; own "$file" "$2"; echo same; exit; }
      printf %s "$token" >"$file.tmp"; own "$file.tmp" "$2"; mv "$file.tmp" "$file"; echo put' "$CLUSTER_NAME" "$RUN_AS" \
      <"${WORKDIR}/secrets/${CLUSTER_NAME}.token" >"${dir}/${node}" &
    asked[$node]=$!
  done
  for node in $(node::list); do
    hosts::_is_remote "$node" || continue
    wait "${asked[$node]}" || cli::die 1 "Ray's token could not be put on $(hosts::describe "$node"), as it says above: fix that, then run this again."
    state=$(<"${dir}/${node}")
    [[ $state == same ]] || log::changed "$(hosts::describe "$node"): put Ray's token at $(hosts::_token "$node") (mode 600)"
  done
}

# hosts::prepare: all that the hosts need before the first container, in this order: they share the directory, and have the image and
# Ray's token.
hosts::prepare() {
  hosts::need_shared_root
  hosts::ensure_images
  hosts::ensure_tokens
}

# hosts::dashboard: where a browser finds the dashboard, which listens on the head's own 127.0.0.1 alone.
hosts::dashboard() {
  if hosts::_is_remote head; then
    printf "http://127.0.0.1:%s after 'ssh -N -L %s:127.0.0.1:8265 %s%s'\n" "$DASHBOARD_PORT" "$DASHBOARD_PORT" \
      "${SSH_CONFIG:+-F ${SSH_CONFIG} }" "$(login::words head)"
  else
    printf 'http://127.0.0.1:8265\n'
  fi
}

# hosts::show_forwards LOCAL:NODE:PORT...: prints a command for each, to type where the user sits: the port is only on the 127.0.0.1 of
# that node's host.
hosts::show_forwards() {
  local forward node port argv
  for forward; do
    IFS=: read -r _ node port <<<"$forward"
    argv=(ssh -N)
    [[ -z $SSH_CONFIG ]] || argv+=(-F "$SSH_CONFIG")
    [[ -z $TUNNEL_VIA ]] || argv+=(-J "$TUNNEL_VIA")
    [[ -z ${LOGIN_PORT[$node]:-} ]] || argv+=(-p "${LOGIN_PORT[$node]}")
    argv+=(-L "${forward%%:*}:127.0.0.1:${port}" "${LOGIN_TARGET[$node]:-${OWNER_USER}@$(uname -n)}")
    word::typed "${argv[@]}"
  done
}

hosts::_token() { printf '%s/.verl-regress/%s.token\n' "${_HOSTS_FACT["$1:home"]}" "$CLUSTER_NAME"; }

# hosts::token NODE: the file of Ray's token on its host.
hosts::token() {
  if hosts::_is_remote "$1"; then hosts::_token "$1"; else printf '%s/secrets/%s.token\n' "$WORKDIR" "$CLUSTER_NAME"; fi
}

# hosts::gcs NODE: where the head keeps the state of the GCS, on its host.
hosts::gcs() {
  if hosts::_is_remote "$1"; then
    printf '%s/.verl-regress/%s.gcs\n' "${_HOSTS_FACT["$1:home"]}" "$CLUSTER_NAME"
  else
    printf '%s/gcs/%s\n' "$WORKDIR" "$CLUSTER_NAME"
  fi
}

# hosts::ensure_released ENGINE...: no token and no state of the GCS is left on those hosts. Those that do not answer are left out.
hosts::ensure_released() {
  local engine pids=()
  for engine in "$@"; do
    hosts::_is_remote "$engine" || continue
    {
      # shellcheck disable=SC2016  # expanded there
      hosts::on "$engine" 'dir="$HOME/.verl-regress"; rm -rf "$dir/$1.token" "$dir/$1.gcs"; rmdir "$dir" 2>/dev/null || true' \
        "$CLUSTER_NAME" </dev/null 2>/dev/null || true
      login::disconnect "$engine"
    } &
    pids+=("$!")
  done
  ((${#pids[@]} == 0)) || wait "${pids[@]}"
}

# hosts::need_released: every host has answered, so nothing is left on any; then lets go of them.
hosts::need_released() {
  local lost
  hosts::are_several || return 0
  lost=$(hosts::lost | while read -r engine; do hosts::describe "$engine"; done | paste -sd, | sed 's/,\([^ ]\)/, \1/g')
  # shellcheck disable=SC2046  # names, one word each
  hosts::ensure_released $(hosts::engines)
  [[ -z $lost ]] || cli::die 8 "Containers and Ray's token may still be on ${lost}: run 'make down' again when they answer."
}
