# lifecycle/prereq: the checks before a cluster is started. Each check reports what it saw; none changes anything.
# shellcheck shell=bash

readonly PREREQ_DRIVER=580 # the first of NVIDIA's drivers for CUDA 13

# How many checks failed, and how many ended in a warning; the status of the first that failed. Set here, as LOG_CHANGES is.
PREREQ_FAILED=0 PREREQ_WARNED=0 PREREQ_STATUS=0
readonly PREREQ_WARNING=77 # the status of a check that ended in a warning

# prereq::_warn SENTENCE: a problem for a later step, but not for this one.
prereq::_warn() {
  PREREQ_WARNED=$((PREREQ_WARNED + 1))
  log::warn "$@"
}

# prereq::try CHECK...: runs one check, an argv, in a subshell, which is all that it ends if it fails: so every problem is reported at once.
# A check may try others.
# shellcheck disable=SC2030,SC2031  # the subshell counts its own, and its status tells us
prereq::try() {
  local status
  set +e # within `||` or `if`, errexit would be off in the check, too
  (
    set -e
    PREREQ_FAILED=0 PREREQ_WARNED=0
    "$@"
    ((PREREQ_FAILED == 0)) || exit "$PREREQ_STATUS"
    ((PREREQ_WARNED == 0)) || exit "$PREREQ_WARNING"
  )
  status=$?
  set -e
  case $status in
    0) ;;
    "$PREREQ_WARNING") PREREQ_WARNED=$((PREREQ_WARNED + 1)) ;;
    *)
      ((PREREQ_FAILED > 0)) || PREREQ_STATUS=$status
      PREREQ_FAILED=$((PREREQ_FAILED + 1))
      ;;
  esac
}

