#!/usr/bin/env bash
# fuzz_reader: what scripts are given, over many cases in one process. A request on stdin is a kind, a count and as many fields,
# each ended by a NUL:
#   files KNOB...                  the env files as they are now: answers KNOB=VALUE of each
#   knobs NAME=VALUE...            as variables from make's command line, checked as env::check does
#   arguments WORDS ARGUMENT...    arguments of scripts/70_gc.sh, if it took WORDS
# For each, the answer on stdout is the exit status, ended by a NUL. The fields as the script has them from then on are in the file
# $SAID.out, and what it said in $SAID.
# shellcheck source-path=SCRIPTDIR/../scripts
source "$(dirname "$0")/lib/regress.bash"
knob::read

reader::files() {
  local knob
  export PROFILE=cpu
  env::load
  for knob in "$@"; do printf '%s=%s\0' "$knob" "${!knob-}"; done
}

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

while IFS= read -r -d '' kind && IFS= read -r -d '' count; do
  fields=() status=0
  while ((${#fields[@]} < count)); do IFS= read -r -d '' field && fields+=("$field"); done
  # shellcheck disable=SC2034  # it sets $0
  (BASH_ARGV0="${REPO_DIR}/scripts/70_gc.sh" && "reader::${kind}" "${fields[@]}") >"$SAID.out" 2>"$SAID" </dev/null || status=$?
  printf '%d\0' "$status"
done
