# environment: the variables of every command, on this host and on a node. Shells and tools take options, configuration and code from
# variables, and a profile, a CI, Conda or Slurm sets them for other programs. Users give us knobs, and write options of a tool into its own
# file (~/.gitconfig, pip.conf). Sourced before anything else (regress.bash, ci/compare.sh): then this shell has none of those variables.
# shellcheck shell=bash

set +o posix # or Bash refuses the names of our functions
# Some act before the first line of a script, or close a file when they are unset, so the script starts again without them.
if [[ $0 == *.sh && (-n ${BASH_ENV-}${BASH_XTRACEFD-} || ${SHELLOPTS@a}${BASHOPTS@a} == *x* || -n $(declare -Fx)) ]]; then
  mapfile -t _names < <(compgen -A function)
  _names=("${_names[@]/#/--unset=BASH_FUNC_}")
  exec env --unset={BASH_ENV,BASH_XTRACEFD,BASHOPTS,SHELLOPTS} "${_names[@]/%/%%}" "$BASH" "$0" "$@"
fi

# What tools obey, as patterns of a shell: locale, shells, GNU's tools, ours, Slurm's commands.
readonly ENVIRONMENT_OF_OTHERS=(
  LANG LANGUAGE 'LC_[!A]*' LOCPATH NLSPATH # LC_ALL gets a value below
  'BASH_*' BASHOPTS SHELLOPTS ENV CDPATH EXECIGNORE FIGNORE FUNCNEST GLOBIGNORE GLOBSORT POSIXLY_CORRECT TIMEFORMAT TMOUT
  'AWK*' '*BLOCK_SIZE' BLOCKSIZE 'BZIP*' 'GREP_*' 'GZIP*' QUOTING_STYLE TABSIZE TAPE 'TAR_*' TIME_STYLE 'XZ_*' 'ZSTD_*' _POSIX2_VERSION
  'BUILDKIT_*' 'BUILDX_*' 'COMPOSE_*' 'CUDA_*' 'DOCKER_*' 'GIT_*' 'JQ_*' 'PIP_*' 'PYTHON*' 'RAY_*' 'VERL_REGRESS_*'
  'SALLOC_*' 'SBATCH_*' 'SCONTROL_*' 'SQUEUE_*' 'SRUN_*'
)
# What of that is taken all the same.
readonly ENVIRONMENT_TAKEN=(
  # a knob
  RAY_BASE_CONFIG
  # which Python 3.11 (ci/compare.sh)
  PYTHON
  # no bytecode in a checkout
  PYTHONDONTWRITEBYTECODE
  # which GPUs are the user's, and where CUDA and its daemon for sharing them are
  CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_HOME CUDA_PATH 'CUDA_MPS_*'
  # what images set for Megatron
  CUDA_DEVICE_MAX_CONNECTIONS
  # where the container engine is, and as whom we ask it
  DOCKER_HOST DOCKER_CONTEXT DOCKER_CONFIG DOCKER_API_VERSION DOCKER_CERT_PATH DOCKER_TLS DOCKER_TLS_VERIFY DOCKER_AUTH_CONFIG
  DOCKER_CUSTOM_HEADERS
  # where packages come from
  PIP_CONFIG_FILE PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_NO_INDEX PIP_TRUSTED_HOST PIP_CERT PIP_CLIENT_CERT PIP_PROXY
  PIP_KEYRING_PROVIDER PIP_DEFAULT_TIMEOUT PIP_TIMEOUT PIP_RETRIES PIP_CACHE_DIR PIP_NO_CACHE_DIR
)
# On a node also: where its packages are.
readonly ENVIRONMENT_TAKEN_THERE=(PYTHONPATH PYTHONUSERBASE PYTHONNOUSERSITE)

printf -v _ENVIRONMENT_OTHERS '%s|' "${ENVIRONMENT_OF_OTHERS[@]}"
printf -v _ENVIRONMENT_TAKEN '%s|' "${ENVIRONMENT_TAKEN[@]}"
printf -v _ENVIRONMENT_TAKEN_THERE '%s|' "${ENVIRONMENT_TAKEN[@]}" "${ENVIRONMENT_TAKEN_THERE[@]}"

