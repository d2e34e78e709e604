#!/usr/bin/env bash
# 00_prereq_check: check the machine before anything changes. Changes nothing, tries every check also after one has failed, and counts
# them. What nodes can do together is tried by 11_doctor.
#
#   TRANSPORT=container  engine, names that are ours, the dashboard's port, disk, memory, GPUs, shared root, Compose v2, node image
#                        with HOSTS_FILE on every host: it answers, its engine, address, GPUs
#   TRANSPORT=ssh, srun  nodes answer, the cluster is ours, Ray's version, addresses, where Ray's token goes
#
#   scripts/00_prereq_check.sh
#
# Knobs: CLUSTER_NAME DASHBOARD_PORT WORKDIR SHARED_GROUP MIN_DISK_GIB MIN_MEMORY_GIB GPUS_PER_WORKER WORKERS WORKER_DEVICES
#        GPU_IDS FORCE CONTAINER_ENGINE HOSTS_FILE NODES_FILE SSH_CONFIG SHARED_ROOT GCS_PORT
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
log::step "prerequisites of ${CLUSTER_NAME} (profile ${PROFILE}, from ${ENV_ORIGIN[PROFILE]})"
nodes::check
