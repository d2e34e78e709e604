#!/usr/bin/env bash
# 21_start_workers: start Ray on all workers at once, and wait until Ray lists the head and every worker as ALIVE, with
# GPUS_PER_WORKER GPUs where Ray counts them.
#
#   scripts/21_start_workers.sh
#
# Knobs: WORKERS WORKER_RESOURCES WORKER_CPUS WORKER_GPUS GCS_PORT OBJECT_STORE_BYTES
#        CLUSTER_TIMEOUT
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
log::step "Ray's workers (--resources='${WORKER_RESOURCES}')"
cluster::lock
owner::need_own
cluster::ensure_workers
cluster::await_ready
cluster::tell_unused_knobs
dashboard::tell
log::verdict "Ray's workers"
