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

# unheld PAGE FILE...: what the first cells of PAGE's tables promise and no test of the files claims, and each claim that is not such a
# promise or not above a test; prints how many promises there are.
unheld() {
  local promised claimed
  promised=$(sed -nE '/^\| (never|---) \|/d; s/^\| ([^|]+) \|.*/\1/p' "$1" | LC_ALL=C sort)
  [[ -n $promised ]] || return 1
  claimed=$(awk '
    /^# promise: / { held[++count] = substr($0, 12); next }
    count {
      is_test = /^(@test |@pytest\.mark\.|@[a-z_]+$|# bats test_tags=|(async )?def test_)/
      for (i = 1; i <= count; i++) print (is_test ? "" : "above no test: ") held[i]
      count = 0
    }' "${@:2}" | LC_ALL=C sort -u)
  printf '# checked %d promises\n' "$(wc -l <<<"$promised")" >&3
  LC_ALL=C comm -3 <(printf '%s\n' "$promised") <(printf '%s\n' "$claimed") | sed -E 's/^\t/no promise: /; t; s/^/no test: /'
}

@test "each promise of docs/safety.md is held by a test, which says so above it" {
  rules::files '*.bats' '*/test_*.py'
  run unheld docs/safety.md "${FILES[@]}"
  [[ $status == 0 && -z $output ]] || fail "$output"
}

@test "the rule can fail: no test, no such promise, and a claim above no test" {
  printf '%s\n' '| never | instead |' '| --- | --- |' '| kills it | it asks |' '| lies | no |' '| steals | no |' >"${BATS_TEST_TMPDIR}/page"
  printf '# promise: %s\n%s\n' 'kills it' '@test "a" {' cheats 'def test_a():' lies '@pytest.fixture' >"${BATS_TEST_TMPDIR}/a.bats"
  run unheld "${BATS_TEST_TMPDIR}/page" "${BATS_TEST_TMPDIR}/a.bats"
  [[ $status == 0 && $output == $'no promise: above no test: lies\nno promise: cheats\nno test: lies\nno test: steals' ]] || fail "$output"
  run unheld /dev/null "${BATS_TEST_TMPDIR}/a.bats"
  [[ $status == 1 ]]
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
