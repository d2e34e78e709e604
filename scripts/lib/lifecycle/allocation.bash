# lifecycle/allocation: the hosts of a Slurm allocation, which SLURM_JOB_ID names, as nodes: the head on the first host, a worker on each
# other one. For bare hosts (TRANSPORT=srun) and for our containers on them (HOSTS_FILE=slurm).
# shellcheck shell=bash

declare -ga ALLOCATION_HOSTS=()
declare -gA _ALLOCATION_ADDRESS=() # of each node
_ALLOCATION_LIST=''                # the hosts as Slurm writes them, such as gpu-[0-2]
# Names of the environment variables that a command on a host gets from here. Nothing else of ours goes there, no secret above all.
readonly ALLOCATION_EXPORT=PATH,HOME,USER,LOGNAME,TZ,LD_LIBRARY_PATH

# allocation::set_knobs KNOB: what follows from the allocation that KNOB asks for.
allocation::set_knobs() {
  local tool
  [[ ${SLURM_JOB_ID-} =~ ^[1-9][0-9]{0,9}$ ]] ||
    cli::die 2 "$1=${!1} (from ${ENV_ORIGIN[$1]}) is for a Slurm allocation, and there is none here (SLURM_JOB_ID='$(cli::shown "${SLURM_JOB_ID-}")'): run 'salloc --nodes=3' first and this in its shell, or let 'make slurm' submit a batch job."
  [[ ${SLURM_HET_SIZE-} =~ ^1?$ ]] ||
    cli::die 2 "The Slurm job ${SLURM_JOB_ID} is heterogeneous (SLURM_HET_SIZE='$(cli::shown "$SLURM_HET_SIZE")'), and its parts are jobs of their own with unequal hosts: allocate all hosts as one part, as with 'salloc --nodes=3'."
  for tool in srun squeue scontrol; do
    command -v "$tool" >/dev/null ||
      cli::die 1 "'${tool}' is not on PATH, and $1=${!1} (from ${ENV_ORIGIN[$1]}) needs it: run this where Slurm's commands are, or load their module."
  done
  allocation::set_own GCS_PORT
}

