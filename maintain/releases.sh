#!/usr/bin/env bash
# releases: which releases of verl train here: release x workload x trainer. A row is two equal jobs, one after the other. Their
# directories show whether they work, the seconds, fidelity, the metrics that differ, and the hooks that applied. One more row for
# each release is a PPO job with validation that is then resumed. Prints one line for each row; the last line is "N of M rows work",
# and the exit status is 9 if not all of them work.
#
#   maintain/releases.sh                      every row; writes maintain/verl-releases.jsonl and maintain/verl-releases.md
#   maintain/releases.sh 0.9.1 0.8.0-grpo     these rows, printed only: releases (0.7.1 0.8.0 0.9.1 main), or rows (0.9.1-ppo,
#                                                0.9.1-ppo-v0, main-sft, 0.7.1-resume)
#
# main comes from VERL_MAIN in the environment (git:URL@REF or path:DIR); if that is empty, its rows are left out, and the page keeps
# their old entries. A row that worked with the same code, image and checkout is skipped, unless FORCE=1: an interrupted run continues where
# it stopped. The jobs run on CLUSTER_NAME, which is removed at the end if it was not up before. All rows take about an hour on 2
# cores.
#
# Knobs: FORCE CLUSTER_NAME WORKDIR
source "$(dirname "$0")/../scripts/lib/regress.bash"
cli::begin_with '[ROW] ...' "$@"
env::check
source "${REPO_DIR}/scripts/dev/host.bash"
source "${REPO_DIR}/maintain/releases.bash"

ROWS=() AGAIN=${FORCE-} works=0 release='' code_id=''
venv::ensure
releases::find_rows "$@"
releases::settle
mkdir -p "$RELEASES_DIR"
: >"$RELEASES_LOG"
log::step "releases on ${CLUSTER_NAME}: ${#ROWS[@]} rows (what the commands say is in ${RELEASES_LOG})"
releases::ensure_cluster
for row in "${ROWS[@]}"; do
  [[ ${row%%-*} == "$release" ]] || code_id=$(releases::snapshot "${row%%-*}")
  release=${row%%-*}
  ! releases::run "$row" "$code_id" || works=$((works + 1))
done
(($#)) || releases::python write "${ROWS[@]}"
printf '%d of %d rows work\n' "$works" "${#ROWS[@]}"
((works == ${#ROWS[@]})) || exit 9
