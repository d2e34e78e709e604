#!/usr/bin/env bash
# 01_up: bring the cluster's containers up: head and WORKERS workers, with today's settings. Converges: what runs
# already is left alone, workers beyond WORKERS are removed.
#
#   scripts/01_up.sh
#
# Knobs: CLUSTER_NAME WORKERS NODE_IMAGE WORKDIR SHARED_ROOT DASHBOARD_PORT SHM_SIZE RUN_AS
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
log::step "containers of ${CLUSTER_NAME}: head and ${WORKERS} workers (profile ${PROFILE})"
image::need_engine
compose::need_image
cluster::ensure_directories
cluster::lock
cluster::ensure_token
compose::ensure_up
helper::ensure
log::verdict "the containers"
