#!/usr/bin/env bash
# 70_gc: remove what old jobs left and nobody needs: the checkpoints of jobs that are over, but for the newest KEEP jobs;
# snapshots that no kept job and no session of theirs refers to, nor a knob (CODE_ID, CODE_A, CODE_B); old versions of the
# helper. Whatever is younger than an hour stays, and everything of a job that may still run. Configs, logs, states, debug
# bundles and reports always stay.
#
#   KEEP=5 DRY_RUN=1 scripts/70_gc.sh
#
# DRY_RUN=1 says the same and removes nothing.
#
# Knobs: KEEP DRY_RUN CODE_ID CODE_A CODE_B
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
args=("--keep=${KEEP}")
for code in "$CODE_ID" "$CODE_A" "$CODE_B"; do args+=("--named=$(snapshot::name "$code")"); done
[[ $DRY_RUN != 1 ]] || args+=(--dry-run)
helper::ensure
helper::run head gc "${args[@]}"
