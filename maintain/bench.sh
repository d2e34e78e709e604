#!/usr/bin/env bash
# bench: times our commands and what you would type without them, in turns in one run: the medians of 5 runs of each side (of 2 for
# whole sessions), and their ratio. Uses a separate cluster, <CLUSTER_NAME>-bench at DASHBOARD_PORT + 1000, and removes it at the
# end; its files are under build/bench/.
#
#   maintain/bench.sh                  every row: writes maintain/bench.json and maintain/bench.md
#   maintain/bench.sh submit status    these rows, printed only; there are: up_workers up up_again submit status debug snapshot
#                                         verify
#
# All rows take more than half an hour on 2 cores; run nothing else on the machine.
source "$(dirname "$0")/../scripts/lib/regress.bash"
all=(up_workers up up_again submit status debug snapshot verify)
cli::begin_with "${all[*]} ..." "$@"
env::check
source "${REPO_DIR}/maintain/bench.bash"
# shellcheck source=maintain/release.bash
source "${REPO_DIR}/maintain/release.bash"

rows=("${all[@]}") results=${REPO_DIR}/maintain/bench.json page=${REPO_DIR}/maintain/bench.md
if (($#)); then
  rows=("$@") results=${BENCH_DIR}/results.json page=''
fi

mkdir -p "$BENCH_DIR"
rm -f "$BENCH_RUNS" "$BENCH_LOG"
venv::ensure
bench::own_cluster
cli::on_exit make --no-print-directory -C "$REPO_DIR" down FORCE=1
log::step "bench on ${CLUSTER_NAME}: ${rows[*]} (what the commands say is in ${BENCH_LOG})"
bench::prepare
for row in "${rows[@]}"; do
  log::step "row ${row}"
  "row::${row}"
done
bench::facts >"${BENCH_DIR}/facts.tsv"
bench::python report "$BENCH_RUNS" "${BENCH_DIR}/facts.tsv" "$results"
[[ -z $page ]] || bench::python write "$results" "$page"
