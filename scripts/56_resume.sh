#!/usr/bin/env bash
# 56_resume: continue a job that has ended, from its newest complete checkpoint, as a new attempt: the same JobSpec, base config,
# overrides and code, as its directory recorded them. No file of an earlier attempt changes. The id of the attempt (<submission
# id>.aN) is the one line on stdout.
#
#   JOB=<submission id> scripts/56_resume.sh
#
# OVERRIDES=trainer.total_training_steps=20 is added to the recorded overrides. JOB=<id>.aN continues from that attempt or an
# earlier one, with that attempt's settings. It is refused if code or inputs changed since, unless ALLOW_MISMATCH=1.
#
# Knobs: JOB OVERRIDES OVERRIDES_FILE DEBUGGER ALLOW_MISMATCH
#        ALLOW_PLAIN_SECRETS DRY_RUN FAIL_ON WAIT PENDING_TIMEOUT START_TIMEOUT STALL_TIMEOUT UNREACHABLE_TIMEOUT
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
helper::ensure
job::again resume
