#!/usr/bin/env bash
# 52_wait: follow a job to its end, from any terminal, and exit with its status (see the table in the README).
#
#   JOB=latest scripts/52_wait.sh
#
# Knobs: JOB PENDING_TIMEOUT START_TIMEOUT STALL_TIMEOUT UNREACHABLE_TIMEOUT
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
helper::ensure
job::follow "$JOB"
