#!/usr/bin/env bash
# 43_submit_jobspec: submit a JobSpec (YAML or JSON) through the command line `ray job submit` inside the head. The same
# plan as 44_submit_sdk, about a second slower. The submission id is the one line on stdout.
#
#   JOBSPEC=FILE scripts/43_submit_jobspec.sh          or scripts/43_submit_jobspec.sh FILE
#
# Knobs: JOBSPEC CODE_ID SUBMISSION_ID OVERRIDES OVERRIDES_FILE DETERMINISTIC TRAIN_SEED DEBUGGER ALLOW_MISMATCH
#        ALLOW_PLAIN_SECRETS REWARD_CHECK DRY_RUN FAIL_ON
#        WAIT RAY_BASE_CONFIG MODEL DATASET MAX_RUNNING PENDING_TIMEOUT START_TIMEOUT STALL_TIMEOUT UNREACHABLE_TIMEOUT
source "$(dirname "$0")/lib/regress.bash"
cli::begin_with '[JOBSPEC]' "$@"
[[ -z ${1:-} ]] || export JOBSPEC=$1
env::load
spec=$JOBSPEC
[[ -n $spec ]] || cli::die 2 "43_submit_jobspec.sh needs a JobSpec file: name one with JOBSPEC=FILE, such as JOBSPEC=jobspecs/ppo.yaml."
helper::ensure
job::submit "$spec" cli
