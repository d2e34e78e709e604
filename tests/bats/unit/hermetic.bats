#!/usr/bin/env bats
# The guard of tests/bats/hermetic.bash: in a separate checkout, a test that touches the machine makes its suite fail.

setup() {
  load ../test_helper
  INNER="${BATS_TEST_TMPDIR}/inner checkout"
  mkdir -p "${INNER}/tests/bats/unit"
  cp -r "${REPO}/tests/off_limits" "${INNER}/tests"
  cp "${REPO}/tests/bats/hermetic.bash" "${INNER}/tests/bats"
  cp "${REPO}/tests/bats/unit/setup_suite.bash" "${INNER}/tests/bats/unit"
}

# suite: runs the tests on stdin as a suite, with variables that a user may have exported.
suite() {
  cat >"${INNER}/tests/bats/unit/inner.bats"
  run env -i PATH="${PATH#*/off_limits:}" TMPDIR="$BATS_TEST_TMPDIR" HOME=/root WORKERS=3 PROFILE=gpu CODE_ID=x JOB=y WANDB_API_KEY=sk-1 \
    SSH_AUTH_SOCK=/run/agent DOCKER_HOST=tcp://far:1 MAKEFLAGS=k "${REPO}/.venv/bin/bats" "${INNER}/tests/bats/unit/inner.bats"
}

@test "what the user exported reaches no test, and HOME has only the settings of git" {
  suite <<'BATS'
@test "inner" {
  [[ -z ${WORKERS-}${PROFILE-}${CODE_ID-}${JOB-}${WANDB_API_KEY-}${SSH_AUTH_SOCK-}${MAKEFLAGS-} ]]
  [[ $DOCKER_HOST == unix://*/no-engine.sock && $WORKDIR == "$BATS_SUITE_TMPDIR"/* && $HOME == "$BATS_SUITE_TMPDIR"/home ]]
  [[ $(ls -A "$HOME") == .gitconfig ]]
}
BATS
  assert_status 0
}

# bats test_tags=slow
@test "the machine's engine is off limits, also if its failure is ignored" {
  suite <<'BATS'
@test "inner" { docker ps || true; }
BATS
  assert_status 1
  assert_line "# a unit test called the machine's own 'docker ps': put a stub before it on PATH (inner)"
  suite <<'BATS'
@test "inner" {
  printf '#!/bin/sh\n' >"${BATS_TEST_TMPDIR}/docker"
  chmod +x "${BATS_TEST_TMPDIR}/docker"
  PATH="${BATS_TEST_TMPDIR}:${PATH}" docker ps
}
BATS
  assert_status 0
}

# bats test_tags=slow
@test "a process that is left, and a file that is left in the checkout, fail the suite" {
  suite <<'BATS'
@test "inner" {
  touch "${BATS_TEST_DIRNAME}/left"
  setsid tail -f /dev/null 3>&- >/dev/null 2>&1 &
  printf '%s\n' "$!" >"${BATS_TEST_DIRNAME}/../../../../pid"
}
BATS
  kill -- "-$(<"${BATS_TEST_TMPDIR}/pid")"
  assert_status 1
  [[ $output == *'# the tests left these processes:'*'tail -f /dev/null'* ]] || fail 'no process'
  assert_line '# tests/bats/unit/left'
}
