# env: the knobs. The environment wins over env/local.env, that over the profile, that over env/defaults.env.
# The files are plain KEY=VALUE lines: read, never run; an explicitly empty value counts as given.
# shellcheck shell=bash

# env::load: reads every knob, picks the profile, checks the values, exports them (compose reads the same ones).
env::load() {
  [[ ! -f ${REPO_DIR}/env/local.env ]] || env::_read_file "${REPO_DIR}/env/local.env"
  # PROFILE alone is needed before the profile's own file can be read.
  if [[ ! -v PROFILE ]]; then
    PROFILE=$(sed -n 's/^PROFILE=//p' "${REPO_DIR}/env/defaults.env")
    ENV_ORIGIN[PROFILE]="env/defaults.env: ${PROFILE}"
  fi
  local asked=$PROFILE
  PROFILE=$(env::_pick_profile "$asked")
  export PROFILE
  env::_read_file "${REPO_DIR}/env/${PROFILE}.env"
  env::_read_file "${REPO_DIR}/env/defaults.env"
  env::_check
  [[ -n $PROFILE_TITLE ]] || PROFILE_TITLE=$PROFILE
  [[ $asked != auto || $TRANSPORT == container ]] ||
    cli::die 2 "PROFILE=auto looks for devices on this machine, but with TRANSPORT=${TRANSPORT} (from ${ENV_ORIGIN[TRANSPORT]}) the nodes are others: say which profile they are for."
  helper::fix_version
  WORKDIR=$(realpath -m -- "$WORKDIR")
  node::load
}

# Where each knob's value came from, for messages and for what only counts when a person said it.
declare -gA ENV_ORIGIN=()

# env::path PATH: absolute, on this host; a leading ~/ is HOME, which the shell leaves as it is behind "path:".
env::path() { realpath -m -- "${1/#\~\//${HOME}/}"; }

# env::is_given KEY: a person set it, on the command line, in the environment or in env/local.env.
env::is_given() { [[ ${ENV_ORIGIN[$1]} == 'the command line or environment' || ${ENV_ORIGIN[$1]} == env/local.env ]]; }

