#!/usr/bin/env bash
# releases: which releases of verl train here: release x workload x trainer. A row is two equal jobs, one after the other, and
# what their directories record: whether they work, seconds, fidelity, the metrics that differ, the hooks that applied; one more
# row a release is a PPO job with validation that is then resumed. A line a row; the last line is "N of M rows work", and the
# exit status 9 where that is not all of them.
#
#   scripts/dev/releases.sh                              every row; docs/verl-releases.jsonl and docs/verl-releases.md are written
#   RELEASES=0.9.1,0.8.0-grpo scripts/dev/releases.sh    these rows, printed only: releases (0.7.1 0.8.0 0.9.1 main), or rows
#                                                        (0.9.1-ppo, 0.9.1-ppo-v0, main-sft, 0.7.1-resume)
#
# main is taken from VERL_MAIN (git:URL@REF or path:DIR); where that is empty its rows are left out, and the page keeps what it
# says of them. A row that worked with the same code, image and checkout is not run again, unless FORCE=1: an interrupted run
# goes on where it was. The jobs run on CLUSTER_NAME, which is taken down in the end if it was not up. All rows take about an
# hour on 2 cores.
#
# Knobs: RELEASES VERL_MAIN FORCE CLUSTER_NAME WORKDIR
source "$(dirname "$0")/../lib/regress.bash"
cli::begin "$@"
env::check
source "${REPO_DIR}/scripts/dev/host.bash"
source "${REPO_DIR}/scripts/dev/releases.bash"

ROWS=() AGAIN=${FORCE-} works=0 release='' code_id=''
venv::ensure
releases::find_rows
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
[[ -n ${RELEASES-} ]] || releases::python write "${ROWS[@]}"
printf '%d of %d rows work\n' "$works" "${#ROWS[@]}"
((works == ${#ROWS[@]})) || exit 9
