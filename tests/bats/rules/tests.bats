#!/usr/bin/env bats
# House rules for tests.

setup() {
  load ../test_helper
  load rules_helper
}

# long_names FILE...: the names of tests that have more than 80 characters; prints how many names there are.
long_names() {
  local names=()
  mapfile -t names < <(sed -nE 's/^@test (["'\''])(.*)\1 \{$/\2/p; s/^ *(async )?def (test_[a-z0-9_]+)\(.*/\2/p' "$@")
  printf '# checked %d names of tests\n' "${#names[@]}" >&3
  ((${#names[@]} > 0))
  printf '%s\n' "${names[@]}" | sed -nE '/.{81}/p'
}

@test "a test's name has at most 80 characters: it says the behaviour, not the cases" {
  rules::files '*.bats' '*/test_*.py'
  run long_names "${FILES[@]}"
  [[ $status == 0 && -z $output ]]
}

@test "the rule can fail: a name of 81 characters, in bats and in pytest" {
  long=$(printf 'x%.0s' {1..81})
  printf '@test "%s" {\n@test "%s" {\n' "$long" "${long:1}" >"${BATS_TEST_TMPDIR}/a.bats"
  printf 'def test_%s():\nasync def test_%s(a, b):\n' "${long:6}" "${long:5}" >"${BATS_TEST_TMPDIR}/test_a.py"
  run long_names "${BATS_TEST_TMPDIR}/a.bats" "${BATS_TEST_TMPDIR}/test_a.py"
  [[ $status == 0 && $output == "${long}"$'\n'"test_${long:5}" ]]
}

@test "a pytest file is named after the module that it tests, and what it tests of it" {
  rules::files 'tests/*/test_*.py' 'judge/tests/test_*.py'
  rules::leave_out '^judge/tests/test_distribution\.py$' # of the judge's pyproject.toml
  for file in "${FILES[@]}"; do
    folder=${file%/*} module=${file##*/test_}
    case $folder in
      judge/tests/*) folder=judge/verl_verdict/${folder##*/} ;;
      judge/tests) folder=judge/verl_verdict ;;
      tests/rehearsal) folder=rehearsal/verl_rehearsal ;;
      tests/hooks | tests/on_verl) folder=py/hooks ;;
      tests/dev) folder=scripts/dev ;;
      *) folder=py/verl_regress/${folder#tests/} ;;
    esac
    module=${module%.py}
    until [[ -e ${folder}/${module}.py ]]; do
      [[ $module == *_* ]] || fail "${file} is named after no module of ${folder}"
      module=${module%_*}
    done
  done
}
