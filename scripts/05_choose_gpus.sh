#!/usr/bin/env bash
# 05_choose_gpus: for `make quickstart` on a host with NVIDIA GPUs. Chooses the GPUs that no process uses, among those that this shell was
# given (CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES, SLURM_STEP_GPUS, SLURM_JOB_GPUS), and how many workers share them: two if their number
# is even, else one. Adds GPU_IDS, WORKERS and GPUS_PER_WORKER to env/local.env, where all commands read them. Chooses
# nothing if GPU_IDS is set, if the cluster is up, or where no worker gets a GPU of this host.
#
#   scripts/05_choose_gpus.sh
#
# Knobs: PROFILE GPU_IDS WORKERS GPUS_PER_WORKER FORCE
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
quickstart::choose_gpus
