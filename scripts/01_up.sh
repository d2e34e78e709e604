#!/usr/bin/env bash
# 01_up: bring the cluster's nodes up: head and WORKERS workers. Containers are made with today's settings; what runs
# already is left alone, workers beyond WORKERS are removed. Nodes that exist already (TRANSPORT=ssh) get Ray's token.
#
#   scripts/01_up.sh
#
# Knobs: CLUSTER_NAME WORKERS NODE_IMAGE WORKDIR SHARED_ROOT DASHBOARD_PORT SHM_SIZE RUN_AS
#        TRANSPORT NODES_FILE SSH_CONFIG
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
