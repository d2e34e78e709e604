#!/usr/bin/env bash
# 63_history: one page over all regression sessions of the shared root: each decisive metric and the speed of all runs, by
# date and code, with the points at which they change. Prints how many sessions and runs there are, each change point, what was left
# out, and where the page is: ${SHARED_ROOT}/verify/history.html. Reads records only; it does not need Ray.
#
#   scripts/63_history.sh
#
# It runs on the head, which gets the judge's packages if it lacks them. If no node can be reached, it runs on this host, if the shared
# root is there; then this host's python3 needs the packages in py/requirements-judge.txt and PyYAML.
#
# Knobs: WHEELHOUSE
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
other=$(owner::other head)
if [[ -z $other ]] && node::is_alive head; then
  helper::ensure
  deps::ensure_judge
fi
helper::read history
