#!/usr/bin/env bash
# env_reader: env::load over many cases in one process. For each line on stdin (anything), reads the env files that lie there by now
# in a subshell and prints its exit status, a NUL, and every knob that is named in our arguments as KEY=VALUE, each ended by a NUL; then
# an empty field. What it says goes to the file in $SAID.
# shellcheck source-path=SCRIPTDIR/../../scripts
source "$(dirname "$0")/lib/regress.bash"

while read -r; do
  status=0
  (
    env::load
    for knob in "$@"; do printf '%s=%s\0' "$knob" "${!knob-}"; done
  ) >"$SAID.out" 2>"$SAID" </dev/null || status=$?
  printf '%d\0' "$status"
  ((status != 0)) || cat "$SAID.out"
  printf '\0'
done
