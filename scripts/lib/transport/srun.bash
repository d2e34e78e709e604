# transport/srun: the hosts of a Slurm allocation, which SLURM_JOB_ID names. The head is on the first host, a worker on each other
# one. Every command is a separate step, which shares the hosts with all other steps; with NODES_CONTAINER it runs in that container.
# shellcheck shell=bash

# transport::set_knobs: the knobs that follow from the allocation.
transport::set_knobs() {
  [[ -z $HOSTS_FILE ]] ||
    cli::die 2 "HOSTS_FILE=${HOSTS_FILE} (from ${ENV_ORIGIN[HOSTS_FILE]}) lists hosts for containers, but with TRANSPORT=srun (from ${ENV_ORIGIN[TRANSPORT]}) Ray runs on the hosts themselves: set only one of the two (for containers in an allocation: TRANSPORT=container HOSTS_FILE=slurm)."
  allocation::set_knobs TRANSPORT
}

transport::load() {
  local node
  allocation::load
  for node in $(node::list); do login::take "$node" "$(allocation::host "$node")"; done
  read -r -a SRUN_CONTAINER <<<"$NODES_CONTAINER"
}

transport::exec() { srun::_run none "$@"; }

transport::exec_in() { srun::_run all "$@"; }

# srun::_run INPUT NODE ARGV...: the command's stderr is separate from srun's own messages, which go to a file.
# srun reports the exit status of a command that has ended; without that report the status is srun's. Of a step that is cancelled
# Slurm kills one process after the other: if a shell's child was killed first, the shell may still end by itself, with 137. What Slurm
# writes to the command's stderr then tells it from a command that was killed alone.
srun::_run() {
  local input=$1 node=$2 said status=0
  shift
  transport::_need "$node"
  said="${LOGIN_FILES}/${BASHPID}.said"
  login::run "${said}.unmarked" srun::_client "$said" "$input" "$@" || status=$?
  if ((status != 0)) && ! srun::_is_own_status "$status" "$said"; then
    cli::die 8 "The step on the node '${node}' ($(allocation::where "$node")) was lost while '$2' ran there ($(login::last_words "$said" srun)): see 'squeue --jobs=${SLURM_JOB_ID}', then run this again."
  fi
  if [[ -e ${said}.unmarked ]]; then # what NODES_CONTAINER says instead of running it
    cat -- "${said}.unmarked" >&2
    status=$((status ? status : 1))
  fi
  rm -f -- "$said" "${said}".*
  return "$status"
}

# srun::_client SAID INPUT NODE ARGV...: the step, with only the command's output on stdout and stderr; SAID.own has the latter, too.
srun::_client() {
  local said=$1 input=$2 words=()
  allocation::step words "$3"
  {
    {
      exec {own}>&1 >&"$out" {out}>&-
      exec "${words[@]}" --input="$input" --error="/dev/fd/${own}" --open-mode=append "${SRUN_CONTAINER[@]}" \
        /bin/sh -c "$(existing_nodes::command "${@:3}")" 2>"$said"
    } | tee -- "${said}.own" >&2 {out}>&-
    exit "${PIPESTATUS[0]}"
  } {out}>&1
}

# srun::_is_own_status STATUS SAID: the command ended by itself, with this status, in a step that was not cancelled (Slurm 22.05).
srun::_is_own_status() {
  grep -q "^srun: error: .*: task 0: Exited with exit code ${1}$" "$2" &&
    ! grep -qE '^slurmstepd[^:]*: error: \*\*\* STEP .* \*\*\*$' "${2}.own"
}

