#!/usr/bin/env bash
# 02_down: remove the cluster's containers and network, that is exactly what bears its label. The shared directory and
# everything that jobs wrote stay as they are.
#
#   scripts/02_down.sh
#
# Knobs: CLUSTER_NAME WORKDIR
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
log::step "remove the containers of ${CLUSTER_NAME}"
image::need_engine
cluster::lock
compose::ensure_down
