# suite: the test suites of scripts/dev/test.sh, by name, and their reports. They run in the root of the project.
# shellcheck shell=bash

REPORTS=build/reports
PARALLEL=(--jobs "$(nproc)" --no-parallelize-within-files)
WITHIN_FILE=(--jobs "$(nproc)") # for a suite of one file
SLOW_JOBS=$(($(nproc) * 2))     # of the slow unit tests, which wait a third of their time

suite::lint() { scripts/dev/lint.sh; }
suite::unit() { suite::_bats unit unit "${PARALLEL[@]}" --filter-tags '!slow'; }
suite::unit-slow() { suite::_bats unit unit-slow --jobs "$SLOW_JOBS" --no-parallelize-within-files --filter-tags slow; }
suite::contract() { suite::_bats contract contract "${WITHIN_FILE[@]}"; }
suite::rules() { suite::_bats rules rules "${PARALLEL[@]}"; }
suite::container() { suite::_bats container container --filter-tags "$(suite::_in_turn)${TEST_TURN:+,$(suite::_in_ninth)}"; } # one machine, one cluster at a time
suite::py() { suite::_pytest py -m 'not slow'; }
suite::py-slow() { suite::_pytest py-slow -m slow --numprocesses "$SLOW_JOBS"; }
# The same suites as `make test`, once more while a cluster with the default name and port is up (.ci/run): no test may touch it.
suite::unit-again() { suite::_bats unit unit-again "${PARALLEL[@]}" --filter-tags '!slow'; }
suite::contract-again() { suite::_bats contract contract-again "${WITHIN_FILE[@]}"; }
suite::py-again() { suite::_pytest py-again -m 'not slow'; }
suite::faults() { suite::_faults report faults --filter-tags "$(suite::_in_turn),$(suite::_in_ninth)"; }
suite::faults-full() { suite::_faults write faults-full; }

# suite::_in_turn: the tags that leave out the tests of the two other turns; with TEST_TURN empty, a tag that no test has.
suite::_in_turn() {
  [[ -n ${TEST_TURN-} ]] || { printf '!never\n' && return; }
  suite::_without turn:0 turn:1 turn:2 "turn:$((TEST_TURN % 3))"
}

# suite::_in_ninth: the same for the tests that take turns of nine; with TEST_TURN empty, none of them runs.
suite::_in_ninth() { suite::_without ninth:{0..8} ${TEST_TURN:+"ninth:${TEST_TURN}"}; }

# suite::_without TAG...: leaves out the tests of all tags that are given once.
suite::_without() { printf '%s\n' "$@" | sort | uniq -u | sed 's/^/!/' | paste -sd,; }

# suite::_bats DIRECTORY REPORT OPTION...
suite::_bats() {
  local tests=()
  mapfile -t tests < <(compgen -G "tests/bats/$1/*.bats" | sort)
  ((${#tests[@]})) || cli::die 1 "tests/bats/$1 has no .bats file: a suite without tests is a failure."
  .venv/bin/bats "${@:3}" --timing "${tests[@]}" | tee "${REPORTS}/$2.tap"
}

# suite::_pytest REPORT OPTION...: on all cores, unless OPTION says otherwise; a worker that has finished its tests takes tests from another one.
suite::_pytest() { .venv/bin/pytest --numprocesses "$(nproc)" --dist worksteal --junit-xml="${REPORTS}/$1.xml" "${@:2}"; }

# suite::_faults ACTION REPORT OPTION...: the tests record all that they tried; ACTION makes the page from it.
suite::_faults() {
  rm -f -- "${REPORTS}/reliability.jsonl"
  suite::_bats faults "${@:2}" && .venv/bin/python scripts/dev/reliability.py "$1"
}

# suite::run NAME MEMORY: leaves NAME's report and its exit status; never exits the script. Temporary files are in the directory MEMORY;
# what containers use is on a disk.
suite::run() {
  local status=0
  rm -f -- "${REPORTS}/$1".*
  [[ $1 == @(container|faults*) ]] || local -x TMPDIR=$2
  ("suite::$1") || status=$?
  printf '%d\n' "$status" >"${REPORTS}/$1.status"
}
