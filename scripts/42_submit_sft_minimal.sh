#!/usr/bin/env bash
# 42_submit_sft_minimal: submit a few steps of supervised fine-tuning on Ray (jobspecs/sft.yaml). The submission id is the one line on
# stdout.
#
#   CODE_ID=codeA WAIT=1 scripts/42_submit_sft_minimal.sh
#
# Knobs: CODE_ID SUBMISSION_ID OVERRIDES OVERRIDES_FILE DETERMINISTIC ALLOW_MISMATCH DRY_RUN WAIT MODEL DATASET MAX_RUNNING PENDING_TIMEOUT STALL_TIMEOUT UNREACHABLE_TIMEOUT
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
helper::ensure
job::submit "$(job::spec_of sft)"