# allocation::set_own PORT: Slurm jobs and tasks of arrays may share a host, a home and a checkout, so the cluster has a name of its own, and
# the knob PORT a port of its own, unless the user chose one. It is above those of Ray's workers (10002 to 19999), below the kernel's (32768
# and above). A task of an array is a job with an id of its own.
allocation::set_own() {
  local knob
  local -A value=([CLUSTER_NAME]="slurm-${SLURM_JOB_ID}" [$1]=$((20000 + 10#$SLURM_JOB_ID % 12000)))
  for knob in "${!value[@]}"; do
    ! env::is_given "$knob" || continue
    declare -g "$knob=${value[$knob]}"
    ENV_ORIGIN["$knob"]="the Slurm job ${SLURM_JOB_ID}"
  done
}

# allocation::load: asks Slurm for the hosts; sets WORKERS to match. It may be called again.
allocation::load() {
  [[ -z ${ALLOCATION_HOSTS[*]:-} ]] || return 0 # an allocation keeps its hosts
  _ALLOCATION_LIST=$(allocation::running_on)
  output::read_lines ALLOCATION_HOSTS scontrol show hostnames "$_ALLOCATION_LIST" || allocation::_refuse_scontrol hostnames
  allocation::_set_workers
}

# allocation::running_on: prints the hosts of the job as Slurm writes them; it runs. The tasks of an array have job ids of their own, but
# one of these is also the array's, for which squeue lists them all.
allocation::running_on() {
  local said state list extra id=$SLURM_JOB_ID
  [[ ! ${SLURM_ARRAY_JOB_ID-}_${SLURM_ARRAY_TASK_ID-} =~ ^[0-9]+_[0-9]+$ ]] || id="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
  said=$(squeue --noheader --jobs="$id" --states=all --format='%T|%N' 2>&1) ||
    cli::die 8 "Slurm does not know the job ${SLURM_JOB_ID} (SLURM_JOB_ID) any more, or does not answer (squeue: $(tail -n 1 <<<"$said")): allocate hosts again with 'salloc --nodes=3'."
  IFS='|' read -r state list extra <<<"$said"
  [[ $state == RUNNING && -n $list && -z $extra ]] ||
    cli::die 8 "The Slurm job ${SLURM_JOB_ID} (SLURM_JOB_ID) is ${state:-gone}, not RUNNING: allocate hosts again with 'salloc --nodes=3'."
  printf '%s\n' "$list"
}

allocation::_set_workers() {
  ((${#ALLOCATION_HOSTS[@]} >= 2)) ||
    cli::die 2 "The Slurm job ${SLURM_JOB_ID} has ${#ALLOCATION_HOSTS[@]} host (${_ALLOCATION_LIST}), but at least 2 are needed: the head gets a host of its own, without GPUs, because two Ray nodes cannot share an address; allocate one more than you want workers, as with 'salloc --nodes=3'."
  ! env::is_given WORKERS || ((WORKERS == ${#ALLOCATION_HOSTS[@]} - 1)) ||
    cli::die 2 "WORKERS=${WORKERS} (from ${ENV_ORIGIN[WORKERS]}) but the Slurm job ${SLURM_JOB_ID} has ${#ALLOCATION_HOSTS[@]} hosts (${_ALLOCATION_LIST}), one of them for the head: leave WORKERS out, it follows from the allocation."
  WORKERS=$((${#ALLOCATION_HOSTS[@]} - 1))
}

# allocation::keep FILE: the hosts, for allocation::load_kept: Slurm forgets them when the job ends, and our containers may still be there.
allocation::keep() {
  printf '%s\n' "${SLURM_JOB_ID} ${_ALLOCATION_LIST}" "${ALLOCATION_HOSTS[@]}" >"$1.$$"
  mv -- "$1.$$" "$1"
}

# allocation::load_kept FILE: as allocation::load, from FILE. With a CLUSTER_NAME that the user gave it may belong to another job, which may
# still run: do not touch anything of that.
allocation::load_kept() {
  local job
  { read -r job _ALLOCATION_LIST && mapfile -t ALLOCATION_HOSTS; } <"$1"
  [[ $job == "$SLURM_JOB_ID" ]] ||
    cli::die 2 "The cluster ${CLUSTER_NAME} (CLUSTER_NAME, from ${ENV_ORIGIN[CLUSTER_NAME]}) was brought up in the Slurm job ${job} on ${_ALLOCATION_LIST}, and this is the job ${SLURM_JOB_ID} (SLURM_JOB_ID): leave CLUSTER_NAME out, it follows from the job; 'SLURM_JOB_ID=${job} make down' takes that cluster down."
  allocation::_set_workers
}

# allocation::host NODE: the name of its host in Slurm.
allocation::host() {
  local index=0
  [[ $1 == head ]] || index=$((${1#worker-} + 1))
  printf '%s\n' "${ALLOCATION_HOSTS[index]:-}"
}

# allocation::where NODE: "gpu-1 of the Slurm job 12", for messages.
allocation::where() { printf '%s of the Slurm job %s\n' "$(allocation::host "$1")" "$SLURM_JOB_ID"; }

# allocation::is_here NODE: its host is this machine. Slurm names it where it has started us.
allocation::is_here() {
  local here
  here=$(uname -n)
  [[ $(allocation::host "$1") == "${SLURMD_NODENAME:-${here%%.*}}" ]]
}

# allocation::step ARRAY NODE: the words that run a command on its host as a step that shares it with all other steps, up to the options for
# stdin and stderr. Options of other steps, which come from the environment of the job, are not ours: --cpus-per-task would give each
# command only that many CPUs. It begins in /, where nobody else can put a module that `python3 -` would import.
allocation::step() {
  local -n _words=$1
  local name
  _words=(env)
  for name in "${!SLURM_@}"; do [[ $name == SLURM_CONF ]] || _words+=(-u "$name"); done
  _words+=(srun --jobid="$SLURM_JOB_ID" --overlap --nodes=1 --ntasks=1 --nodelist="$(allocation::host "$2")" --mem=0 --cpu-bind=none --mpi=none
  --chdir=/ --quiet --quit-on-interrupt --export="$ALLOCATION_EXPORT")
}

# allocation::load_addresses: the address of each host, as another host of the allocation resolves Slurm's name for it: hosts often resolve
# their own name to 127.0.1.1. Asked once for each allocation. It may be called again.
allocation::load_addresses() {
  local file="${LOGIN_FILES}/${SLURM_JOB_ID}.addresses" line node address lines=() names=() status=0
  local -A name_of=()
  ((${#_ALLOCATION_ADDRESS[@]} == 0)) || return 0
  login::ensure_files
  if [[ ! -s $file ]]; then
    output::read_lines lines allocation::_names || allocation::_refuse_scontrol node
    for line in "${lines[@]}"; do name_of[${line% *}]=${line#* }; done
    for node in $(node::list_workers); do names+=("$node" "${name_of[$(allocation::host "$node")]:-}"); done
    { allocation::_resolve head "${names[@]}" && allocation::_resolve worker-0 head "${name_of[$(allocation::host head)]:-}"; } >"${file}.${BASHPID}" || status=$?
    ((status == 0)) || allocation::_refuse_step "${file}.said"
    mv -- "${file}.${BASHPID}" "$file"
  fi
  while read -r node address; do _ALLOCATION_ADDRESS[$node]=$address; done <"$file"
}

# allocation::address NODE: after allocation::load_addresses; prints nothing if that host has no address for Slurm's name.
allocation::address() { printf '%s\n' "${_ALLOCATION_ADDRESS[$1]:-}"; }

# allocation::address_cure: what to do where one of these addresses is wrong. Forgets them all, so that the next command asks again.
allocation::address_cure() {
  rm -f -- "${LOGIN_FILES}/${SLURM_JOB_ID}.addresses"
  printf "correct its name in the hosts' /etc/hosts or DNS, or its NodeAddr in slurm.conf, then run this again\n"
}

# allocation::_names: "HOST NAME" for each host: the name by which Slurm reaches it.
allocation::_names() {
  scontrol show node --oneliner "$(IFS=, && printf '%s' "${ALLOCATION_HOSTS[*]}")" | sed -nE 's/^NodeName=([^ ]+) .*NodeAddr=([^ ]+) .*/\1 \2/p'
}

# allocation::_resolve NODE [OTHER NAME]...: prints the other nodes with the addresses that NODE's host has for them.
allocation::_resolve() {
  local words=()
  allocation::step words "$1"
  # shellcheck disable=SC2016  # expanded on the node
  "${words[@]}" --input=none /bin/sh -c 'while [ "$#" -gt 0 ]; do
      found=$(getent ahostsv4 "$2") || found=$(getent ahosts "$2")
      printf "%s %s\n" "$1" "${found%% *}"
      shift 2
    done' resolve "${@:2}" 2>"${LOGIN_FILES}/${SLURM_JOB_ID}.addresses.said"
}

# allocation::gpus NODE: prints the host's ids of the GPUs that Slurm gave there, as SLURM_STEP_GPUS has them (srun(1)).
# CUDA_VISIBLE_DEVICES counts from 0 where Slurm hides the other devices.
allocation::gpus() {
  local words=() said="${LOGIN_FILES}/${SLURM_JOB_ID}.$1.gpus.said"
  allocation::step words "$1"
  # shellcheck disable=SC2016  # expanded on the host
  "${words[@]}" --input=none /bin/sh -c 'printf "%s\n" "${SLURM_STEP_GPUS:-$SLURM_JOB_GPUS}"' 2>"$said" || allocation::_refuse_step "$said"
  rm -f -- "$said"
}

# allocation::_refuse_scontrol WHAT: a list that is not complete would be another cluster.
allocation::_refuse_scontrol() {
  cli::die 8 "Slurm does not say which hosts the job ${SLURM_JOB_ID} (SLURM_JOB_ID) has ('scontrol show $1' fails; the reason is above): run this again when Slurm answers."
}

allocation::_refuse_step() {
  cli::die 8 "The hosts of the Slurm job ${SLURM_JOB_ID} (${ALLOCATION_HOSTS[*]}) take no command ($(login::last_words "$1" srun)): see 'squeue --jobs=${SLURM_JOB_ID}', then run this again."
}
