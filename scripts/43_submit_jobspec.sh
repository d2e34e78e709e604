#!/usr/bin/env bash
# 43_submit_jobspec: submit a JobSpec (YAML or JSON) through the command line `ray job submit` inside the head. The same
# plan as 44_submit_sdk, a second and a half slower. The submission id is the one line on stdout.
#
#   scripts/43_submit_jobspec.sh JOBSPEC
#
# Knobs: CODE_ID SUBMISSION_ID OVERRIDES OVERRIDES_FILE DRY_RUN WAIT RAY_BASE_CONFIG MODEL DATASET
#        MAX_RUNNING PENDING_TIMEOUT STALL_TIMEOUT UNREACHABLE_TIMEOUT
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
[[ $# == 1 ]] || cli::die 2 "43_submit_jobspec.sh wants one JobSpec file and got $#: name one, such as jobspecs/ppo.yaml."
helper::ensure
job::submit "$1" cli
