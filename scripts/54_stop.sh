#!/usr/bin/env bash
# 54_stop: stop a job, running or waiting for a place, and wait until it is over (one that is over already is skipped). Then
# every node is asked for processes that are left of it; they are ended and counted. A node that cannot be asked is said,
# and makes the exit status 8.
#
#   JOB=<submission id> scripts/54_stop.sh
#
# Knobs: JOB STOP_TIMEOUT
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
helper::ensure
job=$(helper::run head where --id "$JOB")
helper::run head stop "$job" "--deadline=${STOP_TIMEOUT}"
job::end_leftovers "$job"
