#!/bin/sh
# The commands that a test could use to touch the machine: its engine, other hosts, its packages and services. Links with their
# names are first on PATH in the unit tests; a test puts its own stub before them.
message="a unit test called the machine's own '${0##*/} $*': put a stub before it on PATH"
printf '%s\n' "$message" >&2
[ -z "${OFF_LIMITS_LOG-}" ] || printf '%s (%s)\n' "$message" "${BATS_TEST_DESCRIPTION:-${PYTEST_CURRENT_TEST:-outside of a test}}" >>"$OFF_LIMITS_LOG"
exit 97
