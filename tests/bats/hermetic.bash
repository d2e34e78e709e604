# setup_suite and teardown_suite of the tests that touch nothing on the machine (unit, contract, rules), whoever runs them and
# whatever else runs, like tests/hermetic.py for pytest.
#
# Sets a clean environment: no knob, token or socket of the user's, an empty HOME, an engine that does not exist, a temporary
# WORKDIR. docker, ssh and similar commands (tests/off_limits/) are first on PATH, and fail; a test stubs them. At the end the suite
# fails if a test still called one of them, left a process, or left a new file in the checkout.
# shellcheck shell=bash

# Variables that a test may see from the environment of whoever runs it; a name that ends in _ is a prefix.
HERMETIC_KEPT='^(BATS_.*|PATH|PWD|SHLVL|TERM|TZ|_)$'

setup_suite() {
  local name checkout
  checkout=$(hermetic::checkout)
  hermetic::files "$checkout" >"${BATS_SUITE_TMPDIR}/files"
  for name in $(compgen -e); do
    [[ $name =~ $HERMETIC_KEPT ]] || unset "$name"
  done
  mkdir "${BATS_SUITE_TMPDIR}/home" "${BATS_SUITE_TMPDIR}/tmp"
  : >"${BATS_SUITE_TMPDIR}/off-limits"
  export LC_ALL=C.UTF-8 HOME="${BATS_SUITE_TMPDIR}/home" TMPDIR="${BATS_SUITE_TMPDIR}/tmp" WORKDIR="${BATS_SUITE_TMPDIR}/workdir"
  export DOCKER_HOST="unix://${BATS_SUITE_TMPDIR}/no-engine.sock" DASHBOARD_PORT=65535 # no kernel assigns this port
  export OFF_LIMITS_LOG="${BATS_SUITE_TMPDIR}/off-limits" PATH="${checkout}/tests/off_limits:${PATH}"
  # Without the user's own configuration git checks whether the checkout belongs to the user.
  printf '[safe]\n\tdirectory = *\n' >"${HOME}/.gitconfig"
}

teardown_suite() {
  local failed=0 left
  if [[ -s ${BATS_SUITE_TMPDIR}/off-limits ]]; then
    cat "${BATS_SUITE_TMPDIR}/off-limits" >&2
    failed=1
  fi
  SECONDS=0
  while left=$(hermetic::processes) && [[ -n $left ]] && ((SECONDS < 10)); do :; done
  [[ -z $left ]] || { printf 'the tests left these processes:\n%s\n' "$left" >&2 && failed=1; }
  left=$(LC_ALL=C comm -13 "${BATS_SUITE_TMPDIR}/files" <(hermetic::files "$(hermetic::checkout)"))
  [[ -z $left ]] || { printf 'the tests left these files in the checkout, or another process made them meanwhile:\n%s\n' "$left" >&2 && failed=1; }
  return "$failed"
}

hermetic::checkout() { (cd "${BASH_SOURCE[0]%/*}/../.." && pwd); }

# hermetic::files CHECKOUT: the files there, except what tools and clusters keep there.
hermetic::files() {
  (cd "$1" && find . \( -path ./.git -o -path ./build -o -path ./.venv -o -path ./workdir -o -name '*_cache' -o -name __pycache__ \) -prune \
    -o ! -type d -printf '%P\n') | LC_ALL=C sort
}

# hermetic::processes: the processes that the tests have started, found by the suite's directory in their environment or command
# line. Uses only Bash, because every program that it started would be one of them.
hermetic::processes() {
  local directory words
  for directory in /proc/[0-9]*; do
    [[ ${directory#/proc/} != "$BASHPID" ]] || continue
    mapfile -d '' -t words 2>/dev/null <"${directory}/environ" || continue
    mapfile -d '' -t -O "${#words[@]}" words 2>/dev/null <"${directory}/cmdline" || continue
    [[ ${words[*]} != *"${BATS_SUITE_TMPDIR}"* ]] || printf '%s %s\n' "${directory#/proc/}" "${words[*]: -3}"
  done
} 2>/dev/null
