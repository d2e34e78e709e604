#!/usr/bin/env bash
# 02_down: remove the containers and networks with the cluster's label; on nodes that existed already (TRANSPORT=ssh) stop only the
# Ray that we started. The shared directory and all that jobs wrote stay as they are.
#
#   scripts/02_down.sh
#
# Refused while jobs run or wait there (FORCE=1 ends them), and for a cluster of another checkout.
#
# Knobs: CLUSTER_NAME WORKDIR FORCE TRANSPORT HOSTS_FILE NODES_FILE SSH_CONFIG
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
log::step "take ${CLUSTER_NAME} down"
cluster::lock
nodes::ensure_down
cluster_knobs::forget
