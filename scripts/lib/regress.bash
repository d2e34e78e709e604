# The only `source` of every script: strict mode, then the libraries. Sourcing it does nothing else.
# shellcheck shell=bash
set -euo pipefail
shopt -s inherit_errexit

REPO_DIR=$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd)
readonly REPO_DIR

for _noun in log word knob env cli wait venv owner node look made cluster helper deps artefact snapshot secret job verify bisect lifecycle/image lifecycle/compose lifecycle/legacy lifecycle/prereq; do
  # shellcheck disable=SC1090  # the list above is the index of what is sourced
  source "${REPO_DIR}/scripts/lib/${_noun}.bash"
done
unset _noun
