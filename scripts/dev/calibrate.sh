#!/usr/bin/env bash
# calibrate: judges the judge. Trains verl with each planted regression and each harmless change of tests/mutations/, and A beside
# it, on a cluster that is up and prepared, and records what the judge reads (tests/recorded/calibration/). Then docs/calibration.md
# tells what the judge says of them.
#
#   scripts/dev/calibrate.sh         the mutations that have no record, or whose patch has changed
#   scripts/dev/calibrate.sh 60      also 60 pairs of runs of A for each workload that differ only by noise
#
# One job at a time. It can be interrupted: a run is recorded when it has ended, and what is recorded is skipped. A run takes about a
# minute on 2 cores.
#
# Knobs: CLUSTER_NAME WORKDIR VERL_SOURCE
source "$(dirname "$0")/../lib/regress.bash"
cli::begin_with '[PAIRS]' "$@"
pairs=${1:-0}
[[ $pairs =~ ^[0-9]{1,3}$ ]] || cli::die 2 "PAIRS='$(cli::shown "$pairs")' (the argument of calibrate.sh) is not a whole number up to 999: give one, or leave it out."
env::load
source "${REPO_DIR}/scripts/dev/release.bash"
source "${REPO_DIR}/scripts/dev/calibrate.bash"

venv::ensure
helper::ensure
log::step "calibrating the judge on ${CLUSTER_NAME}: $(calibrate::python cost "$pairs")"
CALIBRATE_A=$(snapshot::ensure 'verl-{tree}' "$VERL_SOURCE")
next=()
while calibrate::next next "$pairs"; do calibrate::run "${next[@]}"; done
calibrate::python write
