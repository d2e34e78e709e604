# lifecycle/hosts_check: what the hosts of HOSTS_FILE say about themselves, and what must be true of them before anything is changed.
# shellcheck shell=bash

declare -gA _HOSTS_ADDRESS _HOSTS_GPUS # of hosts.bash
declare -gA _HOSTS_FACT=()             # what a host says about itself, as NODE:NAME

# hosts::need: every host answers, its engine too, and we know its address. All are asked at once.
hosts::need() {
  local node address
  local -A of=()
  hosts::are_several || return 0
  ! hosts::are_allocated || hosts::_take_given
  log::while 'asking the hosts' -- hosts::_ask_all
  for node in $(node::list); do
    [[ -n ${_HOSTS_FACT["${node}:address"]:-} ]] || hosts::_resolve "$node"
    address=$(hosts::address "$node")
    [[ ! -v of[$address] ]] ||
      cli::die 2 "$(hosts::describe "$node") has the address ${address}, as ${of[$address]} has: on several hosts nodes use the host's network, where a driver attaches to the first Ray node of its address, so give each host one node."
    of[$address]=$node
  done
}

# hosts::_take_given: what Slurm says about the hosts that it gave: their addresses, and their GPUs where the profile has some.
hosts::_take_given() {
  local node
  allocation::running_on >/dev/null
  allocation::load_addresses
  for node in $(node::list); do _HOSTS_ADDRESS[$node]=$(allocation::address "$node"); done
  [[ $PROFILE != gpu && $PROFILE != rocm ]] || hosts::_take_given_gpus
}

