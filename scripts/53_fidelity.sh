#!/usr/bin/env bash
# 53_fidelity: did a rehearsal train what it sampled from? The correlation of rollout and actor at the first and the last
# step, the hashes of their weights after every update, and where the training actors ran. Exit status 9 if a line is false.
#
#   JOB=latest scripts/53_fidelity.sh
#
# Knobs: JOB
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
helper::ensure
job_dir=$(helper::run head where "$JOB")
log::step "fidelity of ${job_dir##*/}"
log::while 'comparing rollout and actor' -- node::exec head env PYTHONPATH="$(helper::dir)/rehearsal" python3 -m verl_rehearsal.fidelity "$job_dir"