# First wins: a key that is set already, even to nothing, is left alone.
env::_read_file() {
  local file=$1 line key
  while IFS= read -r line || [[ -n $line ]]; do
    [[ $line =~ ^[[:space:]]*(#|$) ]] && continue
    [[ $line =~ ^([A-Z][A-Z0-9_]*)=(.*)$ ]] ||
      cli::die 2 "'$(cli::shown "$line")' in ${file} is no KEY=VALUE line: write one knob a line, no spaces around '='."
    key=${BASH_REMATCH[1]}
    # A value that is read, never run, must not be run by the next shell either: it runs what BASH_ENV says.
    case $key in
      BASH* | ENV | IFS | LD_* | PS[0-4] | SHELLOPTS)
        cli::die 2 "'${key}' in ${file} is no knob, and the shells and tools that we start would act on it: leave it out."
        ;;
    esac
    if [[ ! -v $key ]]; then
      declare -g "${key}=${BASH_REMATCH[2]}"
      ENV_ORIGIN[$key]=${file#"${REPO_DIR}/"}
    fi
    [[ -v ENV_ORIGIN[$key] ]] || ENV_ORIGIN[$key]='the command line or environment'
    # shellcheck disable=SC2163  # the name is in the variable, on purpose
    export "$key"
  done <"$file"
}

# env::_pick_profile ASKED: the profile's name on stdout. Devices that are there but do not answer are an error,
# never a silent rehearsal.
env::_pick_profile() {
  local asked=$1 root=${DEVICE_ROOT:-/dev} profiles
  profiles=$(cd "${REPO_DIR}/env" && printf '%s\n' *.env | sed 's/\.env$//' | grep -vx -e defaults -e local | paste -sd' ')
  if [[ $asked != auto ]]; then
    [[ -f ${REPO_DIR}/env/${asked}.env && " $profiles " == *" $asked "* ]] ||
      cli::die 2 "PROFILE=$(cli::shown "$asked") is not a profile: choose auto or one of: ${profiles}."
    printf '%s\n' "$asked"
    return
  fi
  if compgen -G "${root}/nvidia[0-9]*" >/dev/null; then
    nvidia-smi -L >/dev/null 2>&1 ||
      cli::die 1 "${root} has $(compgen -G "${root}/nvidia[0-9]*" | wc -l) NVIDIA devices but 'nvidia-smi -L' fails: mend the driver, or set PROFILE=cpu to rehearse without them."
    printf 'gpu\n'
  elif [[ -e ${root}/kfd ]]; then
    [[ -r ${root}/kfd && -w ${root}/kfd ]] ||
      cli::die 1 "${root}/kfd (AMD GPUs) is there but not readable and writable for $(id -un 2>/dev/null || true): join its group, or set PROFILE=cpu to rehearse without them."
    printf 'rocm\n'
  else
    log::info "No GPU is visible (neither ${root}/nvidia<n> nor ${root}/kfd), so the profile is cpu: a rehearsal."
    printf 'cpu\n'
  fi
}

# env::_check: a wrong knob is refused here, with its name, before anything is touched.
env::_check() {
  env::_must_match CLUSTER_NAME '^[a-z0-9][a-z0-9_-]{0,39}$' 'use lower-case letters, digits, - and _, at most 40'
  env::_must_match WORKERS '^[1-9][0-9]?$' 'use a number from 1 to 99'
  env::_must_match GPUS_PER_WORKER '^[1-9][0-9]?$' 'use a number from 1 to 99'
  env::_must_match WORKER_DEVICES '^(/dev/[A-Za-z0-9_./-]+ ?)*$' 'use paths under /dev, separated by one blank'
  env::_must_match RAY_UNSET '^([A-Z][A-Z0-9_]* ?)*$' 'use names of environment variables, separated by one blank'
  env::_must_match DASHBOARD_PORT '^[1-9][0-9]{1,4}$' 'use a free TCP port'
  env::_must_match TRANSPORT '^[a-z]+$' 'name a file of scripts/lib/transport'
  env::_must_match GCS_STORAGE '^(memory|rocksdb)$' 'use memory or rocksdb'
  env::_must_match GCS_TIMEOUT '^[1-9][0-9]*$' 'use a number of seconds'
  env::_must_match MAX_RUNNING '^([1-9][0-9]{0,3})?$' 'use a number from 1 to 9999, or nothing for no limit'
  # Bash reckons with these, and what it reckons with it may run.
  local knob
  for knob in CLUSTER_TIMEOUT IMAGE_PULL_TIMEOUT MIN_DISK_GIB MIN_MEMORY_GIB; do
    env::_must_match "$knob" '^(0|[1-9][0-9]{0,8})$' 'use a whole number'
  done
  env::_must_match SEED '^[0-9]+$' 'use a whole number'
  env::_must_match PENDING_TIMEOUT '^[0-9]+$' 'use a number of seconds'
  env::_must_match STALL_TIMEOUT '^[0-9]+$' 'use a number of seconds'
  env::_must_match UNREACHABLE_TIMEOUT '^(0|[1-9][0-9]{0,8})$' 'use a number of seconds'
  env::_must_match SHARED_ROOT '^/[A-Za-z0-9_./-]*[A-Za-z0-9_]$' 'use an absolute path without spaces'
  [[ -f ${REPO_DIR}/scripts/lib/transport/${TRANSPORT}.bash ]] ||
    cli::die 2 "TRANSPORT=${TRANSPORT} has no scripts/lib/transport/${TRANSPORT}.bash: use one of: $(cd "${REPO_DIR}/scripts/lib/transport" && printf '%s ' *.bash | sed 's/\.bash//g; s/ $//')."
}

env::_must_match() {
  [[ ${!1} =~ $2 ]] || cli::die 2 "$1='$(cli::shown "${!1}")' (from ${ENV_ORIGIN[$1]}) is not usable: $3."
}
