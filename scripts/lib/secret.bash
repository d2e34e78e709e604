# secret: passes the values of a JobSpec's `secrets` from this machine to the stdin of a command in the head. They are only in this
# shell's memory: in no argument, no file, no environment except the user's own, and no trace (set -x).
# shellcheck shell=bash

declare -gA _SECRET_VALUES=()
declare -ga _SECRETS_PLANTED=()

# secret::read_all ORIGIN ARGS...: reads each secret of a JobSpec, which the user knows as ORIGIN. The helper's subcommand `secrets`
# lists them; it gets ARGS and our stdin.
secret::read_all() {
  local - spec=$1 name file named=()
  set +x
  shift
  mapfile -d '' -t named < <(helper::run_in head secrets "$@")
  wait "$!"
  set -- "${named[@]}"
  while (($# > 0)); do
    name=$1 file=$2
    shift 2
    if [[ -n $file ]]; then
      secret::_read_file "$name" "$file" "$spec"
    else
      secret::_read_variable "$name" "$spec"
    fi
  done
}

# secret::plant NAME: every job of this script gets the secret NAME with a random value. JSON, URLs and shells do not change
# hexadecimal digits, so a search finds it everywhere.
secret::plant() {
  local -
  set +x
  _SECRET_VALUES[$1]=$(head -c 20 /dev/urandom | od -An -vtx1 | tr -d ' \n')
  _SECRETS_PLANTED+=("$1")
}

# secret::print NAME: prints its value, for a pipe.
secret::print() {
  local -
  set +x
  printf '%s' "${_SECRET_VALUES[$1]}"
}

# secret::are_any: the JobSpec that was read last has secrets, or some were planted.
secret::are_any() { ((${#_SECRET_VALUES[@]} > 0)); }

# secret::print_all: NAME=VALUE, each ended by a NUL, and one more NUL; prints nothing if there are none.
secret::print_all() {
  local - name
  set +x
  secret::are_any || return 0
  for name in "${!_SECRET_VALUES[@]}"; do printf '%s=%s\0' "$name" "${_SECRET_VALUES[$name]}"; done
  printf '\0'
}

secret::_read_variable() {
  local name=$1 spec=$2
  [[ -v $name && ${!name@a} == *x* && ! -v ENV_ORIGIN[$name] ]] ||
    cli::die 2 "The secret ${name} (from ${spec}) is not in the environment: export ${name} before you run make, or give it a 'file: PATH' in the JobSpec."
  [[ " ${MAKE_GIVEN-} " != *" ${name} "* ]] ||
    cli::die 2 "The secret ${name} (from ${spec}) is on make's command line, where the process list and the shell's history show it: export it instead, and replace the secret."
  [[ -n ${!name} ]] || cli::die 2 "The secret ${name} (from ${spec}) is empty in the environment: give it its value."
  _SECRET_VALUES[$name]=${!name}
}

secret::_read_file() {
  local name=$1 file spec=$3
  file=$(env::path "$2")
  [[ -f $file && -r $file ]] ||
    cli::die 2 "The file of the secret ${name} (from ${spec}) is not a readable file on this machine: name one that is."
  [[ -s $file ]] || cli::die 2 "The file of the secret ${name} (from ${spec}) is empty: put the value into it."
  [[ -z $(tr -d '\1-\377' <"$file" | tr '\0' 0 | head -c 1) ]] ||
    cli::die 2 "The file of the secret ${name} (from ${spec}) has a NUL byte, which no environment variable can hold: name a text file."
  _SECRET_VALUES[$name]=$(<"$file")
}
