#!/usr/bin/env bash
# 45_slurm: submit a batch job to Slurm that brings the cluster up on the hosts of its allocation, prepares data and model, makes the
# snapshot, submits a job and follows it, and takes the cluster down again: also after scancel and before the time limit. Slurm's job
# id is the one line on stdout. The script that is submitted stays under ${WORKDIR}/slurm, next to the output.
#
#   WORKLOAD=ppo WORKERS=2 BATCH_TIME=04:00:00 scripts/45_slurm.sh
#
# One host more than WORKERS is allocated, for the head. Ray runs on the bare hosts, or with HOSTS_FILE=slurm in our containers there. A
# CODE_ID without a VERL_SOURCE names a snapshot that exists already. The JobSpec and its secrets are checked first, and the overrides if
# the snapshot or VERL_SOURCE is on this machine. DRY_RUN=1 prints the script, and submits nothing. See docs/slurm.md.
#
# Knobs: BATCH_DO BATCH_PARTITION BATCH_TIME BATCH_OPTIONS HOSTS_FILE NODES_PATH NODES_CONTAINER
#        SHARED_ROOT WORKDIR WORKLOAD JOBSPEC JOB CODE_ID VERL_SOURCE WORKERS GPUS_PER_WORKER PROFILE DRY_RUN
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
batch::load
batch::check
if [[ $DRY_RUN == 1 ]]; then
  batch::print
else
  batch::submit
fi
