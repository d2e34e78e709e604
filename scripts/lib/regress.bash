# The only `source` of every script: strict mode, then the libraries. Sourcing it does nothing else.
# shellcheck shell=bash
set -euo pipefail
shopt -s inherit_errexit lastpipe # lastpipe: output.bash

# shellcheck source=scripts/lib/environment.bash
source "${BASH_SOURCE[0]%/*}/environment.bash"

REPO_DIR=$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd)
# Paths of knobs are relative to the checkout; what a user types is relative to the user's directory (scripts/lib/env.bash).
CALLER_DIR=$PWD
# shellcheck disable=SC2034  # env.bash, cli.bash and secret.bash read it
readonly REPO_DIR CALLER_DIR
cd "$REPO_DIR" # rule-ok: wherever a script is typed, paths of knobs mean the same

for _noun in log spelling output knob env typed cli wait venv owner node cluster_knobs cluster helper deps artefact snapshot secret attached job \
  dashboard tunnel doctor verify acceptance bisect quickstart lifecycle/{login,shared,allocation,hosts,hosts_check,hosts_put} \
  lifecycle/{engine,devices,image,compose,legacy,prereq,batch,kit}; do
  # shellcheck disable=SC1090  # the list above is the index of what is sourced
  source "${REPO_DIR}/scripts/lib/${_noun}.bash"
done
unset _noun
