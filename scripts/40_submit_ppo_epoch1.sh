#!/usr/bin/env bash
# 40_submit_ppo_epoch1: submit one epoch of PPO with a critic (jobspecs/ppo.yaml). The submission id is the one line on stdout.
#
#   CODE_ID=codeA WAIT=1 scripts/40_submit_ppo_epoch1.sh
#
# Knobs: as 44_submit_sdk, without JOBSPEC and WORKLOAD
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
job::submit_shipped ppo
