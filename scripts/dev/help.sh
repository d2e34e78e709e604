#!/usr/bin/env bash
# help: the menu, from the ## behind each target of the Makefile.
#
#   scripts/dev/help.sh
source "$(dirname "$0")/../lib/regress.bash"
cli::accept '' "$@"
menu=$(awk -F ':.*## ' '
  /^##@ / { printf "\n%s\n", substr($0, 5) }
  /^[a-z][a-z-]*:.*## / { printf "  make %-16s %s\n", $1, $2 }
  END { printf "\nKnobs are in env/defaults.env; every script explains itself with --help.\n" }' "${REPO_DIR}/Makefile")
trap '' PIPE # a reader such as head has enough
printf '%s\n' "$menu" 2>/dev/null || true
