#!/usr/bin/env bash
# 01_up: bring the cluster's nodes up: head and WORKERS workers. Containers are made with today's settings; what runs
# already is left alone, workers beyond WORKERS are removed. Nodes that exist already (TRANSPORT=ssh) get Ray's token. Settings
# that differ from those that a running cluster was made with are said, and refused while jobs would end (FORCE=1 ends them);
# so is a cluster of another checkout (ADOPT=1 takes it over).
#
#   scripts/01_up.sh
#
# Knobs: CLUSTER_NAME WORKERS NODE_IMAGE WORKDIR SHARED_ROOT DASHBOARD_PORT SHM_SIZE RUN_AS
#        FORCE ADOPT TRANSPORT NODES_FILE SSH_CONFIG
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
log::step "nodes of ${CLUSTER_NAME}: head and ${WORKERS} workers (profile ${PROFILE})"
nodes::need
cluster::ensure_directories
cluster::lock
cluster::ensure_token
nodes::ensure_up
log::verdict "the nodes"
