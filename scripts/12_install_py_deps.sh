#!/usr/bin/env bash
# 12_install_py_deps: copy the helper to the shared root, and the Python packages that it needs (py/requirements.txt) if a node's
# own Python lacks them, as in verl's GPU images. They are put next to the helper on the shared root: nothing is installed in the
# image, and no root is needed. Compiles the packages of a node that came without bytecode, once.
#
#   scripts/12_install_py_deps.sh
#
# Knobs: WHEELHOUSE (a folder of wheels on this host; empty: the node's own pip and index)
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
log::step "the helper, and what it needs of the nodes' Python"
cluster::lock
owner::need_own
helper::ensure_layout
helper::is_put || helper::put
deps::ensure
deps::ensure_bytecode
log::verdict "the helper"
