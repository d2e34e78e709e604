#!/usr/bin/env bash
# 53_fidelity: did a job train what it sampled from? Checks, in the job's own files, what its workload has: the correlation of
# rollout and actor, the gradients of each model and the rewards; of a rehearsal also the hashes of the weights after every update,
# the weights of each model, the seeds of the samples, and where the training actors ran. Exit status 9 if a check fails.
#
#   JOB=latest scripts/53_fidelity.sh
#
# Knobs: JOB
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
helper::ensure
found=$(helper::run head where "$JOB")
job_dir=${found#* }
on_gpu=()
[[ $PROFILE == cpu ]] || on_gpu=(--on-gpu)
log::step "fidelity of ${job_dir##*/jobs/}"
log::while 'checking what was trained' -- node::exec head env PYTHONPATH="$(helper::dir)/rehearsal" \
  python3 -m verl_rehearsal.fidelity "${found%% *}" "${job_dir}/logs/metrics.jsonl" "${job_dir}/state/reports" "${on_gpu[@]}"
