#!/usr/bin/env bash
# test: runs test suites, each to its end, and counts the results in their reports in build/reports/.
#
#   scripts/dev/test.sh                  lint unit contract rules py: no engine and no network needed
#   scripts/dev/test.sh unit py          only these
#   scripts/dev/test.sh unit-slow py-slow   the slow ones: files that take seconds, property tests, a kill or a signal at every step
#   scripts/dev/test.sh container        real containers on Docker
#   scripts/dev/test.sh platforms        the same on podman, ssh, several hosts and Slurm
#   scripts/dev/test.sh faults           faults on them; 'make -C maintain faults' also adds their records to its page
#
# The last line is "N passed, N failed". A suite without a test or a report, or with an incomplete report, counts as failed. Of unit
# tests and real clusters, one or two files with failed tests run once more: what then passes is named as flaky, and has failed.
# Environment: FUZZ_SEED and FUZZ_SCALE (other and more cases of bad input), GSM8K_DIR (a folder with the real GSM8K,
# without which one test is skipped).
#
# One bats file: .venv/bin/bats tests/bats/unit/NAME.bats; one pytest file: .venv/bin/pytest tests/PACKAGE/test_NAME.py.
source "$(dirname "$0")/../lib/regress.bash"
cli::begin_with 'lint unit contract rules py unit-slow py-slow container platforms faults ...' "$@"
env::check
source "${REPO_DIR}/scripts/dev/suite.bash"
cd "$REPO_DIR"

(($#)) || set -- lint unit contract rules py
venv::ensure
mkdir -p "$REPORTS"
in_memory=''
suite::temp_dir in_memory
for suite in "$@"; do
  log::step "suite ${suite}"
  suite::run "$suite" "$in_memory"
done
.venv/bin/python scripts/dev/count_tests.py "$REPORTS" "$@"
