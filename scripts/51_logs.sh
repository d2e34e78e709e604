#!/usr/bin/env bash
# 51_logs: a job's whole driver log, from the shared storage, with the cluster up or down. FOLLOW=1 continues until the job ends.
# METRICS=1 prints the steps instead, one JSON object per line, joined over the job's attempts.
#
#   JOB=latest scripts/51_logs.sh
#
# Knobs: JOB FOLLOW METRICS
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
args=("$JOB")
[[ $FOLLOW != 1 ]] || args+=(--follow)
[[ $METRICS != 1 ]] || args+=(--metrics)
helper::read logs "${args[@]}"
