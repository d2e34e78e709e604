#!/usr/bin/env bash
# 51_logs: a job's driver log, whole, from the shared storage. FOLLOW=1 goes on until the job has ended.
#
#   JOB=latest scripts/51_logs.sh
#
# Knobs: JOB FOLLOW
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
args=("$JOB")
[[ $FOLLOW != 1 ]] || args+=(--follow)
helper::ensure
helper::run head logs "${args[@]}"
