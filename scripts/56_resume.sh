#!/usr/bin/env bash
# 56_resume: go on with a job that has ended, from its newest whole checkpoint, as a new attempt: the same JobSpec, base
# config, overrides and code, as its directory recorded them. Nothing of an earlier attempt is changed. The id of the
# attempt (<submission id>.aN) is the one line on stdout.
#
#   JOB=<submission id> scripts/56_resume.sh
#
# OVERRIDES=trainer.total_training_steps=20 adds to what was asked. JOB=<id>.aN goes on from that attempt or one before it,
# as that one was asked for.
#
# Knobs: JOB OVERRIDES OVERRIDES_FILE ALLOW_MISMATCH DRY_RUN WAIT PENDING_TIMEOUT STALL_TIMEOUT UNREACHABLE_TIMEOUT
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
helper::ensure
job::again resume
