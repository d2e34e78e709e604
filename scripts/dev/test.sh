#!/usr/bin/env bash
# test: runs test suites, each to its end, and counts the results in their reports in build/reports/.
#
#   scripts/dev/test.sh                  lint unit contract rules py: no engine and no network needed
#   scripts/dev/test.sh unit py          only these
#   scripts/dev/test.sh unit-slow py-slow   the slow ones: files that take seconds, property tests, a kill or a signal at every step
#   scripts/dev/test.sh py-again         the same as py, with its own report; also unit-again and contract-again
#   scripts/dev/test.sh container        real containers on a real engine
#   scripts/dev/test.sh faults           faults on them; without the longest ones, which are tagged ninth:N
#   scripts/dev/test.sh faults-full      all faults; if all pass, docs/reliability.md is written
#
# The last line is "N passed, N failed". A suite without a test or a report, or with an incomplete report, counts as failed.
# TEST_TURN=0 to 8 runs a third of the container and fault tests with a tag turn:N (N is TEST_TURN modulo 3), and a ninth of those with
# a tag ninth:N. CI chooses it by the commit. Without it all run, but for the faults with a tag ninth:N.
# Knobs: FUZZ_SEED FUZZ_SCALE GSM8K_DIR VERL_MAIN_DIR TEST_TURN
#
# One bats file: .venv/bin/bats tests/bats/unit/NAME.bats; one pytest file: .venv/bin/pytest tests/py/NAME.py.
source "$(dirname "$0")/../lib/regress.bash"
cli::begin_with 'lint unit contract rules py unit-slow py-slow unit-again contract-again py-again container faults faults-full ...' "$@"
env::check
source "${REPO_DIR}/scripts/dev/memory.bash"
source "${REPO_DIR}/scripts/dev/suite.bash"
export FUZZ_SEED FUZZ_SCALE GSM8K_DIR VERL_MAIN_DIR
cd "$REPO_DIR"

(($#)) || set -- lint unit contract rules py
venv::ensure
mkdir -p "$REPORTS"
in_memory=''
memory::temp_dir in_memory
for suite in "$@"; do
  log::step "suite ${suite}"
  suite::run "$suite" "$in_memory"
done
.venv/bin/python scripts/dev/count_tests.py "$REPORTS" "$@"
