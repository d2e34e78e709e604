#!/usr/bin/env bash
# 57_retry: run a job that has ended once more, from the first step, as a new attempt: the same JobSpec, base config, overrides and
# code, as its directory recorded them. No file of an earlier attempt changes. The id of the attempt (<submission id>.aN) is the one
# line on stdout.
#
#   JOB=<submission id> scripts/57_retry.sh
#
# OVERRIDES is added to the recorded overrides. JOB=<id>.aN repeats that attempt. It is refused if code or inputs changed since, unless
# ALLOW_MISMATCH=1.
#
# Knobs: JOB OVERRIDES OVERRIDES_FILE DEBUGGER ALLOW_MISMATCH
#        ALLOW_PLAIN_SECRETS DRY_RUN FAIL_ON WAIT PENDING_TIMEOUT START_TIMEOUT STALL_TIMEOUT UNREACHABLE_TIMEOUT
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
helper::ensure
job::again retry
