#!/usr/bin/env bash
# 55_debug: a debug bundle of a job, running or over: ray status, jobs, nodes, actors, disk, memory and GPU of every node, the
# tails of its logs, and the stacks of its processes while it runs. Its directory under jobs/<id>/debug/ is the one line on stdout.
#
#   JOB=latest scripts/55_debug.sh
#
# TAR=1 leaves a tar of all that the job has recorded, with bundles and without checkpoints, and prints its path instead.
#
# Knobs: JOB TAR
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
args=("$JOB")
[[ $TAR != 1 ]] || args+=(--tar)
helper::ensure
log::while 'asking Ray and every node' -- helper::run head debug "${args[@]}"
