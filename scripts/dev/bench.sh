#!/usr/bin/env bash
# bench: how fast it all is, side by side in one run with what one would type without us: the medians of 5 runs of each side
# by turns (of 2 for whole sessions), and their ratio. On a cluster of its own, <CLUSTER_NAME>-bench at DASHBOARD_PORT + 1000,
# which it takes down again; its files are under build/bench/.
#
#   scripts/dev/bench.sh                        every row: bench/results.json and the table of docs/bench.md are written anew
#   BENCH_ROWS=submit,status scripts/dev/bench.sh     these rows, printed only: up up_again submit status status_many debug snapshot verify
#
# All rows take about half an hour on 2 cores; let nothing else run on the machine.
source "$(dirname "$0")/../lib/regress.bash"
cli::begin "$@"
env::check
source "${REPO_DIR}/scripts/dev/bench.bash"
# shellcheck source=scripts/dev/release.bash
source "${REPO_DIR}/scripts/dev/release.bash"

all=(up up_again submit status status_many debug snapshot verify)
rows=("${all[@]}") results=${REPO_DIR}/bench/results.json page=${REPO_DIR}/docs/bench.md
if [[ -n ${BENCH_ROWS-} ]]; then
  IFS=', ' read -r -a rows <<<"$BENCH_ROWS"
  results=${BENCH_DIR}/results.json page=''
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
