#!/usr/bin/env bats
# scripts/dev/mutants.sh: which modules it runs, where, and how it ends; tests/py/test_mutants.py tests what it makes of them.

# bats file_tags=slow

setup() {
  load ../test_helper
  sandbox::make
  sandbox::venv
  cp -r "${REPO}"/{.gitignore,requirements-mutants.lock} "$HERE"
  mkdir -p "${HERE}/tests/py"
  stub venv_python - <<'SH'
case "$*" in
  *'mutants.py names'*) if [[ -e ${BOX}/no-names ]]; then echo "error   'queue' has no tests." >&2; exit 2; fi ;;&
  *'mutants.py names '*) printf '%s\n' "${@:3}" ;;
  *'mutants.py names') printf '%s\n' status queue ;;
  *'mutants.py run '*) echo "$3 in ${4##*/}: $(ls "$4")" >>"${BOX}/ran"; echo 12/34; [[ ! -e ${BOX}/broken ]] ;;
  *'mutants.py record '*) [[ ! -e ${BOX}/left ]] || { echo 'error   2 of 3 mutants of queue have not run.' >&2; exit 1; }; echo "$3: 2 of 3 mutants noticed" ;;
esac
SH
  stub python3 - <<'SH'
[[ $* != --version ]] || echo 'Python 3.11.7'
[[ $* != '-m venv --clear '* ]] || { mkdir -p "$4/bin"; ln -sf "${BOX}/bin/venv_python" "$4/bin/python"; }
SH
}

ran() { cat "${BOX}/ran"; }

@test "each module has a copy of its own, the page is written after each, and the tool is installed once" {
  sandbox::run scripts/dev/mutants.sh
  assert_status 0
  [[ $(ran) == $'status in status: log\nmutants\nqueue in queue: log\nmutants' ]]
  assert_line 'ok      status: 2 of 3 mutants noticed'
  assert_line 'ok      queue: 2 of 3 mutants noticed'
  [[ -e ${HERE}/build/mutants/status/mutants/scripts/dev/mutants.sh && ! -e ${HERE}/mutants ]]
  [[ $(grep -cE 'mutants.py write$' "$CALLS") == 2 && $(grep -c -- '-m pip install' "$CALLS") == 1 ]]
  assert_called "venv_python -m pip install --disable-pip-version-check --requirement ${HERE}/requirements-dev.lock --requirement ${HERE}/requirements-mutants.lock"
  sandbox::run scripts/dev/mutants.sh
  [[ $(grep -c -- '-m pip install' "$CALLS") == 1 ]]
  printf 'extra==1\n' >>"${HERE}/requirements-mutants.lock"
  sandbox::run scripts/dev/mutants.sh
  [[ $(grep -c -- '-m pip install' "$CALLS") == 2 ]]
}

@test "a test that was deleted is not in the copy" {
  touch "${HERE}/tests/py/test_gone.py"
  sandbox::run MUTANTS=queue scripts/dev/mutants.sh
  [[ -e ${HERE}/build/mutants/queue/mutants/tests/py/test_gone.py ]]
  rm "${HERE}/tests/py/test_gone.py"
  touch "${HERE}/tests/py/test_new.py"
  sandbox::run MUTANTS=queue scripts/dev/mutants.sh
  [[ $(ls "${HERE}/build/mutants/queue/mutants/tests/py") == test_new.py ]]
}

@test "a module that is not in the list is refused before anything is made" {
  sandbox::run MUTANTS=queue,nope scripts/dev/mutants.sh
  assert_status 2
  assert_line "error   MUTANTS='queue,nope' (from the command line or environment) is not usable: use some of $(sed -n '/^#: list of status /{s///;s/ or empty//;s/ /, /g;s/^/status, /p}' "${HERE}/env/defaults.env"), separated by commas, or leave it empty."
  [[ ! -e ${HERE}/build ]]
}

@test "when the tool fails, or ends before all have run, it says so and nothing is recorded" {
  touch "${BOX}/broken"
  sandbox::run MUTANTS=queue scripts/dev/mutants.sh
  assert_status 1
  assert_line "error   The mutants of queue could not be run: read the end of ${HERE}/build/mutants/queue/log."
  refute_called 'mutants.py record'
  rm "${BOX}/broken"
  touch "${BOX}/left"
  sandbox::run MUTANTS=queue scripts/dev/mutants.sh
  assert_status 1
  assert_line 'error   2 of 3 mutants of queue have not run.'
  refute_called 'mutants.py write'
}

@test "--write makes the page again and runs nothing" {
  sandbox::run scripts/dev/mutants.sh --write
  assert_status 0
  assert_called 'mutants.py write'
  [[ ! -e ${BOX}/ran && ! -e ${HERE}/build ]]
}

@test "modules that cannot be listed are an error, and not an empty list" {
  touch "${BOX}/no-names"
  sandbox::run scripts/dev/mutants.sh
  assert_status 2
  assert_line "error   'queue' has no tests."
  [[ ! -e ${HERE}/build ]]
}