# prereq::run FIRST CHECK... [-- CHECK...]: tries them all, and says how many passed. Those before `--` ask what FIRST looks for, and are left
# out if it fails. If any failed, the script ends with the status of the first that did.
prereq::run() {
  local first=$1 check needing=() left_out=0 total
  shift
  while (($#)) && [[ $1 != -- ]]; do
    needing+=("$1")
    shift
  done
  (($# == 0)) || shift
  total=$((1 + ${#needing[@]} + $#))
  prereq::try "$first"
  if ((PREREQ_FAILED > 0)); then
    left_out=${#needing[@]}
    needing=()
  fi
  for check in "${needing[@]}" "$@"; do prereq::try "$check"; done
  prereq::_sum_up "$total" "$left_out"
}

# prereq::_sum_up TOTAL LEFT_OUT
prereq::_sum_up() {
  local rest=''
  ((PREREQ_WARNED == 0)) || rest+=", ${PREREQ_WARNED} ended in a warning"
  (($2 == 0)) || rest+=", $2 could not be tried"
  ((PREREQ_FAILED == 0)) || cli::die "$PREREQ_STATUS" "${PREREQ_FAILED} of $1 checks failed${rest}: each says above what to do."
  log::ok "$(($1 - PREREQ_WARNED)) of $1 checks passed${rest}"
}

prereq::engine() {
  engine::need
  log::ok "container engine $(engine::describe)"
}

# prereq::compose: it is there, and knows what we write: `!reset` since 2.18, on a service's networks since 2.24.
prereq::compose() {
  local version oldest=18 what='this project'
  version=$(docker compose version --short 2>/dev/null) ||
    cli::die 1 "Compose v2 is missing ('docker compose version' fails): run 'scripts/dev/bootstrap_host.sh --engine'."
  ! hosts::are_several || oldest=24 what="HOSTS_FILE (from ${ENV_ORIGIN[HOSTS_FILE]})"
  [[ ! $version =~ ^v?([0-9]+)\.([0-9]+) ]] || ((BASH_REMATCH[1] > 2 || (BASH_REMATCH[1] == 2 && BASH_REMATCH[2] >= oldest))) ||
    cli::die 1 "Compose ${version} ('docker compose version') is too old for ${what}, which needs 2.${oldest}: install a newer docker-compose-plugin, or put one at ${HOME}/.docker/cli-plugins/docker-compose."
  log::ok "Compose ${version}"
}

# prereq::node_image: whether `make up` will find the image. If it is missing, the other checks still run.
prereq::node_image() {
  local image
  image=$(image::name)
  if image::is_present "$image"; then
    log::ok "node image ${image} is here"
  else
    prereq::_warn "node image ${image} is not on this machine yet, and 'make up' needs it: run 'make build' first."
  fi
}

# prereq::shared_root: it has what is needed (docs/shared-root.md), and this user can write there.
prereq::shared_root() {
  shared::need
  log::ok "${WORKDIR}/shared can be written to, and has locks, links and renames"
}

# prereq::engine_sees: the engine sees the shared root, unless nodes that have it are there already.
prereq::engine_sees() {
  [[ -n $(nodes::owners) ]] || shared::need_seen
  log::ok "the container engine sees ${WORKDIR}/shared"
}

# prereq::owner: the nodes with our names are ours, and their network.
prereq::owner() {
  owner::need_own
  compose::need_own_network
  log::ok "the cluster ${CLUSTER_NAME} is ours, or not there yet"
}

# prereq::port: the dashboard's port is free, or ours.
prereq::port() {
  # shellcheck disable=SC2016  # expanded by that shell
  if ! timeout 2 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1"' listens "$DASHBOARD_PORT" 2>/dev/null; then
    log::ok "port 127.0.0.1:${DASHBOARD_PORT} is free"
    return
  fi
  [[ $(prereq::published_port) == "127.0.0.1:${DASHBOARD_PORT}" ]] ||
    cli::die 1 "Port 127.0.0.1:${DASHBOARD_PORT} (DASHBOARD_PORT, from ${ENV_ORIGIN[DASHBOARD_PORT]}) is taken by another process ('ss -ltnp' shows which): set DASHBOARD_PORT to a free port, or end that process."
  log::ok "port 127.0.0.1:${DASHBOARD_PORT} is our own dashboard's"
}

# prereq::published_port: where our head publishes its dashboard on this host, as ADDRESS:PORT.
prereq::published_port() { docker port "${CLUSTER_NAME}-head" 8265/tcp 2>/dev/null || true; }

# prereq::disk: the shared root, which may be a separate mount, has room. For a running cluster this is a warning, not an error.
prereq::disk() {
  local directory=${WORKDIR}/shared free problem
  until [[ -d $directory ]]; do directory=$(dirname -- "$directory"); done
  free=$(df --output=avail -BG -- "$directory" | tail -n 1 | tr -dc '0-9')
  if ((free >= MIN_DISK_GIB)); then
    log::ok "${free} GiB of disk free under ${WORKDIR}/shared (wanted: ${MIN_DISK_GIB})"
    return
  fi
  problem="${WORKDIR}/shared (from WORKDIR) has ${free} GiB free, but MIN_DISK_GIB=${MIN_DISK_GIB} are required: free some, or point WORKDIR elsewhere."
  [[ -n $(nodes::owners) ]] || cli::die 1 "$problem"
  prereq::_warn "$problem"
}

prereq::memory() {
  local free
  free=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
  ((free >= MIN_MEMORY_GIB)) || [[ -n $(nodes::owners) ]] ||
    cli::die 1 "This machine has ${free} GiB of memory available, but MIN_MEMORY_GIB=${MIN_MEMORY_GIB} are required: stop something, or lower the knob."
  log::ok "${free} GiB of memory available (wanted: ${MIN_MEMORY_GIB})"
}

# prereq::gpus: the GPUs and devices for this profile's workers exist on this machine, and the engine can pass them to containers.
prereq::gpus() {
  devices::take
  case $PROFILE in
    gpu)
      prereq::try prereq::_enough_gpus 'NVIDIA GPUs (nvidia-smi -L)' "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)" \
        "$(prereq::_query_gpus index,uuid | sed -nE 's/^([0-9]+),.*/\1/p' | tail -n 1)"
      ((PREREQ_FAILED > 0)) || prereq::_nvidia_gpus
      prereq::try prereq::_nvidia_engine
      ;;
    rocm)
      prereq::try prereq::_worker_devices
      prereq::try prereq::_enough_gpus 'GPUs (/dev/dri/renderD*)' "$(compgen -G "${DEVICE_ROOT:-/dev}/dri/renderD*" | wc -l)"
      ;;
    npu)
      prereq::try prereq::_worker_devices
      prereq::try prereq::_driver
      prereq::try prereq::_enough_gpus 'NPUs (/dev/davinci<n>)' "$(compgen -G "${DEVICE_ROOT:-/dev}/davinci[0-9]*" | wc -l)"
      ;;
    *) log::ok "no GPU is needed (profile ${PROFILE})" ;;
  esac
}

# prereq::_enough_gpus WHAT COUNT [HIGHEST]: HIGHEST is the last id, where the ids may not follow each other from 0 on.
prereq::_enough_gpus() {
  local highest=${3:-$(($2 - 1))} given=()
  if [[ -n $GPU_IDS ]]; then
    mapfile -t given < <(tr , '\n' <<<"$GPU_IDS" | sort -nu)
    ((${#given[@]} == WORKERS * GPUS_PER_WORKER && given[-1] <= highest)) ||
      cli::die 2 "GPU_IDS=${GPU_IDS} (from ${ENV_ORIGIN[GPU_IDS]}) must name $((WORKERS * GPUS_PER_WORKER)) of this machine's $2 $1, each once and none above ${highest}: WORKERS=${WORKERS} with GPUS_PER_WORKER=${GPUS_PER_WORKER} each."
  fi
  ((WORKERS * GPUS_PER_WORKER <= $2)) ||
    cli::die 1 "This machine has $2 $1, but WORKERS=${WORKERS} with GPUS_PER_WORKER=${GPUS_PER_WORKER} each are required (profile ${PROFILE}): lower one of the knobs."
  log::ok "$2 $1 (wanted: $((WORKERS * GPUS_PER_WORKER)))"
}

# prereq::_nvidia_engine: this machine's engine can pass GPUs to containers.
prereq::_nvidia_engine() {
  ! engine::is_podman || # podman's issue 22645, open in 2026; with CDI device names it is issue 28436
    cli::die 1 "$(engine::describe) ignores requests for NVIDIA GPUs that come through its socket, so no worker would have one: set CONTAINER_ENGINE=docker, or use nodes that exist already (TRANSPORT=ssh)."
  prereq::_nvidia_runtime this ''
}

# prereq::_nvidia_runtime NODE OF_WHAT: OF_WHAT says whose engine it is, where they are several.
prereq::_nvidia_runtime() {
  local runtimes
  # shellcheck disable=SC2016  # a template of Go's
  runtimes=$(hosts::docker "$1" info --format '{{range $name, $_ := .Runtimes}}{{$name}} {{end}}')
  [[ " $runtimes" == *' nvidia '* ]] || command -v nvidia-container-runtime-hook >/dev/null ||
    cli::die 1 "The container engine$2 cannot hand out NVIDIA GPUs (its runtimes are: ${runtimes% }): install the NVIDIA Container Toolkit, run 'nvidia-ctk runtime configure --runtime=docker' and restart the engine."
  log::ok "the container engine$2 can hand out NVIDIA GPUs"
}

# prereq::_nvidia_gpus: each GPU that a worker is to get is whole, has a driver for the CUDA of our image, and is used by no process, unless
# our cluster has it, or FORCE=1; a warning if they are of several types, or if nvidia-smi does not answer for all.
prereq::_nvidia_gpus() {
  local gpus=() used=() free=() line index driver name type='' wanted cure checked=0
  wanted=$(compose::list_gpus | paste -sd,)
  output::read_lines gpus prereq::_query_gpus index,uuid,driver_version,mig.mode.current,name
  output::read_lines used prereq::_gpu_processes
  output::read_lines free prereq::free_gpus
  cure='end it, wait for it, or share the GPU with FORCE=1'
  ((${#free[@]} == 0)) ||
    cure="end it, wait for it, share the GPU with FORCE=1, or set GPU_IDS=$(IFS=, && printf '%s' "${free[*]}") and a WORKERS times GPUS_PER_WORKER of at most ${#free[@]}"
  for line in "${gpus[@]}"; do
    IFS=', ' read -r index _ driver _ name <<<"$line"
    [[ $index =~ ^[0-9]+$ && ,${wanted}, == *",${index},"* ]] || continue
    checked=$((checked + 1))
    ((checked > 1)) || prereq::try prereq::_nvidia_driver "$driver" # a machine has one
    prereq::try prereq::_nvidia_gpu "$line" "$cure" "${used[@]}"
    [[ -z $type || $name == "$type" ]] ||
      prereq::_warn "the workers' GPUs are of several types (${type}, ${name}): the slowest and smallest decides, and runs on them are not comparable with others."
    type=$name
  done
  if ((checked < WORKERS * GPUS_PER_WORKER)); then
    prereq::_warn "nvidia-smi described ${checked} of the $((WORKERS * GPUS_PER_WORKER)) GPUs that the workers are to get, so driver, MIG and processes of the others are not checked: run 'nvidia-smi --query-gpu=index,uuid,driver_version,mig.mode.current,name --format=csv' to see why."
  elif ((PREREQ_FAILED == 0)); then
    log::ok "${checked} GPUs checked: driver, MIG and processes (nvidia-smi)"
  fi
}

prereq::_nvidia_driver() {
  [[ -n $NODE_IMAGE || ! $1 =~ ^([0-9]+)\. ]] || ((BASH_REMATCH[1] >= PREREQ_DRIVER)) ||
    cli::die 1 "The NVIDIA driver $1 (nvidia-smi) is too old for the node image, whose torch is for CUDA 13: install ${PREREQ_DRIVER} or later, or name an image for its CUDA in NODE_IMAGE."
}

# prereq::_nvidia_gpu GPU CURE PROCESS...: one of them, in nvidia-smi's words; CURE is for one that a process uses.
prereq::_nvidia_gpu() {
  local index uuid mig name of_pid
  IFS=', ' read -r index uuid _ mig name <<<"$1"
  [[ $mig != Enabled ]] ||
    cli::die 1 "GPU ${index} (${name}) is split with MIG (nvidia-smi), and a worker gets whole GPUs: run 'sudo nvidia-smi -i ${index} -mig 0'."
  for of_pid in "${@:3}"; do
    [[ $FORCE == 1 || $of_pid != "${uuid}, "* || -n $(nodes::owners) ]] ||
      cli::die 1 "GPU ${index} (${name}) is in use by the process ${of_pid#*, } (nvidia-smi), and a worker is to get it: $2."
  done
}

# prereq::free_gpus: the ids of the GPUs that this shell may use, that no process uses, and that MIG does not split; with FORCE=1 also those
# in use.
prereq::free_gpus() {
  local used
  used=$([[ $FORCE == 1 ]] || prereq::_gpu_processes | paste -sd' ')
  prereq::_query_gpus index,uuid,mig.mode.current |
    awk -F ', ' -v used=" ${used}" '$1 ~ /^[0-9]+$/ && $3 != "Enabled" && !index(used, " " $2 ", ") { print $1 }' | devices::only
}

# prereq::_gpu_processes: `UUID, PID` of each process on a GPU, but for the server of MPS, which is there to share it.
prereq::_gpu_processes() {
  prereq::_nvidia --query-compute-apps=gpu_uuid,pid,process_name |
    sed -E '/[ /]nvidia-cuda-mps-server$/d; s/^([^,]*, [^,]*).*/\1/'
}

# prereq::_query_gpus index,FIELD...: a line for each GPU, with the host's id of it.
prereq::_query_gpus() { prereq::_nvidia --query-gpu="$1" | devices::as_on_host; }

prereq::_nvidia() { nvidia-smi "$@" --format=csv,noheader 2>/dev/null || true; }

# prereq::_driver: what the profile's compose file mounts of this machine's driver is here.
prereq::_driver() {
  local file files=() missing=()
  output::read_lines files compose::driver
  for file in "${files[@]}"; do [[ -e ${HOST_ROOT:-}${file} ]] || missing+=("$file"); done
  ((${#missing[@]} == 0)) ||
    cli::die 1 "This machine lacks ${missing[*]}, which the workers get (docker-compose.${PROFILE}.yaml): install the driver in its default place."
}

prereq::_worker_devices() {
  local device missing=()
  for device in $WORKER_DEVICES; do [[ -e ${DEVICE_ROOT:-/dev}${device#/dev} ]] || missing+=("$device"); done
  ((${#missing[@]} == 0)) ||
    cli::die 1 "This machine lacks ${missing[*]} (WORKER_DEVICES, from ${ENV_ORIGIN[WORKER_DEVICES]}): load the driver, or leave it out of WORKER_DEVICES."
  log::ok "devices for the workers: ${WORKER_DEVICES}"
}
