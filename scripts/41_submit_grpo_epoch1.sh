#!/usr/bin/env bash
# 41_submit_grpo_epoch1: submit one epoch of GRPO (jobspecs/grpo.yaml). The submission id is the one line on stdout.
#
#   CODE_ID=codeA WAIT=1 scripts/41_submit_grpo_epoch1.sh
#
# Knobs: as 44_submit_sdk, without JOBSPEC and WORKLOAD
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
job::submit_shipped grpo
