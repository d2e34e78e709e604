# suite: the test suites of scripts/dev/test.sh, by name, and their reports. They run in the root of the project.
# shellcheck shell=bash

REPORTS=build/reports
JOBS=$(($(nproc) * 2)) # of tests that start processes: they wait a third of their time
AGAIN_FILES=2          # failures in more files are no coincidence
PARALLEL=(--jobs "$JOBS" --no-parallelize-within-files)

suite::lint() { scripts/dev/lint.sh; }
suite::unit() { suite::_twice unit unit "${PARALLEL[@]}" --filter-tags '!slow'; }
suite::unit-slow() { suite::_twice unit unit-slow "${PARALLEL[@]}" --filter-tags slow; }
suite::contract() { suite::_bats contract contract --jobs "$JOBS"; } # one file
suite::rules() { suite::_bats rules rules "${PARALLEL[@]}"; }
suite::container() { suite::_twice container container; } # one cluster at a time, in this suite and in the next two
suite::platforms() { suite::_twice platforms platforms; }
suite::py() { suite::_pytest py -m 'not slow or quick'; }
suite::py-slow() { suite::_pytest py-slow -m 'slow and not quick' --numprocesses "$JOBS"; }
suite::faults() {
  rm -f -- "${REPORTS}/reliability.jsonl"
  suite::_twice faults faults
}

# suite::_twice DIRECTORY REPORT OPTION...: files with failed tests run once more, if they are few, so that count_tests.py can tell what is
# flaky from what is broken. Both have failed: the test or the product has a deadline or an order that a busy machine does not keep.
suite::_twice() {
  local files=()
  ! suite::_bats "$@" || return 0
  mapfile -t files < <(grep -oE 'in test file tests/bats/[^,]+' "${REPORTS}/$2.tap" | cut -d ' ' -f 4 | sort -u)
  ((${#files[@]} >= 1 && ${#files[@]} <= AGAIN_FILES)) || return 1
  log::step "suite $2, again: ${files[*]}"
  .venv/bin/bats "${@:3}" --timing "${files[@]}" | tee "${REPORTS}/$2.again.tap"
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

# suite::temp_dir NAME: a directory in the variable NAME for temporary files of unit tests, which take five times as long on a disk: in memory,
# if 1 GiB is free there and programs run there, and the user has not set TMPDIR.
suite::temp_dir() {
  local place=${TMPDIR-} free
  free=$(df --output=avail -BM /dev/shm 2>/dev/null | tail -n 1 | tr -dc 0-9) || true
  [[ -n $place || ! -w /dev/shm || ${free:-0} -lt 1024 ]] || grep -q ' /dev/shm [^ ]* [^ ]*noexec' /proc/mounts || place=/dev/shm
  TMPDIR=${place:-/tmp} cli::temp_dir "$1"
}

# suite::run NAME MEMORY: leaves NAME's report and its exit status; never exits the script. Temporary files are in the directory MEMORY;
# what containers use is on a disk.
suite::run() {
  local status=0
  rm -f -- "${REPORTS}/$1".*
  [[ $1 == @(container|platforms|faults) ]] || local -x TMPDIR=$2
  ("suite::$1") || status=$?
  printf '%d\n' "$status" >"${REPORTS}/$1.status"
}
