#!/usr/bin/env bash
# 44_submit_sdk: submit a JobSpec (YAML or JSON) through Ray's Python SDK inside the head. Without a file: the JobSpec shipped for
# WORKLOAD. The submission id is the one line on stdout.
#
#   JOBSPEC=FILE scripts/44_submit_sdk.sh          or scripts/44_submit_sdk.sh FILE
#   scripts/44_submit_sdk.sh --quickstart          unless WORKLOAD or JOBSPEC is set: PPO in a rehearsal, GRPO on GPUs
#
# DRY_RUN=1 prints the resolved config, the runtime_env and the equivalent `ray job submit`, and creates nothing.
# WAIT=1 follows the job and exits with its status (see the table in the README); `make submit` ends with 2 for each that is not 0.
# CODE_ID=auto takes a snapshot of VERL_SOURCE first, named by its tree; DRY_RUN=1 too.
#
# Knobs: JOBSPEC WORKLOAD CODE_ID SUBMISSION_ID OVERRIDES OVERRIDES_FILE DETERMINISTIC TRAIN_SEED DEBUGGER ALLOW_MISMATCH
#        ALLOW_PLAIN_SECRETS REWARD_CHECK DRY_RUN FAIL_ON
#        WAIT RAY_BASE_CONFIG MODEL DATASET MAX_RUNNING PENDING_TIMEOUT START_TIMEOUT STALL_TIMEOUT UNREACHABLE_TIMEOUT
source "$(dirname "$0")/lib/regress.bash"
cli::begin_with '--quickstart [JOBSPEC]' "$@"
[[ ${1:---} == --* ]] || export JOBSPEC=$1
env::load
[[ ${1:-} != --quickstart || $PROFILE == cpu ]] || env::is_given WORKLOAD || WORKLOAD=grpo
spec=$JOBSPEC
[[ -n $spec ]] || spec=$(job::spec_of "$WORKLOAD")
helper::ensure
job::submit "$spec"
