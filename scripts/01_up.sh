#!/usr/bin/env bash
# 01_up: start the cluster's nodes, the head and WORKERS workers. Containers are created with the current settings; running ones are
# left alone, and workers beyond WORKERS are removed. Nodes that exist already (TRANSPORT=ssh) get Ray's token. Reports settings
# that differ from those of the running cluster, and refuses if jobs would end (FORCE=1 ends them). Refuses to touch a cluster of
# another checkout.
#
#   scripts/01_up.sh
#
# Knobs: CLUSTER_NAME WORKERS NODE_IMAGE WORKDIR SHARED_ROOT SHARED_GROUP DASHBOARD_PORT SHM_SIZE RUN_AS
#        FORCE TRANSPORT CONTAINER_ENGINE HOSTS_FILE NODES_FILE SSH_CONFIG
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
