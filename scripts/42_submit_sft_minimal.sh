#!/usr/bin/env bash
# 42_submit_sft_minimal: submit a few steps of supervised fine-tuning on Ray (jobspecs/sft.yaml). The submission id is the one
# line on stdout.
#
#   CODE_ID=codeA WAIT=1 scripts/42_submit_sft_minimal.sh
#
# Knobs: as 44_submit_sdk, without JOBSPEC and WORKLOAD
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
job::submit_shipped sft
