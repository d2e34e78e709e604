#!/usr/bin/env bash
# 68_kit: one file with all that a machine without a way out needs: this project, the packages of this distribution and of Python, Compose, and
# what is on this machine of node images, verl, data and models. Prints its path. Says before it begins how large the kit will be and what it
# will lack. Interrupted, it goes on where it was.
#
#   scripts/68_kit.sh               KIT=cpu,gpu scripts/68_kit.sh
#   CHECK=1 scripts/68_kit.sh       only say that; exit status 9 if the kit would lack something
#
# KIT says whose packages the node images are built from: cpu, gpu or both; empty: those of PROFILE. docs/air-gap.md has the whole way.
#
# Knobs: KIT CHECK PROFILE BASE_IMAGE TORCH_INDEX_URL NODE_IMAGE VERL_SOURCE CODE_A CODE_B DATASET_SOURCE DATASET MODEL_SOURCE MODEL
source "$(dirname "$0")/lib/regress.bash"
# shellcheck source=scripts/dev/host.bash
source "${REPO_DIR}/scripts/dev/host.bash"
cli::begin "$@"
env::load
kit::find
kit::tell
if [[ -n $CHECK ]]; then
  [[ ! -s ${KIT_FACTS}/lacking ]] || exit 9
  exit 0
fi
kit::need_space
kit::gather
kit::pack
