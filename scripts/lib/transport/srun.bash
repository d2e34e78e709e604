# transport/srun: the hosts of a Slurm allocation, which SLURM_JOB_ID names. The head is on the first host, a worker on each other
# one. Every command is a step of its own, which shares the hosts with all other steps.
# shellcheck shell=bash

declare -ga _SRUN_HOSTS=()
declare -gA _SRUN_ADDRESS=()
# Only tests set HOST_ROOT.
readonly SRUN_FILES="${HOST_ROOT:-}/tmp/verl-regress-${UID}"
# Names of the environment variables that a command on a node gets from here. Nothing else of ours goes there, no secret above all.
readonly SRUN_EXPORT=PATH,HOME,USER,LOGNAME,LANG,LC_ALL,TZ,LD_LIBRARY_PATH

# transport::set_knobs: several jobs may share a host and a home, so their clusters have names and GCS ports of their own.
transport::set_knobs() {
  local slot
  srun::_need_allocation
  slot=$((10#$SLURM_JOB_ID % 12000))
  # Above the ports of Ray's workers (10002 to 19999), below those that the kernel hands out (32768 and above).
  srun::_set_unless_given CLUSTER_NAME "slurm-${SLURM_JOB_ID}" GCS_PORT "$((20000 + slot))"
}

# transport::load: asks Slurm for the hosts; sets WORKERS to match. It may be called again.
transport::load() {
  local said state list extra
  [[ -z ${_SRUN_HOSTS[*]:-} ]] || return 0 # an allocation keeps its hosts
  said=$(squeue --noheader --jobs="$SLURM_JOB_ID" --states=all --format='%T|%N' 2>&1) ||
    cli::die 8 "Slurm does not know the job ${SLURM_JOB_ID} (SLURM_JOB_ID) any more, or does not answer (squeue: $(tail -n 1 <<<"$said")): allocate hosts again with 'salloc --nodes=3'."
  IFS='|' read -r state list extra <<<"$said"
  [[ $state == RUNNING && -n $list && -z $extra ]] ||
    cli::die 8 "The Slurm job ${SLURM_JOB_ID} (SLURM_JOB_ID) is ${state:-gone}, not RUNNING: allocate hosts again with 'salloc --nodes=3'."
  answer::lines _SRUN_HOSTS scontrol show hostnames "$list" || srun::_refuse_scontrol hostnames
  ((${#_SRUN_HOSTS[@]} >= 2)) ||
    cli::die 2 "The Slurm job ${SLURM_JOB_ID} has ${#_SRUN_HOSTS[@]} host (${list}), and 2 are the least: the head needs one of its own, without GPUs, because two Ray nodes on one address do not work; allocate one more than you want workers, as with 'salloc --nodes=3'."
  ! env::is_given WORKERS || ((WORKERS == ${#_SRUN_HOSTS[@]} - 1)) ||
    cli::die 2 "WORKERS=${WORKERS} (from ${ENV_ORIGIN[WORKERS]}) but the Slurm job ${SLURM_JOB_ID} has ${#_SRUN_HOSTS[@]} hosts (${list}), one of them for the head: leave WORKERS out, it follows from the allocation."
  WORKERS=$((${#_SRUN_HOSTS[@]} - 1))
}

srun::_need_allocation() {
  local tool
  [[ ${SLURM_JOB_ID-} =~ ^[1-9][0-9]{0,9}$ ]] ||
    cli::die 2 "TRANSPORT=srun (from ${ENV_ORIGIN[TRANSPORT]}) is for a Slurm allocation, and there is none here (SLURM_JOB_ID='$(cli::shown "${SLURM_JOB_ID-}")'): run 'salloc --nodes=3' first and this in its shell, or let 'make slurm' submit a batch job."
  for tool in srun squeue scontrol; do
    command -v "$tool" >/dev/null ||
      cli::die 1 "'${tool}' is not on PATH, and TRANSPORT=srun (from ${ENV_ORIGIN[TRANSPORT]}) needs it: run this where Slurm's commands are, or load their module."
  done
}

# srun::_set_unless_given KNOB VALUE...
srun::_set_unless_given() {
  while (($#)); do
    if ! env::is_given "$1"; then
      declare -g "$1=$2"
      ENV_ORIGIN[$1]="the Slurm job ${SLURM_JOB_ID}"
    fi
    shift 2
  done
}

transport::exec() { srun::_run none "$@"; }

transport::exec_in() { srun::_run all "$@"; }

# srun::_run INPUT NODE ARGV...: the command's stderr has a channel of its own, apart from srun's own messages, which go to a file.
# srun reports the exit status of a command that has ended; without that report the status is srun's. Of a step that is cancelled
# Slurm kills one process after the other: a shell whose child was killed first may still end by itself, with 137. What Slurm
# writes to the command's stderr then tells it from a command that was killed alone.
srun::_run() {
  local input=$1 node=$2 said status=0 words=()
  shift
  transport::_need "$node"
  said="${SRUN_FILES}/${BASHPID}.said"
  srun::_words words "$node"
  (
    exec {out}>&1
    {
      exec {own}>&1 1>&"$out" {out}>&-
      exec "${words[@]}" --input="$input" --error="/dev/fd/${own}" --open-mode=append /bin/sh -c "$(existing::command "$@")" 2>"$said"
    } | tee -- "${said}.own" >&2 {out}>&-
    exit "${PIPESTATUS[0]}" # errexit is off before `||`
  ) || status=$?
  if ((status != 0)) && ! srun::_is_own_status "$status" "$said"; then
    cli::die 8 "The step on the node '${node}' ($(srun::where "$node")) was lost while '$2' ran there ($(srun::_last_words "$said")): see 'squeue --jobs=${SLURM_JOB_ID}', then run this again."
  fi
  rm -f -- "$said" "${said}.own"
  return "$status"
}

# srun::_is_own_status STATUS SAID: the command ended by itself, with this status, in a step that was not cancelled (Slurm 22.05).
srun::_is_own_status() {
  grep -q "^srun: error: .*: task 0: Exited with exit code ${1}$" "$2" &&
    ! grep -qE '^slurmstepd[^:]*: error: \*\*\* STEP .* \*\*\*$' "${2}.own"
}

# transport::spawn NODE LOG ARGV...: a step that lasts as long as anything that the command starts (py/verl_regress/cluster/hold.py),
# and a client of Slurm that continues after us, until the step or the allocation ends.
transport::spawn() {
  local node=$1 said words=() status=0
  shift
  transport::_need "$node"
  said="${SRUN_FILES}/${SLURM_JOB_ID}.${node}.$((++_SRUN_SPAWNED)).${BASHPID}.spawned"
  srun::_words words "$node"
  (
    srun::_close_files
    # Slurm sends SIGTERM to the whole step: if the shell ended of it, Slurm would kill the others at once.
    exec setsid "${words[@]}" --input=all /bin/sh -c "trap '' TERM; $(existing::command "$node" python3 - "$@")"
  ) <"${REPO_DIR}/py/verl_regress/cluster/hold.py" >"$said" 2>&1 &
  _SRUN_SPAWNING=$!
  wait::until "$CLUSTER_TIMEOUT" srun::_is_spawning_over grep -qx started "$said" || status=$?
  ((status == 0)) || grep -qx started "$said" ||
    cli::die 8 "The step for '$2' on the node '${node}' ($(srun::where "$node")) did not start ($(srun::_last_words "$said")): see 'squeue --jobs=${SLURM_JOB_ID} --steps', then run this again."
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

transport::exec_tty() {
  local words=()
  srun::_need "$1"
  srun::_words words "$1"
  "${words[@]}" --pty /bin/sh -c "$(existing::command "$@")"
}

# existing::forward ARRAY NODE LOCAL:HOST:PORT...
existing::forward() {
  local -n _argv=$1
  local node=$2 spec
  shift 2
  _argv=(ssh -N)
  [[ -z $TUNNEL_VIA ]] || _argv+=(-J "$TUNNEL_VIA")
  for spec; do _argv+=(-L "$spec"); done
  _argv+=("$(srun::host "$node")")
}

transport::is_alive() {
  local words=()
  srun::_words words "$1"
  srun::_ensure_files
  timeout 30 "${words[@]}" --input=none --output=none --error=none /bin/true >/dev/null 2>&1
}

transport::address() {
  transport::_need "$1"
  printf '%s\n' "${_SRUN_ADDRESS[$1]}"
}

transport::identity() { transport::exec "$1" hostname; }

transport::image() { :; }

# srun::host NODE: the name of its host in Slurm.
srun::host() {
  local index=0
  [[ $1 == head ]] || index=$((${1#worker-} + 1))
  printf '%s\n' "${_SRUN_HOSTS[index]:-}"
}

# srun::where NODE: "gpu-1 of the Slurm job 12", for messages.
srun::where() { printf '%s of the Slurm job %s\n' "$(srun::host "$1")" "$SLURM_JOB_ID"; }

# srun::directory: of this allocation on each host: Ray's token and its files. Short, because the path of a socket has at most 107 bytes.
srun::directory() { printf '/tmp/verl-regress-job%s\n' "$SLURM_JOB_ID"; }

# srun::_words ARRAY NODE: the command and its options up to those for stdin and stderr. Options of other steps, which come from the
# environment of the job, are not ours: --cpus-per-task would give each command only that many CPUs.
srun::_words() {
  local -n _words=$1
  local name
  _words=(env)
  for name in "${!SLURM_@}" "${!SRUN_@}"; do [[ $name == SLURM_CONF ]] || _words+=(-u "$name"); done
  _words+=(srun --jobid="$SLURM_JOB_ID" --overlap --nodes=1 --ntasks=1 --nodelist="$(srun::host "$2")" --mem=0 --cpu-bind=none --mpi=none
  --chdir=/tmp --quiet --quit-on-interrupt --export="$SRUN_EXPORT")
}

# existing::environment NODE: the lines of sh that give a command there its environment. Slurm hands out AMD's GPUs by
# ROCR_VISIBLE_DEVICES, which verl refuses (RAY_UNSET): HIP's own variable has the same meaning without it.
existing::environment() {
  # shellcheck disable=SC2016  # expanded on the node
  printf '%s\n' "export SHARED_ROOT='${SHARED_ROOT}' RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$(srun::directory)/ray.token RAY_USAGE_STATS_ENABLED=0
export RAY_TMPDIR=$(srun::directory) VERL_REGRESS_NODE_IP=${_SRUN_ADDRESS[$1]} PATH=\"${NODES_PATH:+${NODES_PATH}:}\$PATH\"" \
    '[ -z "$ROCR_VISIBLE_DEVICES" ] || export HIP_VISIBLE_DEVICES="${HIP_VISIBLE_DEVICES:-$ROCR_VISIBLE_DEVICES}"'
}

# transport::_need NODE: it has a host, and its address is known.
transport::_need() {
  [[ -n $(srun::host "$1") ]] ||
    cli::die 2 "The node '$1' is not in the Slurm job ${SLURM_JOB_ID}, which has ${#_SRUN_HOSTS[@]} hosts: allocate more with 'salloc --nodes=…'."
  srun::_ensure_files
  [[ -v _SRUN_ADDRESS[$1] ]] || srun::_load_addresses
}

# existing::need_all: their addresses are asked for together.
existing::need_all() {
  local node
  for node in $(node::list); do transport::_need "$node"; done
}

srun::_ensure_files() {
  mkdir -m 700 -- "$SRUN_FILES" 2>/dev/null || [[ -d $SRUN_FILES && ! -L $SRUN_FILES && -O $SRUN_FILES ]] ||
    cli::die 1 "${SRUN_FILES}, where srun's messages are kept, belongs to another user: have it removed."
}

# srun::_load_addresses: the address of each host, as another host of the allocation resolves Slurm's name for it: hosts often resolve
# their own name to 127.0.1.1. Asked once for each allocation.
srun::_load_addresses() {
  local file="${SRUN_FILES}/${SLURM_JOB_ID}.addresses" line node address lines=() names=() status=0
  local -A name_of=()
  if [[ ! -s $file ]]; then
    answer::lines lines srun::_names || srun::_refuse_scontrol node
    for line in "${lines[@]}"; do name_of[${line% *}]=${line#* }; done
    for node in $(node::list_workers); do names+=("$node" "${name_of[$(srun::host "$node")]:-}"); done
    { srun::_resolve head "${names[@]}" && srun::_resolve worker-0 head "${name_of[$(srun::host head)]:-}"; } >"${file}.${BASHPID}" || status=$?
    ((status == 0)) ||
      cli::die 8 "The hosts of the Slurm job ${SLURM_JOB_ID} (${_SRUN_HOSTS[*]}) take no command ($(srun::_last_words "${file}.said")): see 'squeue --jobs=${SLURM_JOB_ID}', then run this again."
    mv -- "${file}.${BASHPID}" "$file"
  fi
  while read -r node address; do _SRUN_ADDRESS[$node]=$address; done <"$file"
}

# srun::_names: "HOST NAME" for each host: the name by which Slurm reaches it.
srun::_names() {
  scontrol show node --oneliner "$(IFS=, && printf '%s' "${_SRUN_HOSTS[*]}")" | sed -nE 's/^NodeName=([^ ]+) .*NodeAddr=([^ ]+) .*/\1 \2/p'
}

# srun::_refuse_scontrol WHAT: a list that is not complete would be another cluster.
srun::_refuse_scontrol() {
  cli::die 8 "Slurm does not say which hosts the job ${SLURM_JOB_ID} (SLURM_JOB_ID) has ('scontrol show $1' fails, as it says above): run this again when Slurm answers."
}

# srun::_resolve NODE [OTHER NAME]...: prints the other nodes with the addresses that NODE's host has for them.
srun::_resolve() {
  local words=()
  srun::_words words "$1"
  # shellcheck disable=SC2016  # expanded on the node
  "${words[@]}" --input=none /bin/sh -c 'while [ "$#" -gt 0 ]; do
      found=$(getent ahostsv4 "$2") || found=$(getent ahosts "$2")
      printf "%s %s\n" "$1" "${found%% *}"
      shift 2
    done' resolve "${@:2}" 2>"${SRUN_FILES}/${SLURM_JOB_ID}.addresses.said"
}

# srun::_last_words FILE: srun's last line, without its name and a full stop.
srun::_last_words() {
  local words
  words=$(grep -v 'lacks support for cpu binding' -- "$1" 2>/dev/null | tail -n 1) || true
  words=${words#srun: } words=${words#error: } words=${words%.}
  printf '%s\n' "${words:-srun says nothing}"
  rm -f -- "$1"
}
