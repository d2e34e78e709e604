#!/usr/bin/env bash
# 00_prereq_check: look before anything is touched: container engine, Compose v2, the node image, names that are ours,
# ports, disk, memory, GPUs, leftovers of version 1. Changes nothing; the first thing that is wrong ends it.
#
#   scripts/00_prereq_check.sh
#
# Knobs: CLUSTER_NAME DASHBOARD_PORT WORKDIR MIN_DISK_GIB MIN_MEMORY_GIB GPUS_PER_WORKER WORKERS
#        WORKER_DEVICES
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
log::step "prerequisites of ${CLUSTER_NAME} (profile ${PROFILE}, from ${ENV_ORIGIN[PROFILE]})"
prereq::engine
prereq::compose
prereq::version1_leftovers
prereq::foreign_names
prereq::port
prereq::disk
prereq::memory
prereq::gpus
log::ok "8 of 8 checks passed"
