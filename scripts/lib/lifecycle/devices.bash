# lifecycle/devices: the GPUs or NPUs of this host that this shell may use. A scheduler, a platform or the user says so in variables that
# CUDA, ROCm and CANN obey; a container engine does not read them.
# shellcheck shell=bash

# The variables of a profile: the first that is set gives devices, the others choose among those. Slurm's have the host's ids (srun(1)).
declare -rgA DEVICES_VARIABLES=(
  [gpu]='SLURM_JOB_GPUS SLURM_STEP_GPUS NVIDIA_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES'
  [rocm]='SLURM_JOB_GPUS SLURM_STEP_GPUS ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES'
  [npu]='ASCEND_VISIBLE_DEVICES ASCEND_RT_VISIBLE_DEVICES'
)
declare -ga DEVICES_GIVEN=() # their ids; all devices of the host if DEVICES_SOURCE is empty
DEVICES_SOURCE=''            # the variables that said so, with their values

# devices::load: reads the variables. Nodes that are not containers on this host have environments of their own.
devices::load() {
  local name ids=()
  DEVICES_GIVEN=() DEVICES_SOURCE=''
  [[ $TRANSPORT == container && -z $HOSTS_FILE ]] || return 0
  for name in ${DEVICES_VARIABLES[$PROFILE]-}; do
    devices::_says "$name" || continue
    output::read_lines ids devices::_ids "$name"
    devices::_choose "$name" "${ids[@]}"
    DEVICES_SOURCE+="${DEVICES_SOURCE:+, }${name}='$(cli::shown "${!name}")'"
  done
}

# devices::take: GPU_IDS becomes the first of the given devices that the workers need, unless the user chose some: these must be given.
devices::take() {
  local wanted id number=$((WORKERS * GPUS_PER_WORKER))
  devices::load
  [[ -n $DEVICES_SOURCE ]] || return 0
  ((number <= ${#DEVICES_GIVEN[@]})) ||
    cli::die 2 "This shell may use ${#DEVICES_GIVEN[@]} devices of this host (${DEVICES_SOURCE}), but WORKERS=${WORKERS} with GPUS_PER_WORKER=${GPUS_PER_WORKER} each are required (profile ${PROFILE}): lower one of the knobs, or correct or unset the variable."
  if [[ -z $GPU_IDS ]]; then
    GPU_IDS=$(IFS=, && printf '%s' "${DEVICES_GIVEN[*]::number}")
    ENV_ORIGIN[GPU_IDS]="${DEVICES_SOURCE} of this shell"
  fi
  output::read_lines wanted compose::list_gpus
  for id in "${wanted[@]}"; do
    devices::_is_given "$id" ||
      cli::die 2 "GPU_IDS=${GPU_IDS} (from ${ENV_ORIGIN[GPU_IDS]}) has ${id}, but this shell may only use $(devices::shown) (${DEVICES_SOURCE}): choose among those in GPU_IDS, or correct or unset the variable."
  done
  log::ok "the workers get ${GPU_IDS}, of $(devices::shown) that this shell may use (${DEVICES_SOURCE})"
}

# devices::as_on_host: lines of nvidia-smi, each of which begins with an id, with the ids of the host. Slurm may hide the devices of other jobs
# (ConstrainDevices): then nvidia-smi counts the job's own from 0, but SLURM_JOB_GPUS has the host's ids (sbatch(1)).
devices::as_on_host() {
  local lines=() ids=() i
  mapfile -t lines
  output::read_lines ids devices::_of_job
  ((${#ids[@]} == ${#lines[@]})) || ids=()
  for i in "${!ids[@]}"; do
    [[ ! ${lines[i]} =~ ^[0-9]+, ]] || lines[i]="${ids[i]},${lines[i]#*,}" # and not a message of nvidia-smi
  done
  ((${#lines[@]} == 0)) || printf '%s\n' "${lines[@]}"
}

# devices::_of_job: the ids that Slurm gave to this step or job, the lowest first.
devices::_of_job() {
  local name
  for name in SLURM_STEP_GPUS SLURM_JOB_GPUS; do
    [[ -v $name && ${!name} =~ ^[0-9,-]+$ ]] || continue
    devices::_ids "$name" | sort -n
    return
  done
}

# devices::shown: their ids, or "none".
devices::shown() { (IFS=, && printf '%s\n' "${DEVICES_GIVEN[*]:-none}"); }

# devices::only: of the ids on stdin those that this shell may use.
devices::only() {
  local id
  while read -r id; do
    if [[ -z $DEVICES_SOURCE ]] || devices::_is_given "$id"; then printf '%s\n' "$id"; fi
  done
}

devices::_is_given() { [[ " ${DEVICES_GIVEN[*]} " == *" $1 "* ]]; }

# devices::_says NAME: it is set to something. Where a container runtime reads it, these words mean all, or that devices come in another way.
devices::_says() {
  [[ -v $1 ]] || return
  case $1 in
    CUDA_* | ROCR_* | HIP_* | ASCEND_RT_*) ;;
    *) [[ ! ${!1} =~ ^(all|void)?$ ]] ;;
  esac
}

# devices::_ids NAME: the ids that the variable lists, one line each; a list ends at what means no device.
devices::_ids() {
  local words=() word
  IFS=', ' read -r -a words <<<"${!1}"
  for word in "${words[@]}"; do
    case $word in
      -1 | none | NoDevFiles) return ;;
      *) devices::_id "$word" ||
        cli::die 2 "$1='$(cli::shown "${!1}")' (from the environment) names '$(cli::shown "$word")', which is no whole device of this host by its id$([[ $PROFILE != gpu ]] || printf ", or by a UUID that nvidia-smi lists"): correct or unset it." ;;
    esac
  done
}

# devices::_id WORD: its id or ids, one line each; a UUID of NVIDIA may be cut, as CUDA allows.
devices::_id() {
  local gpus=() line found=()
  if [[ $1 =~ ^[0-9]{1,3}$ ]]; then
    printf '%d\n' "$((10#$1))"
  elif [[ $1 =~ ^([0-9]{1,3})-([0-9]{1,3})$ ]]; then
    seq "$((10#${BASH_REMATCH[1]}))" "$((10#${BASH_REMATCH[2]}))"
  elif [[ $PROFILE == gpu && $1 == GPU-* ]]; then
    output::read_lines gpus prereq::_query_gpus index,uuid,mig.mode.current
    for line in "${gpus[@]}"; do
      [[ $line != *", $1, "* ]] || { printf '%s\n' "${line%%,*}" && return; }
      [[ $line != *", $1"* ]] || found+=("${line%%,*}")
    done
    ((${#found[@]} == 1)) && printf '%s\n' "${found[@]}"
  else
    return 1
  fi
}

# devices::_choose NAME ID...: the first list is what is given. A later one chooses by the same ids, or, where the runtime hides the other
# devices, counts those from 0.
devices::_choose() {
  local id chosen=()
  if [[ -z $DEVICES_SOURCE ]]; then
    DEVICES_GIVEN=("${@:2}")
    return
  fi
  for id in "${@:2}"; do ! devices::_is_given "$id" || chosen+=("$id"); done
  if ((${#chosen[@]} < $# - 1)); then
    chosen=()
    for id in "${@:2}"; do
      ((id < ${#DEVICES_GIVEN[@]})) ||
        cli::die 2 "$1='$(cli::shown "${!1}")' (from the environment) has ${id}, which is none of $(devices::shown) (${DEVICES_SOURCE}): correct or unset it."
      chosen+=("${DEVICES_GIVEN[id]}")
    done
  fi
  DEVICES_GIVEN=("${chosen[@]}")
}
