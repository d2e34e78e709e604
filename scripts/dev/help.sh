#!/usr/bin/env bash
# help: the menu, from the ## behind each target of the Makefile.
#
#   scripts/dev/help.sh
source "$(dirname "$0")/../lib/regress.bash"
cli::accept '' "$@"
awk -F ':.*## ' '
  /^##@ / { printf "\n%s\n", substr($0, 5) }
  /^[a-z][a-z-]*:.*## / { printf "  make %-16s %s\n", $1, $2 }
  END { printf "\nKnobs are in env/defaults.env; every script explains itself with --help.\n" }' "${REPO_DIR}/Makefile" ||
  (($? == 141)) # SIGPIPE: a reader such as head has enough
