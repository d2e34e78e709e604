#!/usr/bin/env bats
# make dist: the tarball is the same for every user, and runs without git in a folder with spaces in its path.

setup_file() {
  REPO=$(cd "${BATS_TEST_DIRNAME}/../../.." && pwd)
  TARBALL=$(cd "$REPO" && NO_COLOR=1 maintain/dist.sh 2>"${BATS_FILE_TMPDIR}/said")
  NAME=$(basename "$TARBALL" .tar.gz)
  UNPACKED="${BATS_FILE_TMPDIR}/a folder with spaces/${NAME}"
  mkdir "${UNPACKED%/*}"
  tar -C "${UNPACKED%/*}" -xzf "${REPO}/${TARBALL}"
  export TARBALL NAME UNPACKED
}

setup() {
  bats_require_minimum_version 1.5.0
  load ../test_helper
  BOX="$BATS_TEST_TMPDIR" # the tools of a machine without git
  mkdir "${BOX}/bin"
  for tool in "${SANDBOX_TOOLS[@]}" make; do ln -s "$(command -v "$tool")" "${BOX}/bin/${tool}"; done
}

# unpacked COMMAND...: in the unpacked folder, without git and with a clean environment.
unpacked() { run --separate-stderr env --chdir="$UNPACKED" -i PATH="${BOX}/bin" HOME="$BOX" NO_COLOR=1 "$@"; }

@test "the tarball is named after the version, and unpacks into one folder of that name" {
  [[ $TARBALL == build/dist/verl-regress-*.tar.gz ]]
  [[ $(tar -tzf "${REPO}/${TARBALL}" | cut -d/ -f1 | sort -u) == "$NAME" ]]
  [[ ! -e ${UNPACKED}/.git && ! -e ${UNPACKED}/workdir && ! -e ${UNPACKED}/.venv ]]
}

@test "make version and make help" {
  unpacked make --no-print-directory version
  [[ $status == 0 && $output == "verl-regress ${NAME#verl-regress-}" ]] || fail "$stderr"
  unpacked make --no-print-directory help
  [[ $status == 0 && $output == *'make quickstart'*'make dist'* ]] || fail "$stderr"
  # shellcheck disable=SC2016  # expanded by that shell
  unpacked bash -c 'make --no-print-directory help | true; exit "${PIPESTATUS[0]}"' # a reader that has enough, such as head
  [[ $status == 0 && -z $stderr ]] || fail "$stderr"
}

@test "the lists of files for lint and the rules are the same in the unpacked tarball" {
  # shellcheck disable=SC2016  # expanded by that shell
  list='source scripts/dev/files.bash && files::ours "$@"'
  for patterns in '*.py' '*.sh *.bash *.bats' .ci 'docker/* env/*' 'py/*.py'; do
    read -r -a words <<<"$patterns"
    unpacked bash -c "$list" any "${words[@]}"
    there=$output
    [[ $status == 0 && -n $there ]] || fail "$stderr"
    released=$(cd "$REPO" && source scripts/dev/files.bash && comm -12 <(files::ours "${words[@]}" | LC_ALL=C sort) <(files::to_release | LC_ALL=C sort))
    diff <(printf '%s\n' "$released") <(LC_ALL=C sort <<<"$there")
  done
}

@test "a copy of an unpacked folder has all of its files, and none that was made there" {
  mkdir "${BOX}/a copy" "${UNPACKED}/workdir"
  : >"${UNPACKED}/workdir/mine"
  # shellcheck disable=SC2016  # expanded by that shell
  unpacked bash -c 'source scripts/dev/files.bash && files::copy_to "$1"' any "${BOX}/a copy"
  [[ $status == 0 ]] || fail "$stderr"
  diff <(cd "${BOX}/a copy" && find . ! -type d | LC_ALL=C sort) <(tar -tzf "${REPO}/${TARBALL}" | sed "s|^${NAME}|.|" | LC_ALL=C sort)
  rm -r "${UNPACKED}/workdir"
}

@test "a tarball with changes that are not released yet says so" {
  local log="${UNPACKED}/CHANGELOG.md" added said
  cp "$log" "${BOX}/CHANGELOG.md"
  for added in '' '- A change.'; do
    sed "0,/^## \\[[0-9]/{/^- /d;s/^## \\[Unreleased\\]\$/&\n\n${added}/}" "${BOX}/CHANGELOG.md" >"$log"
    unpacked maintain/dist.sh
    [[ $status == 0 ]] || fail "$stderr"
    said=$(grep -c "^warning CHANGELOG\.md has changes under Unreleased: ${NAME} will contain more than the release ${NAME#verl-regress-}$" <<<"$stderr") || true
    [[ $said == "${added:+1}" || $said == 0 && -z $added ]] || fail "with '${added}': ${stderr}"
  done
  cp "${BOX}/CHANGELOG.md" "$log"
}

@test "made again there, without git and under another umask, it is the same bytes" {
  umask 077
  chmod -R go-rwx "$UNPACKED"
  unpacked make --no-print-directory dist
  [[ $status == 0 && $output == "$TARBALL" ]] || fail "$stderr"
  cmp "${UNPACKED}/${TARBALL}" "${REPO}/${TARBALL}"
}

@test "a version and a changelog that disagree make no tarball" {
  sed -i 's/^__version__ = "/&9/' "${UNPACKED}/py/verl_regress/__init__.py"
  rm -rf "${UNPACKED}/build"
  unpacked make --no-print-directory dist
  [[ $status != 0 && $stderr == *"make them agree, with a heading like '## [1.2.3] - 2026-01-31'."* && ! -e ${UNPACKED}/build/dist ]]
}
