#!/usr/bin/env bash
# 70_gc: remove what old jobs left and nobody needs: the checkpoints of jobs that are over, except the newest KEEP jobs that have
# any; snapshots that no kept job, no session and no knob (CODE_ID, CODE_A, CODE_B) refers to; versions of the helper that their user
# no longer uses; and the secrets of lost jobs. It never removes what was made, written or used in the last KEEP_HOURS (except secrets), what
# belongs to a job that may still run, to a session that is not over, or to another checkout, cluster or user, what a link leads to, nor
# configs, logs, states, debug bundles and reports.
#
#   KEEP=5 DRY_RUN=1 scripts/70_gc.sh
#   KEEP=1 KEEP_HOURS=0 scripts/70_gc.sh    # also what is new
#
# It asks no question: it prints what stays and which job or session needs it, and what it removes. With DRY_RUN=1 it only prints.
#
# Knobs: CLUSTER_NAME KEEP KEEP_HOURS DRY_RUN CODE_ID CODE_A CODE_B
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
args=("--cluster=${CLUSTER_NAME}" "--keep=${KEEP}" "--keep-hours=${KEEP_HOURS}")
for code in "$CODE_ID" "$CODE_A" "$CODE_B"; do args+=("--named=${code}"); done
[[ $DRY_RUN != 1 ]] || args+=(--dry-run)
helper::ensure
log::while 'adding up what can be removed' -- helper::run head gc "${args[@]}"
