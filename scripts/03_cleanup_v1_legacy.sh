#!/usr/bin/env bash
# 03_cleanup_v1_legacy: remove the containers of version 1: those named exactly mvp-ray-head or mvp-ray-worker-<n>, never one with
# our label. Their data stays where it was mounted from. Prints what it did.
#
#   scripts/03_cleanup_v1_legacy.sh
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
log::step "containers of version 1 (mvp-ray-head, mvp-ray-worker-<n>)"
image::need_engine
legacy::ensure_removed
log::verdict "no container of version 1 is here"
