#!/bin/sh
# The commands by which a test would reach the machine: its engine, other hosts, its packages and services. Under their
# names (links to this file) they are first on PATH in the unit tests; a test puts a stub of its own before them.
message="a unit test called the machine's own '${0##*/} $*': put a stub before it on PATH"
printf '%s\n' "$message" >&2
[ -z "${OFF_LIMITS_LOG-}" ] || printf '%s (%s)\n' "$message" "${BATS_TEST_DESCRIPTION:-${PYTEST_CURRENT_TEST:-outside of a test}}" >>"$OFF_LIMITS_LOG"
exit 97
