#!/usr/bin/env bash
# 53_fidelity: did a rehearsal train what it sampled from? Checks the correlation of rollout and actor, the hashes of their weights
# after every update, gradients and weights of each model, rewards, the seeds of samples, and where the training actors ran, for
# each workload from the job's own files. Exit status 9 if a check fails.
#
#   JOB=latest scripts/53_fidelity.sh
#
# Knobs: JOB
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
helper::ensure
job_dir=$(helper::run head where "$JOB")
log::step "fidelity of ${job_dir##*/jobs/}"
log::while 'checking what was trained' -- node::exec head env PYTHONPATH="$(helper::dir)/rehearsal" python3 -m verl_rehearsal.fidelity "$job_dir"
