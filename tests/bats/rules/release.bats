#!/usr/bin/env bats
# A release: the version has one home, and the changelog agrees with it.

bats_require_minimum_version 1.5.0

setup() {
  load rules_helper
  rules::files CHANGELOG.md py/verl_regress/__init__.py
  [[ ${#FILES[@]} == 2 ]]
}

# agreement ROOT: what the release scripts say about the version and the changelog in ROOT.
agreement() {
  # shellcheck disable=SC2016  # expanded by that shell
  run bash -c 'source scripts/lib/regress.bash; source scripts/dev/release.bash; release::need_agreement "$1"' any "$1"
}

# planted VERSION: a copy of the two files in which the version is VERSION.
planted() {
  mkdir -p "${BATS_TEST_TMPDIR}/py/verl_regress"
  cp CHANGELOG.md "$BATS_TEST_TMPDIR"
  sed -E "s/^(__version__ = \")[^\"]+/\1$1/" py/verl_regress/__init__.py >"${BATS_TEST_TMPDIR}/py/verl_regress/__init__.py"
}

@test "the version and the newest release in CHANGELOG.md agree" {
  agreement "$PWD"
  [[ $status == 0 && -z $output ]]
}

@test "the rule can fail: another version, a changelog without a release, a heading without a date" {
  planted 9.9.9
  agreement "$BATS_TEST_TMPDIR"
  [[ $status == 1 && $output == *"The version is '9.9.9' (__version__ in py/verl_regress/__init__.py), and the newest release in CHANGELOG.md is '"* ]]
  planted 1.1.0
  sed -i '/^## \[[0-9]/d' "${BATS_TEST_TMPDIR}/CHANGELOG.md"
  agreement "$BATS_TEST_TMPDIR"
  [[ $status == 1 && $output == *"the newest release in CHANGELOG.md is '':"* ]]
  printf '## [1.1.0]\n' >>"${BATS_TEST_TMPDIR}/CHANGELOG.md"
  agreement "$BATS_TEST_TMPDIR"
  [[ $status == 1 ]]
}

@test "the changelog has a place for what is not released yet, first" {
  [[ $(grep '^## ' CHANGELOG.md | head -n 1) == '## [Unreleased]' ]]
}

@test "the version is written nowhere else" {
  version=$(sed -nE 's/^__version__ = "([^"]+)".*/\1/p' py/verl_regress/__init__.py)
  [[ -n $version ]]
  rules::files 'py/*.py' 'scripts/*' pyproject.toml Makefile
  rules::leave_out '^py/verl_regress/__init__\.py$'
  rules::none "(^|[^0-9.])${version//./\\.}([^0-9.]|$)"
}

@test "make version prints it" {
  run --separate-stderr make --no-print-directory version
  [[ $status == 0 && $output == "verl-regress $(sed -nE 's/^__version__ = "([^"]+)".*/\1/p' py/verl_regress/__init__.py)" ]]
}
