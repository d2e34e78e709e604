#!/usr/bin/env bash
# 02_down: remove the cluster's containers and network, that is exactly what bears its label; on nodes that existed already
# (TRANSPORT=ssh) end exactly the Ray that we started. The shared directory and all that jobs wrote stay as they are.
#
#   scripts/02_down.sh
#
# Knobs: CLUSTER_NAME WORKDIR TRANSPORT NODES_FILE SSH_CONFIG
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
log::step "take ${CLUSTER_NAME} down"
nodes::ensure_down
