#!/usr/bin/env bats
# `make test` in an unpacked tarball of `make dist`, which is no git checkout: two of its suites from start to end, tests of two more, and
# what pytest would run.
# bats file_tags=slow

setup_file() {
  REPO=$(cd "${BATS_TEST_DIRNAME}/../../.." && pwd)
  tarball=$(cd "$REPO" && NO_COLOR=1 scripts/dev/dist.sh)
  tar -C "$BATS_FILE_TMPDIR" -xzf "${REPO}/${tarball}"
  UNPACKED="${BATS_FILE_TMPDIR}/$(basename "$tarball" .tar.gz)"
  ln -s "${REPO}/.venv" "${UNPACKED}/.venv"
  export UNPACKED
}

setup() {
  bats_require_minimum_version 1.5.0
  load ../test_helper
  cd "$UNPACKED" || return
}

# unpacked COMMAND...: without the variables of the tests that run here.
unpacked() {
  local name without=()
  for name in "${!BATS_@}"; do without+=(-u "$name"); done
  run env "${without[@]}" NO_COLOR=1 "$@"
}

@test "lint and the rules pass there, and call no git" {
  mkdir "${BATS_TEST_TMPDIR}/bin"
  printf '#!/bin/bash\nprintf "%%s\\n" "$*" >>"%s"\nexit 127\n' "${BATS_TEST_TMPDIR}/called" >"${BATS_TEST_TMPDIR}/bin/git"
  chmod +x "${BATS_TEST_TMPDIR}/bin/git"
  unpacked env PATH="${BATS_TEST_TMPDIR}/bin:${PATH}" scripts/dev/test.sh lint rules
  assert_status 0
  [[ ! -e ${BATS_TEST_TMPDIR}/called ]] || fail "git $(<"${BATS_TEST_TMPDIR}/called")"
  [[ $output =~ $'\n'[0-9]+' passed, 0 failed' ]] || fail 'no count'
}

@test "tests of bats and of pytest pass there, and pytest collects all of its tests" {
  unpacked .venv/bin/bats tests/bats/unit/artefact.bats
  assert_status 0
  unpacked .venv/bin/pytest --collect-only -p no:cacheprovider
  assert_status 0
  unpacked .venv/bin/pytest -p no:cacheprovider tests/py/test_releases.py tests/py/test_specs.py
  assert_status 0
}
