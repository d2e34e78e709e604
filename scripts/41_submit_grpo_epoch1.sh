#!/usr/bin/env bash
# 41_submit_grpo_epoch1: submit one epoch of GRPO (jobspecs/grpo.yaml). The submission id is the one line on
# stdout.
#
#   CODE_ID=codeA WAIT=1 scripts/41_submit_grpo_epoch1.sh
#
# Knobs: CODE_ID SUBMISSION_ID OVERRIDES OVERRIDES_FILE DETERMINISTIC ALLOW_MISMATCH DRY_RUN WAIT MODEL DATASET MAX_RUNNING PENDING_TIMEOUT STALL_TIMEOUT UNREACHABLE_TIMEOUT
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
helper::ensure
job::submit "$(job::spec_of grpo)"
