# env: the knobs. Precedence, highest first: make's command line, the environment, env/local.env, the profile, env/defaults.env.
# The files are plain KEY=VALUE lines: read, never run; an explicitly empty value counts as given.
# shellcheck shell=bash

# Where each knob's value came from, for messages and for decisions that depend on what the user set.
declare -gA ENV_ORIGIN=()
# What lines "export NAME=VALUE" of the files add to the environment of the workers, and so of jobs.
declare -gA ENV_OF_WORKERS=()
readonly ENV_TYPED='the command line or environment'

# env::load: reads every knob, picks the profile, checks the values, exports them (compose reads the same ones).
env::load() {
  env::load_knobs
  WORKDIR=$(realpath -m -- "$WORKDIR")
  node::choose
  helper::fix_version
  owner::load
  transport::load
  node::check_ray_directory
}

# env::load_knobs: only the knobs; asks nothing of the cluster.
env::load_knobs() {
  local asked
  env::_read_given
  # The profile's own file cannot be read until PROFILE is known.
  env::_set_if_unset PROFILE "${KNOB_DEFAULT[PROFILE]}" "env/defaults.env: ${KNOB_DEFAULT[PROFILE]}"
  knob::check PROFILE
  asked=$PROFILE
  PROFILE=$(env::_pick_profile "$asked")
  env::_read_profile
  [[ $TRUSTED_UIDS != *group* || -n $SHARED_GROUP ]] ||
    cli::die 2 "TRUSTED_UIDS=${TRUSTED_UIDS} (from ${ENV_ORIGIN[TRUSTED_UIDS]}) means the members of SHARED_GROUP, which is empty: set it too, or name the users by number."
  export "${KNOB_NAMES[@]?}"
  # The first line of a profile's file may have more words than its name.
  IFS= read -r PROFILE_TITLE <"env/${PROFILE}.env" || true
  [[ $PROFILE_TITLE == "# ${PROFILE} "* ]] && PROFILE_TITLE=${PROFILE_TITLE#'# '} || PROFILE_TITLE=$PROFILE
  [[ $asked != auto || $TRANSPORT == container && -z $HOSTS_FILE ]] ||
    cli::die 2 "PROFILE=auto looks for devices on this machine, but with TRANSPORT=${TRANSPORT} (from ${ENV_ORIGIN[TRANSPORT]}) and HOSTS_FILE='${HOSTS_FILE}' (from ${ENV_ORIGIN[HOSTS_FILE]}) the nodes are on other machines: name the profile for them."
}

# env::_read_profile: what the user did not set comes from PROFILE's file, or else is the default.
env::_read_profile() {
  local knob
  env::_read_file "env/${PROFILE}.env"
  for knob in "${KNOB_NAMES[@]}"; do env::_set_if_unset "$knob" "${KNOB_DEFAULT[$knob]}" env/defaults.env; done
  knob::check "${KNOB_NAMES[@]}"
  for knob in "${KNOB_NAMES[@]}"; do env::_resolve_path "$knob"; done
}

# env::take_profile PROFILE: from here on the knobs are as with that profile.
env::take_profile() {
  local knob
  for knob in "${KNOB_NAMES[@]}"; do
    [[ $knob == WORKDIR ]] || env::is_given "$knob" || unset -v "$knob"
  done
  PROFILE=$1
  env::_read_profile
}

# env::check: checks the values from the command line, the environment and env/local.env. For scripts that must not depend on a
# profile; knobs that the user did not set stay unset.
env::check() {
  local knob given=()
  env::_read_given
  for knob in "${KNOB_NAMES[@]}"; do [[ ! -v $knob ]] || given+=("$knob"); done
  knob::check "${given[@]}"
}

# env::path PATH: absolute, on this host; a leading ~/ is HOME, which the shell does not expand behind "path:".
env::path() { realpath -m -- "${1/#\~\//${HOME}/}"; }

# env::_resolve_path KNOB: a leading ~ of a path is HOME. A path is relative to this checkout, but one that a person types (a JobSpec, a
# suite, a source of code) to where it was typed, if it is there.
env::_resolve_path() {
  local value=${!1} form='' typed=''
  case ${KNOB_TYPE[$1]} in
    path*) ;;
    file*) typed=1 ;;
    *path:…*)
      [[ $value == path:* ]] || return 0
      form=path: value=${value#path:} typed=1
      ;;
    *) return 0 ;;
  esac
  if [[ $value =~ ^~(/|$) ]]; then
    value=${HOME}${value#\~}
  elif [[ -n $typed && $value == [!/]* && ${ENV_ORIGIN[$1]} == "$ENV_TYPED" &&
    (-f ${CALLER_DIR}/${value} || -n $form && -d ${CALLER_DIR}/${value}) && ! $CALLER_DIR -ef $REPO_DIR ]]; then
    value=${CALLER_DIR}/${value}
  fi
  [[ -z $form ]] || value=$(realpath -m -- "$value") # as records name it
  declare -g "$1=${form}${value}"
}

# env::is_given KEY: the user set it, on the command line, in the environment or in env/local.env.
env::is_given() { [[ ${ENV_ORIGIN[$1]} == "$ENV_TYPED" || ${ENV_ORIGIN[$1]} == env/local.env ]]; }

