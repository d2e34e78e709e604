#!/usr/bin/env bash
# words_reader: what scripts are given, over many cases in one process. A request on stdin is a kind, a count and as many fields,
# each ended by a NUL:
#   knobs NAME=VALUE...            environment variables, checked as env::check does
#   arguments WORDS ARGUMENT...    arguments of scripts/70_gc.sh, if it took WORDS
#   made NAME=VALUE...             the environment that make gives to a script without arguments
# For each, the answer on stdout is the exit status, ended by a NUL. The fields as the script has them from then on are in the file
# $SAID.out, and what it said in $SAID.
# shellcheck source-path=SCRIPTDIR/../../scripts
source "$(dirname "$0")/lib/regress.bash"
unset PROFILE
knob::read

reader::knobs() {
  local pair name
  for pair in "$@"; do export "${pair?}"; done
  env::check
  for pair in "$@"; do
    name=${pair%%=*}
    printf '%s=%s\0' "$name" "${!name}"
  done
}

reader::arguments() {
  cli::accept "$@"
  shift
  (($# == 0)) || printf '%s\0' "$@"
}

reader::made() {
  local pair
  for pair in "$@"; do export "${pair?}"; done
  cli::accept ''
}

while IFS= read -r -d '' kind && IFS= read -r -d '' count; do
  fields=() status=0
  while ((${#fields[@]} < count)); do IFS= read -r -d '' field && fields+=("$field"); done
  # shellcheck disable=SC2034  # it sets $0
  (BASH_ARGV0="${REPO_DIR}/scripts/70_gc.sh" && "reader::${kind}" "${fields[@]}") >"$SAID.out" 2>"$SAID" </dev/null || status=$?
  printf '%d\0' "$status"
done
