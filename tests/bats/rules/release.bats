#!/usr/bin/env bats
# A release: the version has one home, and the changelog agrees with it.

bats_require_minimum_version 1.5.0

setup() {
  load rules_helper
  rules::files CHANGELOG.md py/verl_regress/__init__.py
  [[ ${#FILES[@]} == 2 ]]
}

# agreement ROOT: what the release scripts report about the version and the changelog in ROOT.
agreement() {
  # shellcheck disable=SC2016  # expanded by that shell
  run bash -c 'source scripts/lib/regress.bash; source maintain/release.bash; release::need_agreement "$1"' any "$1"
}

# planted VERSION: a copy of the two files with that version.
planted() {
  mkdir -p "${BATS_TEST_TMPDIR}/py/verl_regress"
  cp CHANGELOG.md "$BATS_TEST_TMPDIR"
  sed -E "s/^(__version__ = \")[^\"]+/\1$1/" py/verl_regress/__init__.py >"${BATS_TEST_TMPDIR}/py/verl_regress/__init__.py"
}

@test "the version and the newest release in CHANGELOG.md agree" {
  agreement "$PWD"
  [[ $status == 0 && -z $output ]]
}

@test "the rule can fail: another version, a changelog without a release" {
  planted 9.9.9
  agreement "$BATS_TEST_TMPDIR"
  [[ $status == 1 && $output == *"The version is '9.9.9' (__version__ in py/verl_regress/__init__.py), and the newest release in CHANGELOG.md is '"* ]]
  planted 1.1.0
  sed -i '/^## \[[0-9]/d' "${BATS_TEST_TMPDIR}/CHANGELOG.md"
  agreement "$BATS_TEST_TMPDIR"
  [[ $status == 1 && $output == *"the newest release in CHANGELOG.md is '':"* ]]
}

@test "the changelog begins with a section for unreleased changes" {
  [[ $(grep '^## ' CHANGELOG.md | head -n 1) == '## [Unreleased]' ]]
}

@test "the version is written nowhere else" {
  version=$(sed -nE 's/^__version__ = "([^"]+)".*/\1/p' py/verl_regress/__init__.py)
  [[ -n $version ]]
  rules::files 'py/*.py' 'scripts/*' 'maintain/*.sh' 'maintain/*.bash' 'maintain/*.py' pyproject.toml Makefile
  rules::leave_out '^py/verl_regress/__init__\.py$'
  rules::none "(^|[^0-9.])${version//./\\.}([^0-9.]|$)"
}

@test "the distributions that can be installed alone have the version" {
  versions=$(sed -nE 's/^__version__ = "([^"]+)".*/\1/p' py/verl_regress/__init__.py judge/*/__init__.py rehearsal/*/__init__.py)
  (($(wc -l <<<"$versions") > 1))
  [[ $(sort -u <<<"$versions" | wc -l) == 1 ]]
}

@test "make version prints it" {
  run --separate-stderr make --no-print-directory version
  [[ $status == 0 && $output == "verl-regress $(sed -nE 's/^__version__ = "([^"]+)".*/\1/p' py/verl_regress/__init__.py)" ]]
}

@test "a tag that is not the version fails" {
  version=$(sed -nE 's/^__version__ = "([^"]+)".*/\1/p' py/verl_regress/__init__.py)
  maintain/version.sh "v${version}"
  run maintain/version.sh v9.9.9
  [[ $status == 1 && $output == *"The tag is 'v9.9.9', and the version is '${version}': tag it v${version}, or change __version__ in py/verl_regress/__init__.py."* ]]
}

@test "CI runs make targets and scripts that exist, and each action has a version" {
  rules::files '.github/workflows/*.yml'
  mapfile -t commands < <(sed -nE 's/^ +(- )?run: //p' "${FILES[@]}")
  ((${#commands[@]} > 3))
  for command in "${commands[@]}"; do
    read -r -a words <<<"$command"
    case ${words[0]} in
      make) grep -qE "^${words[1]}:.*## " Makefile ;;
      scripts/* | maintain/*) [[ -x ${words[0]} ]] ;;
      *) false ;;
    esac || { printf '%s\n' "$command" && false; }
  done
  run ! grep -vE '@v[0-9]+$' <(grep -hE '^ +(- )?uses: ' "${FILES[@]}")
}

@test "pre-commit runs the linters of lint.sh, with the same options, from .venv" {
  rules::files .pre-commit-config.yaml scripts/dev/lint.sh
  # How lint.sh runs them is its own: on all cores, or in a function (import-linter checks all files at once).
  imports=$(sed -nE 's/^  said=\$\((PYTHONPATH=[a-z:]+ lint-imports [^ ]+) .*/\1/p' scripts/dev/lint.sh)
  in_lint=$(sed -nE 's/^lint::run .* -- //p' scripts/dev/lint.sh | sed "s/^lint::imports\$/${imports}/; s/^lint::on_all_cores //" | sort)
  in_hooks=$(sed -nE 's|^ +entry: (env )?([A-Z]+=[a-z:]+ )?\.venv/bin/|\2|p' .pre-commit-config.yaml | sort)
  [[ $(wc -l <<<"$in_lint") -ge 7 ]]
  diff <(printf '%s\n' "$in_lint") <(printf '%s\n' "$in_hooks")
}
