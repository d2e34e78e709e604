#!/usr/bin/env bash
# 20_start_head: start Ray's head in the head container, without CPUs and GPUs, so that nothing is ever scheduled there. Does not
# wait for it: 21_start_workers waits until it answers.
#
#   scripts/20_start_head.sh
#
# Knobs: GCS_PORT OBJECT_STORE_BYTES CLUSTER_TIMEOUT
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
log::step "Ray's head (ray start --head --num-cpus=0 --num-gpus=0)"
cluster::lock
owner::need_own
cluster::ensure_head
log::verdict "Ray's head"