# env::give KEY VALUE...: from here on, as if the user had set them, or with an empty value as if nobody had.
env::give() {
  while (($#)); do
    declare -g "$1=$2"
    ENV_ORIGIN[$1]=${2:+$ENV_TYPED}
    shift 2
  done
}

# The user's values: the environment, then env/local.env. A variable of the environment may be meant for another program, so a value that
# cannot be used is ignored, unless make's command line gave it, or it is DRY_RUN's: to ignore that one would be to act.
env::_read_given() {
  local knob
  knob::read
  for knob in "${KNOB_NAMES[@]}"; do
    [[ -v $knob && ! -v ENV_ORIGIN[$knob] ]] || continue
    if [[ " ${MAKE_GIVEN-} DRY_RUN " == *" ${knob} "* ]] || knob::is_usable "$knob"; then
      ENV_ORIGIN[$knob]=$ENV_TYPED
    else
      [[ ${REGRESS_SAID:-} == 1 ]] || # another script of the same make command has said it (Makefile)
        log::warn "${knob}='$(cli::shown "${!knob}")' (from the environment) is ignored: $(knob::cure "$knob")."
      unset -v "$knob"
    fi
  done
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
  local file=$1 line number=0 name value form='^(export )?([A-Za-z_][A-Za-z0-9_]*)=(.*)$'
  while IFS= read -r line || [[ -n $line ]]; do
    number=$((number + 1))
    line=${line#$'\xEF\xBB\xBF'} line=${line%$'\r'} # an editor on Windows may have written it
    [[ $line =~ ^[[:space:]]*(#|$) ]] && continue
    [[ $line =~ $form && ! (-n ${BASH_REMATCH[1]} && -v KNOB_TYPE[${BASH_REMATCH[2]}]) ]] ||
      cli::die 2 "'$(cli::shown "$line")' (line ${number} of ${file}) is not a KEY=VALUE line: write one knob per line, no spaces around '='."
    name=${BASH_REMATCH[2]} value=${BASH_REMATCH[3]}
    if [[ -n ${BASH_REMATCH[1]} ]]; then
      [[ $value =~ ^[A-Za-z0-9_.,:=/+@-]*$ ]] ||
        cli::die 2 "The value of ${name} (line ${number} of ${file}) is not usable: use only letters, digits and _.,:=/+@-."
      [[ -v ENV_OF_WORKERS[$name] ]] || ENV_OF_WORKERS[$name]=$value
    else
      # Others would be exported to shells and tools that may act on them, such as BASH_ENV.
      [[ -v KNOB_TYPE[$name] ]] || knob::refuse_name "$name" "line ${number} of ${file}"
      env::_set_if_unset "$name" "$value" "$file"
    fi
  done <"${REPO_DIR}/${file}"
}

# env::find_lacking LINE...: which of these lines env/local.env lacks, in ENV_LACKING. The first line with a name wins, so one that gives it
# another value is refused.
env::find_lacking() {
  local line found
  ENV_LACKING=()
  for line; do
    found=$(sed -n "s/\r$//; /^${line%%=*}=/{p; q}" "${REPO_DIR}/env/local.env" 2>/dev/null) || true
    [[ -n $found ]] || ENV_LACKING+=("$line")
    [[ -z $found || $found == "$line" ]] ||
      cli::die 2 "env/local.env has '$(cli::shown "$found")', and all later commands need '$(cli::shown "$line")' there: change or remove that line, then run this again."
  done
}

# env::keep WHY LINE...: adds these lines to env/local.env, but for those that are there.
env::keep() {
  env::find_lacking "${@:2}"
  if ((${#ENV_LACKING[@]} == 0)); then
    log::skip "env/local.env (has what is needed: $1)"
    return
  fi
  # Its last line may have no end.
  printf '%s\n' '' "# $1" "${ENV_LACKING[@]}" >>"${REPO_DIR}/env/local.env" ||
    cli::die 1 "${REPO_DIR}/env/local.env cannot be written: give '${ENV_LACKING[*]}' with each make command."
  (($(id -u) != 0)) || chown --reference="${REPO_DIR}/env" -- "${REPO_DIR}/env/local.env" # of who typed sudo
  log::changed "env/local.env: ${ENV_LACKING[*]#export }"
}

# env::tell_unused: NCCL's variables of this shell, which no job gets.
env::tell_unused() {
  local names=("${!NCCL_@}")
  ((${#names[@]} == 0)) ||
    log::info "Jobs do not get ${names[*]} of this shell: put what they need into env_vars of the JobSpec, or as 'export ${names[0]}=…' into env/local.env before 'make up'."
}

# env::_pick_profile ASKED: prints the profile's name on stdout. Devices that exist but do not answer are an error, never a silent
# rehearsal.
env::_pick_profile() {
  local asked=$1 root=${DEVICE_ROOT:-/dev} profile device what
  if [[ $asked != auto ]]; then
    printf '%s\n' "$asked"
    return
  fi
  if compgen -G "${root}/nvidia[0-9]*" >/dev/null; then
    nvidia-smi -L >/dev/null 2>&1 ||
      cli::die 1 "${root} has $(compgen -G "${root}/nvidia[0-9]*" | wc -l) NVIDIA devices but 'nvidia-smi -L' fails: fix the driver, or set PROFILE=cpu to rehearse without them."
    printf 'gpu\n'
    return
  fi
  while read -r profile device what; do
    [[ -e ${root}/${device} ]] || continue
    [[ -r ${root}/${device} && -w ${root}/${device} ]] ||
      cli::die 1 "${root}/${device} (${what}) is there but not readable and writable for $(id -un 2>/dev/null || true): join its group, or set PROFILE=cpu to rehearse without them."
    printf '%s\n' "$profile"
    return
  done <<<$'rocm kfd AMD GPUs\nnpu davinci_manager Ascend NPUs'
  [[ ${REGRESS_SAID:-} == 1 ]] || # another script of the same make command has said it (Makefile)
    log::info "No GPU is visible (no ${root}/nvidia<n>, ${root}/kfd or ${root}/davinci_manager), so the profile is cpu: a rehearsal."
  printf 'cpu\n'
}
