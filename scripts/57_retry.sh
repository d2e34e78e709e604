#!/usr/bin/env bash
# 57_retry: run a job that has ended once more, from the first step, as a new attempt: the same JobSpec, base config,
# overrides and code, as its directory recorded them. Nothing of an earlier attempt is changed. The id of the attempt
# (<submission id>.aN) is the one line on stdout.
#
#   JOB=<submission id> scripts/57_retry.sh
#
# OVERRIDES adds to what was asked. JOB=<id>.aN repeats what was asked for that attempt.
#
# Knobs: JOB OVERRIDES OVERRIDES_FILE ALLOW_MISMATCH DRY_RUN WAIT PENDING_TIMEOUT STALL_TIMEOUT UNREACHABLE_TIMEOUT
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
helper::ensure
job::again retry
