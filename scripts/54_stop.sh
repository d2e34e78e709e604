#!/usr/bin/env bash
# 54_stop: stop a job, running or waiting for a place, and wait until it is over and its processes are gone. One that is
# over already is skipped.
#
#   JOB=<submission id> scripts/54_stop.sh
#
# Knobs: JOB STOP_TIMEOUT
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
helper::ensure
helper::run head stop "$JOB" "--deadline=${STOP_TIMEOUT}"
