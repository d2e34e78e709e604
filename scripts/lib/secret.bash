# secret: passes the values of a JobSpec's `secrets` from this machine to the stdin of a command in the head. They are only in this
# shell's memory: in no argument, no file, no environment except the user's own, and no trace (set -x).
# shellcheck shell=bash

# Bytes that are read of a file: one more than py/verl_regress/secrets/secret_files.py takes, which says so.
readonly SECRET_READ=65537

declare -gA _SECRET_VALUES=()

# secret::read_of SPEC FILE: reads the secrets of the JobSpec in FILE, which the user knows as SPEC, and forgets the earlier ones.
secret::read_of() {
  _SECRET_VALUES=()
  ! grep -q secrets "$2" || secret::read_all "$1" helper::run_in head secrets --spec-name "$1" <"$2"
}

# secret::read_all ORIGIN COMMAND...: reads each secret of a JobSpec, which the user knows as ORIGIN. COMMAND lists them, as the helper's
# subcommand `secrets` does.
secret::read_all() {
  local - spec=$1 name file named=()
  set +x
  shift
  output::read_words named "$@"
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

# secret::are_any: the JobSpec that was read last has secrets.
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
  _SECRET_VALUES[$name]=${!name}
}

# A JobSpec may come from someone else: only what is surely the caller's own file leaves this machine. The open file is checked, so
# that it cannot be replaced in between.
secret::_read_file() {
  local name=$1 file spec=$3 real opened owner
  # The home directory and the current one may be behind links, because the JobSpec did not choose them.
  case $2 in
    /*) file=$2 ;;
    \~/*) file=$(realpath -m -- "$HOME")/${2#\~/} ;;
    *) file=$(realpath -- "$CALLER_DIR")/$2 ;;
  esac
  [[ -f $file && -r $file ]] ||
    cli::die 2 "The file of the secret ${name} (from ${spec}) is not a readable file on this machine: name one that is."
  exec {opened}<"$file"
  real=$(readlink -- "/dev/fd/${opened}")
  owner=$(stat --dereference --format %u "/dev/fd/${opened}")
  [[ $owner == "$EUID" ]] ||
    cli::die 2 "The file of the secret ${name} (from ${spec}) belongs to user ${owner}, not to you: name a file of your own."
  [[ $(realpath --no-symlinks -- "$file") == "$real" ]] ||
    cli::die 2 "${file}, the file of the secret ${name} (from ${spec}), is a link or behind one, which may lead anywhere: name ${real} if that is what you want to send."
  [[ $EUID != 0 || ! $real =~ ^/(boot|etc|proc|sys)/ ]] ||
    cli::die 2 "${file}, the file of the secret ${name} (from ${spec}), is where root owns the files of the system: name a file in a directory of your own."
  [[ -z $(tr -d '\1-\377' <"/dev/fd/${opened}" | tr '\0' 0 | head -c 1) ]] ||
    cli::die 2 "The file of the secret ${name} (from ${spec}) has a NUL byte, which no environment variable can contain: name a text file."
  _SECRET_VALUES[$name]=$(head -c "$SECRET_READ" <&"$opened")
  exec {opened}<&-
}
