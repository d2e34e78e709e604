#!/usr/bin/env bash
# phases: how long each phase of a quick start took, from the lines that the scripts left in PHASES_FILE.
#
#   PHASES_FILE=FILE scripts/dev/phases.sh
source "$(dirname "$0")/../lib/regress.bash"
cli::accept '' "$@"
[[ -n ${PHASES_FILE:-} ]] || cli::die 2 "phases.sh needs the variable PHASES_FILE: name the file that the scripts wrote their times to."
awk -F '\t' '
  { printf "%8.1f s  %s\n", $2, $1; total += $2; rows++ }
  END { if (!rows) exit 1; printf "%8.1f s  in %d phases\n", total, rows }' "$PHASES_FILE"
rm -- "$PHASES_FILE"
