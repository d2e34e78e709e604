# env: the knobs. Precedence, highest first: the environment, env/local.env, the profile, env/defaults.env.
# The files are plain KEY=VALUE lines: read, never run; an explicitly empty value counts as given.
# shellcheck shell=bash

# env::load: reads every knob, picks the profile, checks the values, exports them (compose reads the same ones).
env::load() {
  env::load_knobs
  WORKDIR=$(realpath -m -- "$WORKDIR")
  node::choose
  helper::fix_version
  owner::load
  transport::load
}

# env::load_knobs: only the knobs; asks nothing of the cluster.
env::load_knobs() {
  local asked knob
  env::_read_given
  # The profile's own file cannot be read until PROFILE is known.
  env::_set_if_unset PROFILE "${KNOB_DEFAULT[PROFILE]}" "env/defaults.env: ${KNOB_DEFAULT[PROFILE]}"
  knob::check PROFILE
  asked=$PROFILE
  PROFILE=$(env::_pick_profile "$asked")
  env::_read_file "env/${PROFILE}.env"
  for knob in "${KNOB_NAMES[@]}"; do env::_set_if_unset "$knob" "${KNOB_DEFAULT[$knob]}" env/defaults.env; done
  knob::check "${KNOB_NAMES[@]}"
  export "${KNOB_NAMES[@]?}"
  [[ -n $PROFILE_TITLE ]] || PROFILE_TITLE=$PROFILE
  [[ $asked != auto || $TRANSPORT == container ]] ||
    cli::die 2 "PROFILE=auto looks for devices on this machine, but with TRANSPORT=${TRANSPORT} (from ${ENV_ORIGIN[TRANSPORT]}) the nodes are other machines: name the profile for them."
  [[ $asked != auto || -z $HOSTS_FILE ]] ||
    cli::die 2 "PROFILE=auto looks for devices on this machine, but with HOSTS_FILE=${HOSTS_FILE} (from ${ENV_ORIGIN[HOSTS_FILE]}) the nodes are on other machines: name the profile for them."
  [[ -z $NODES_CONTAINER || $TRANSPORT == srun ]] || # rule-ok: only that transport knows containers of the site's own
    cli::die 2 "NODES_CONTAINER='${NODES_CONTAINER}' (from ${ENV_ORIGIN[NODES_CONTAINER]}) is for the bare hosts of a Slurm allocation and has no effect with TRANSPORT=${TRANSPORT} (from ${ENV_ORIGIN[TRANSPORT]}): remove NODES_CONTAINER, or set TRANSPORT=srun."
}

# env::check: checks the values from the command line, the environment and env/local.env. For scripts that must not depend on a
# profile; knobs that the user did not set stay unset.
env::check() {
  local knob given=()
  env::_read_given
  for knob in "${KNOB_NAMES[@]}"; do [[ ! -v $knob ]] || given+=("$knob"); done
  knob::check "${given[@]}"
}

# Where each knob's value came from, for messages and for decisions that depend on what the user set.
declare -gA ENV_ORIGIN=()

# env::path PATH: absolute, on this host; a leading ~/ is HOME, which the shell does not expand after "path:".
env::path() { realpath -m -- "${1/#\~\//${HOME}/}"; }

# env::is_given KEY: the user set it, on the command line, in the environment or in env/local.env.
env::is_given() { [[ ${ENV_ORIGIN[$1]} == 'the command line or environment' || ${ENV_ORIGIN[$1]} == env/local.env ]]; }

# env::give KEY VALUE...: from here on, as if the user had set them.
env::give() {
  while (($#)); do
    declare -g "$1=$2"
    ENV_ORIGIN[$1]='the command line or environment'
    shift 2
  done
}

# The user's values: the environment, then env/local.env.
env::_read_given() {
  local knob
  knob::read
  for knob in "${KNOB_NAMES[@]}"; do [[ ! -v $knob || -v ENV_ORIGIN[$knob] ]] || ENV_ORIGIN[$knob]='the command line or environment'; done
  env::read_local
}

# env::read_local: reads the user's file, if there is one; refuses keys that are not knobs.
env::read_local() {
  [[ -f ${REPO_DIR}/env/local.env ]] || return 0
  knob::read
  env::_read_file env/local.env
}

# The first value wins: a knob that is set already, even to an empty value, is not changed.
env::_set_if_unset() {
  [[ ! -v $1 ]] || return 0
  declare -g "$1=$2"
  ENV_ORIGIN[$1]=$3
}

env::_read_file() {
  local file=$1 line number=0 key value
  while IFS= read -r line || [[ -n $line ]]; do
    number=$((number + 1))
    [[ $line =~ ^[[:space:]]*(#|$) ]] && continue
    [[ $line =~ ^([A-Za-z_][A-Za-z0-9_]*)=(.*)$ ]] ||
      cli::die 2 "'$(cli::shown "$line")' (line ${number} of ${file}) is not a KEY=VALUE line: write one knob per line, no spaces around '='."
    key=${BASH_REMATCH[1]} value=${BASH_REMATCH[2]}
    # Keys that are not knobs would be exported to shells and tools that may act on them, such as BASH_ENV.
    [[ -v KNOB_TYPE[$key] ]] || env::_refuse_key "$key" "line ${number} of ${file}"
    env::_set_if_unset "$key" "$value" "$file"
  done <"${REPO_DIR}/${file}"
}

env::_refuse_key() {
  local nearest use=use
  nearest=$(word::nearest "$1" "${KNOB_NAMES[@]}")
  [[ -z $nearest ]] || use=Use
  cli::die 2 "$(cli::shown "$1") ($2) is not a knob: ${nearest:+did you mean ${nearest}? }${use} the knobs of env/defaults.env; export other variables before you run the command."
}

# env::_pick_profile ASKED: prints the profile's name on stdout. Devices that exist but do not answer are an error, never a silent
# rehearsal.
env::_pick_profile() {
  local asked=$1 root=${DEVICE_ROOT:-/dev}
  if [[ $asked != auto ]]; then
    printf '%s\n' "$asked"
    return
  fi
  if compgen -G "${root}/nvidia[0-9]*" >/dev/null; then
    nvidia-smi -L >/dev/null 2>&1 ||
      cli::die 1 "${root} has $(compgen -G "${root}/nvidia[0-9]*" | wc -l) NVIDIA devices but 'nvidia-smi -L' fails: fix the driver, or set PROFILE=cpu to rehearse without them."
    printf 'gpu\n'
  elif [[ -e ${root}/kfd ]]; then
    [[ -r ${root}/kfd && -w ${root}/kfd ]] ||
      cli::die 1 "${root}/kfd (AMD GPUs) is there but not readable and writable for $(id -un 2>/dev/null || true): join its group, or set PROFILE=cpu to rehearse without them."
    printf 'rocm\n'
  else
    [[ ${REGRESS_SAID:-} == 1 ]] || # another script of the same make command has said it (Makefile)
      log::info "No GPU is visible (neither ${root}/nvidia<n> nor ${root}/kfd), so the profile is cpu: a rehearsal."
    printf 'cpu\n'
  fi
}