hosts::_take_given_gpus() {
  local node answers given=() ids
  cli::temp_dir answers
  node::ask "$answers" "$(node::list_workers)" allocation::gpus
  for node in $(node::list_workers); do
    ids=$(<"${answers}/${node}") given=()
    [[ ! $ids =~ ^[0-9]{1,3}(,[0-9]{1,3})*$ ]] || mapfile -d, -t given < <(printf %s "$ids")
    ((${#given[@]} >= GPUS_PER_WORKER)) ||
      cli::die 2 "Slurm gave ${#given[@]} GPUs on $(allocation::where "$node") (SLURM_STEP_GPUS='$(cli::shown "$ids")'), but GPUS_PER_WORKER=${GPUS_PER_WORKER} (from ${ENV_ORIGIN[GPUS_PER_WORKER]}): allocate that many, for example with 'salloc --gpus-per-node=${GPUS_PER_WORKER}', or lower GPUS_PER_WORKER."
    _HOSTS_GPUS[$node]=$(IFS=, && printf '%s' "${given[*]::GPUS_PER_WORKER}")
  done
}

# What a host says about itself. Its own address is where our connection ended.
# shellcheck disable=SC2016  # expanded there
readonly HOSTS_QUESTIONS='
  set -- "$1" ${SSH_CONNECTION:-}
  echo "reached ${4:-}"
  echo "addresses $(hostname -I 2>/dev/null)"
  echo "user $(id -u)"; echo "home $HOME"
  echo "nvidia $(nvidia-smi -L 2>/dev/null | grep -c "^GPU ")"
  echo "render $(ls -d /dev/dri/renderD* 2>/dev/null | wc -l)"
  echo "davinci $(ls -d /dev/davinci[0-9]* 2>/dev/null | wc -l)"
  for device in $1; do [ -e "$device" ] || echo "lacks $device"; done
  true'

hosts::_ask_all() {
  local node dir name value
  login::ensure_files
  cli::temp_dir dir
  node::ask_all "$dir" hosts::_ask
  for node in $(node::list); do
    while read -r name value; do _HOSTS_FACT["${node}:${name}"]=$value; done <"${dir}/${node}"
  done
}

# hosts::_ask NODE: prints the answers of its host and of its engine, as NAME VALUE.
hosts::_ask() {
  local node=$1 engine
  ! hosts::_is_remote "$node" || hosts::_need_connection "$node"
  hosts::on "$node" "$HOSTS_QUESTIONS" "${WORKER_DEVICES} $(compose::driver | paste -sd' ')" </dev/null ||
    hosts::_lost "$?" "$node" 'we asked what it has'
  engine=$(hosts::need_engine "$node")
  printf 'engine %s\narch %s\n' "${engine% *}" "${engine#* }"
}

# hosts::need_engine NODE: its host and the engine there answer; prints the engine's version and architecture.
hosts::need_engine() {
  local said="${LOGIN_FILES}/${BASHPID}.engine"
  login::ensure_files
  ! hosts::_is_remote "$1" || hosts::_need_connection "$1"
  hosts::docker "$1" version --format '{{.Server.Version}} {{.Server.Arch}}' 2>"$said" ||
    cli::die 8 "The container engine of $(hosts::describe "$1") does not answer ($(login::last_words "$said")): start it there, and let that user run 'docker version'."
  rm -f -- "$said"
}

# hosts::_resolve NODE: its address: address= of its line, or where our connection to it ended. In an allocation it is Slurm's.
hosts::_resolve() {
  local node=$1 address=${_HOSTS_ADDRESS[$1]:-} own=" ${_HOSTS_FACT["$1:addresses"]:-} "
  if [[ -n $address ]]; then
    [[ $own == *[0-9a-f]* && $own != *" ${address} "* ]] &&
      cli::die 2 "address=${address} of $(hosts::describe "$node") is not an address of that host, which has:${own% }: $(hosts::_address_cure 'use one of those')."
  elif ! hosts::are_allocated && hosts::_is_remote "$node"; then
    address=${_HOSTS_FACT["${node}:reached"]:-}
  fi
  node::is_reachable "$address" ||
    cli::die 2 "$(hosts::describe "$node") has no address by which the other hosts reach it (found: '${address}'): $(hosts::_address_cure 'add address=IP to its line')."
  _HOSTS_FACT["${node}:address"]=$address
}

# hosts::_address_cure OTHERWISE: what to do where an address is wrong: in an allocation Slurm's answer, OTHERWISE with a file of hosts.
hosts::_address_cure() { if hosts::are_allocated; then allocation::address_cure; else printf '%s\n' "$1"; fi; }

# hosts::address NODE: after hosts::need.
hosts::address() { printf '%s\n' "${_HOSTS_FACT["$1:address"]}"; }

# hosts::check: the checks of several hosts, before anything is changed.
hosts::check() {
  local node
  hosts::need
  for node in $(node::list); do
    log::ok "$(hosts::describe "$node"): $(hosts::address "$node"), container engine ${_HOSTS_FACT["${node}:engine"]}"
    prereq::try hosts::_check_user "$node"
    [[ $node == head ]] || prereq::try hosts::_check_gpus "$node"
  done
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
  local what='' count=0 ids highest
  [[ ! -v _HOSTS_FACT["$1:lacks"] ]] ||
    cli::die 1 "$(hosts::describe "$1") has no ${_HOSTS_FACT["$1:lacks"]} (from WORKER_DEVICES or the driver): load its driver, or leave it out."
  case $PROFILE in
    gpu) what='NVIDIA GPUs (nvidia-smi -L)' count=${_HOSTS_FACT["$1:nvidia"]} ;;
    rocm) what='GPUs (/dev/dri/renderD*)' count=${_HOSTS_FACT["$1:render"]} ;;
    npu) what='NPUs (/dev/davinci<n>)' count=${_HOSTS_FACT["$1:davinci"]} ;;
    *) return 0 ;;
  esac
  ids=$(hosts::gpus "$1")
  highest=$(tr , '\n' <<<"$ids" | sort -n | tail -n 1)
  # In an allocation ids are Slurm's, and what our login sees may be only the job's GPUs (pam_slurm_adopt).
  hosts::are_allocated || ((highest < count)) ||
    cli::die 1 "$(hosts::describe "$1") has ${count} ${what}, but ${1} is to get those with the ids ${ids} (profile ${PROFILE}): lower GPUS_PER_WORKER, or name others with gpus= in its line."
  [[ $PROFILE != gpu ]] || prereq::_nvidia_runtime "$1" " of $(hosts::describe "$1")"
  log::ok "$(hosts::describe "$1"): ${count} ${what}"
}
