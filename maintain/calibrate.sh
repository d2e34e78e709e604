#!/usr/bin/env bash
# calibrate: can the verdict be trusted? Trains verl as it is (A) and with each planted regression and each harmless change of
# tests/mutations/, on a cluster that is up and prepared, and records what the judge reads (tests/recorded/calibration/). Some mutations
# it also trains in noise, with the seeds of noisy runs of A, until the judge decides. Then it writes what the judge says about these
# records, maintain/calibration.md.
#
#   maintain/calibrate.sh         the mutations without a record of their current patch
#   maintain/calibrate.sh 60      also 60 pairs of runs of A for each workload that differ only by noise
#   maintain/calibrate.sh 60 sft  only 60 such pairs of SFT: other load on the machine does not change what they tell
#
# From the 67th pair on, A's first run records its rollouts, and two more train on them; so do some mutations.
#
# One job at a time. It can be interrupted: a run is recorded when it has ended, and what is recorded is skipped. A run takes about a
# minute on 2 cores.
#
# Knobs: CLUSTER_NAME WORKDIR VERL_SOURCE
source "$(dirname "$0")/../scripts/lib/regress.bash"
cli::begin_with '[PAIRS] ppo grpo sft ...' "$@"
(($# <= 2)) || cli::die 2 "calibrate.sh takes two arguments and got $#: see --help."
pairs=${1:-0}
[[ $pairs =~ ^[0-9]{1,2}$ ]] || cli::die 2 "PAIRS='$(cli::shown "$pairs")' (the argument of calibrate.sh) is not a whole number up to 99: give one, or leave it out."
[[ ${2:-sft} == @(ppo|grpo|sft) ]] || cli::die 2 "WORKLOAD='$(cli::shown "$2")' (the second argument of calibrate.sh) is not ppo, grpo or sft: give one of them, or leave it out."
env::load
source "${REPO_DIR}/maintain/release.bash"
source "${REPO_DIR}/maintain/calibrate.bash"

venv::ensure
helper::ensure
log::step "calibrating the judge on ${CLUSTER_NAME}: $(calibrate::python cost "$pairs" "${@:2}")"
CALIBRATE_A=$(snapshot::ensure 'verl-{tree}' "$VERL_SOURCE")
next=()
while calibrate::next next "$pairs" "${@:2}"; do calibrate::run "${next[@]}"; done
calibrate::python write