# transport::spawn NODE LOG ARGV...: a step that lasts as long as anything that the command starts (py/verl_regress/cluster/subreaper.py),
# and a client of Slurm that continues after us, until the step or the allocation ends.
transport::spawn() {
  local node=$1 said words=() status=0
  shift
  transport::_need "$node"
  said="${LOGIN_FILES}/${SLURM_JOB_ID}.${node}.$((++_SRUN_SPAWNED)).${BASHPID}.spawned"
  allocation::step words "$node"
  (
    srun::_close_files
    # Slurm sends SIGTERM to the whole step: if the shell ended of it, Slurm would kill the others at once.
    exec setsid "${words[@]}" --input=all "${SRUN_CONTAINER[@]}" \
      /bin/sh -c "trap '' TERM; $(existing_nodes::command "$node" python3 - "$@")"
  ) <"${REPO_DIR}/py/verl_regress/cluster/subreaper.py" >"$said" 2>&1 &
  _SRUN_SPAWNING=$!
  wait::until "$CLUSTER_TIMEOUT" srun::_is_spawning_over grep -qx started "$said" || status=$?
  ((status == 0)) || grep -qx started "$said" ||
    cli::die 8 "The step for '$2' on the node '${node}' ($(allocation::where "$node")) did not start ($(login::last_words "$said" srun)): see 'squeue --jobs=${SLURM_JOB_ID} --steps', then run this again."
}
_SRUN_SPAWNED=0

srun::_is_spawning_over() { ! kill -0 "$_SRUN_SPAWNING" 2>/dev/null; }

# srun::_close_files: what outlives us must not keep our locks and pipes.
srun::_close_files() {
  local file
  for file in /proc/self/fd/*; do
    file=${file##*/}
    ((file <= 2)) || exec {file}>&-
  done
}

transport::is_alive() {
  local words=()
  allocation::step words "$1"
  login::ensure_files
  timeout 30 "${words[@]}" --input=none --output=none --error=none /bin/true >/dev/null 2>&1
}

transport::address() {
  transport::_need "$1"
  allocation::address "$1"
}

# transport::peers: the hosts of the allocation, and their addresses.
transport::peers() { printf '%s\n' "${ALLOCATION_HOSTS[@]}" "${_ALLOCATION_ADDRESS[@]}"; }

# transport::ray_directory: of this allocation on each host: Ray's token and its files. Short, because the path of a socket is.
transport::ray_directory() { printf '%s/verl-regress-job%s\n' "$(node::ray_base)" "$SLURM_JOB_ID"; }

# transport::environment NODE: the lines of sh that put what is this host's own into the environment of a command. Slurm hands out AMD's
# GPUs by ROCR_VISIBLE_DEVICES, which verl refuses: HIP's own variable has the same meaning without it.
transport::environment() {
  # shellcheck disable=SC2016  # expanded on the node
  printf '%s\n' "set -- SHARED_ROOT='${SHARED_ROOT}' RAY_AUTH_TOKEN_PATH=$(transport::ray_directory)/ray.token \"\$@\"
set -- VERL_REGRESS_NODE_IP=$(allocation::address "$1") PATH=\"${NODES_PATH:+${NODES_PATH}:}\$PATH\" \"\$@\"" \
    '[ -z "$ROCR_VISIBLE_DEVICES" ] || set -- HIP_VISIBLE_DEVICES="${HIP_VISIBLE_DEVICES:-$ROCR_VISIBLE_DEVICES}" "$@"'
}

# transport::_need NODE: its address is known.
transport::_need() {
  login::ensure_files
  allocation::load_addresses
}

# existing_nodes::need_all: their addresses are asked for together.
existing_nodes::need_all() {
  local node answers
  for node in $(node::list); do transport::_need "$node"; done
  [[ -n $NODES_CONTAINER ]] || return 0
  cli::temp_dir answers
  node::ask_all "$answers" srun::_need_container
}

# The reason is printed whole: some tools write a line in pieces, and other nodes are asked at the same time.
srun::_need_container() {
  local said
  said=$(transport::exec "$1" sh -c : 2>&1) || {
    printf '%s\n' "$said" >&2
    cli::die 1 "No command runs on the node '$1' ($(allocation::where "$1")) in NODES_CONTAINER='${NODES_CONTAINER}' (from ${ENV_ORIGIN[NODES_CONTAINER]}; the reason is above): correct it, or leave it empty for the host's own Python."
  }
}
