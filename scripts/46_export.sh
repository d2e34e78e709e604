#!/usr/bin/env bash
# 46_export: print a file that runs the same job elsewhere: the plan of `make submit`, as the file that TO names. The head makes it,
# so the cluster is up and prepared; nothing is created. Its first lines say how it is run, and what cannot be carried over. TO=slurm
# needs no cluster: it prints what `make slurm` would submit.
#
#   TO=slurm     a batch job for Slurm
#   TO=kuberay   a RayJob for KubeRay (Kubernetes)
#   TO=dstack    a distributed task for dstack
#   TO=compose   a whole Compose project
#
#   TO=kuberay JOBSPEC=FILE scripts/46_export.sh >job.yaml          or TO=kuberay scripts/46_export.sh FILE >job.yaml
#
# Secrets are named in the file, their values never are. See docs/where-it-runs.md.
#
# Knobs: TO EXPORT_VOLUME JOBSPEC WORKLOAD CODE_ID SUBMISSION_ID OVERRIDES OVERRIDES_FILE DETERMINISTIC TRAIN_SEED RAY_BASE_CONFIG
#        ALLOW_PLAIN_SECRETS MODEL DATASET NODE_IMAGE RUN_AS WORKERS GPUS_PER_WORKER SHM_SIZE PENDING_TIMEOUT START_TIMEOUT STALL_TIMEOUT
#        UNREACHABLE_TIMEOUT
source "$(dirname "$0")/lib/regress.bash"
cli::begin_with '[JOBSPEC]' "$@"
[[ -z ${1:-} ]] || export JOBSPEC=$1
if [[ -v TO && $TO == slurm ]]; then
  batch::load
  batch::print
  exit
fi
env::load
[[ -n $TO && $TO != slurm ]] ||
  cli::die 2 "'make export' needs the format to print in TO: set TO=slurm, TO=kuberay, TO=dstack or TO=compose on the command line."
spec=$JOBSPEC
[[ -n $spec ]] || spec=$(job::spec_of "$WORKLOAD")
helper::ensure
job::export "$spec"
