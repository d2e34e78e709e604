#!/usr/bin/env bash
# 69_unkit: installs from a kit alone (scripts/68_kit.sh), on a machine that needs no network, no package and no cache; then `make quickstart`,
# `make test` and `make verify` run there. Checks the kit and every hash in it before it writes anything. Interrupted, run it again.
#
#   KIT=FILE scripts/69_unkit.sh             where there is no make yet
#   CHECK=1 KIT=FILE scripts/69_unkit.sh     only check the kit
#
# It unpacks the kit into ${WORKDIR}/cache/unkit, installs missing packages with apt-get (root or sudo), Compose v2 and an engine if none answers, makes
# .venv, loads the node images, and puts verl, data and models into WORKDIR. Jobs get variables that keep them from asking other hosts
# (env/local.env), and all later commands get the knobs that the kit was made with.
#
# Knobs: KIT CHECK
source "$(dirname "$0")/lib/regress.bash"
# shellcheck source=scripts/dev/host.bash
source "${REPO_DIR}/scripts/dev/host.bash"
# shellcheck source=scripts/dev/unkit.bash
source "${REPO_DIR}/scripts/dev/unkit.bash"
cli::begin "$@"
env::load_knobs
WORKDIR=$(realpath -m -- "$WORKDIR")
unkit::read
unkit::need_same
unkit::need_settings
host::look_for_tools
host::look_for_git
host::look_for_engine
host::print_plan
host::need_means
unkit::need_space
unkit::need_engine
unkit::need_whole
[[ -z $CHECK ]] || exit 0
unkit::unpack
host::ensure_packages
host::ensure_python --engine
host::ensure_engine
unkit::put
env::keep "By 'make unkit': what the kit was made with, and jobs ask no host outside the cluster." "${UNKIT_LINES[@]}"