# environment::take: this shell, and what it starts, has only what is taken.
environment::take() {
  local names name
  # First, or Bash warns of each other one. In some locales I is not in [A-Z], and 1.5 is no number.
  export LC_ALL=C.UTF-8
  mapfile -t names < <(compgen -e)
  for name in "${names[@]}"; do
    # shellcheck disable=SC2053  # patterns
    [[ $name != @(${_ENVIRONMENT_OTHERS%|}) || $name == @(${_ENVIRONMENT_TAKEN%|}) ]] ||
      unset -v "$name" 2>/dev/null || export -n "${name?}" # SHELLOPTS is read-only
  done
  # Slurm and profiles name directories that this machine may not have.
  [[ ${TMPDIR-} == /* && -d $TMPDIR && -w $TMPDIR ]] || unset -v TMPDIR
}

environment::take

# environment::of_node NODE: plain sh that becomes the command in its arguments, in the environment that every command has on that node. `env`
# takes the last of two values, so what the user exports to the workers wins over ours.
environment::of_node() {
  local name directory
  directory=$(node::ray_directory)
  printf 'set -f\n'
  if [[ $1 == worker-* ]]; then
    for name in "${!ENV_OF_WORKERS[@]}"; do
      case $name in
        RAY_TMPDIR | TMPDIR) ;;
        http_proxy | https_proxy | all_proxy | no_proxy | HTTP_PROXY | HTTPS_PROXY | ALL_PROXY | NO_PROXY)
          printf 'export %s=%s\n' "$name" "${ENV_OF_WORKERS[$name]}" # for environment::_past_proxies
          ;;
        *) printf 'set -- %s=%s "$@"\n' "$name" "${ENV_OF_WORKERS[$name]}" ;;
      esac
    done
  fi
  environment::_past_proxies
  transport::environment "$1"
  printf 'set -- LC_ALL=C.UTF-8 RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 RAY_TMPDIR=%s "$@"\n' "$directory"
  # For what Python, torch and verl leave there. Ray makes the directory, or `make up`.
  printf 'if [ -d %s ]; then set -- TMPDIR=%s "$@"; else set -- -u TMPDIR "$@"; fi\n' "$directory" "$directory"
  # shellcheck disable=SC2016  # expanded on the node
  printf 'for name in $(env | cut -s -d = -f 1); do
  case $name in
    %s) ;;
    %s) set -- -u "$name" "$@" ;;
  esac
done
exec env "$@"\n' "${_ENVIRONMENT_TAKEN_THERE%|}" "${_ENVIRONMENT_OTHERS%|}"
}

# environment::_past_proxies: lines of sh, so that no proxy gets what the nodes send each other, wherever the proxy comes from: an image, a
# profile, the engine's client (~/.docker/config.json) or env/local.env. Programs compare no_proxy with names and addresses as they are.
environment::_past_proxies() {
  local peers
  mapfile -t peers < <(transport::peers)
  # All names at once, or one whose name server is silent would keep the others waiting; what is between $( and ) ends with the last one.
  # shellcheck disable=SC2016  # expanded on the node
  printf 'if [ -n "$http_proxy$HTTP_PROXY$https_proxy$HTTPS_PROXY$all_proxy$ALL_PROXY" ]; then
  past="$no_proxy,$NO_PROXY"
  case ,$past, in
    *",*,"*) past="*" ;;
    *)
      addresses=$(for name in %s; do timeout 2 getent ahosts "$name" 2>/dev/null & done)
      known=$(printf %%s "$past" | tr , " ") past=
      for name in $known localhost 127.0.0.1 %s $(printf "%%s\n" "$addresses" | cut -d " " -f 1); do
        case ,$past, in *",$name,"*) ;; *) past=${past:+$past,}$name ;; esac
      done
      ;;
  esac
  export no_proxy="$past" NO_PROXY="$past"
fi\n' "${peers[*]}" "${peers[*]}"
}
