# suite: the test suites of scripts/dev/test.sh, by name, and their reports. They run in the root of the project.
# shellcheck shell=bash

REPORTS=build/reports
JOBS=$(($(nproc) * 2)) # of tests that start processes: they wait a third of their time
PARALLEL=(--jobs "$JOBS" --no-parallelize-within-files)

suite::lint() { scripts/dev/lint.sh; }
suite::unit() { suite::_bats unit unit "${PARALLEL[@]}" --filter-tags '!slow'; }
suite::unit-slow() { suite::_bats unit unit-slow "${PARALLEL[@]}" --filter-tags slow; }
suite::contract() { suite::_bats contract contract --jobs "$JOBS"; } # one file
suite::rules() { suite::_bats rules rules "${PARALLEL[@]}"; }
suite::container() { suite::_bats container container; } # one cluster at a time, in this suite and in the next two
suite::platforms() { suite::_bats platforms platforms; }
suite::py() { suite::_pytest py -m 'not slow'; }
suite::py-slow() { suite::_pytest py-slow -m slow --numprocesses "$JOBS"; }
suite::faults() {
  rm -f -- "${REPORTS}/reliability.jsonl"
  suite::_bats faults faults
}

# suite::_bats DIRECTORY REPORT OPTION...
suite::_bats() {
  local tests=()
  mapfile -t tests < <(compgen -G "tests/bats/$1/*.bats" | sort)
  ((${#tests[@]})) || cli::die 1 "tests/bats/$1 has no .bats file: a suite without tests is a failure."
  .venv/bin/bats "${@:3}" --timing "${tests[@]}" | tee "${REPORTS}/$2.tap"
}

# suite::_pytest REPORT OPTION...: on all cores, unless OPTION says otherwise; a worker that is done takes tests from another one.
suite::_pytest() { .venv/bin/pytest --numprocesses "$(nproc)" --dist worksteal --junit-xml="${REPORTS}/$1.xml" "${@:2}"; }

# suite::run NAME MEMORY: leaves NAME's report and its exit status; never exits the script. Temporary files are in the directory MEMORY;
# what containers use is on a disk.
suite::run() {
  local status=0
  rm -f -- "${REPORTS}/$1".*
  [[ $1 == @(container|platforms|faults) ]] || local -x TMPDIR=$2
  ("suite::$1") || status=$?
  printf '%d\n' "$status" >"${REPORTS}/$1.status"
}
