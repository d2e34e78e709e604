#!/usr/bin/env bash
# version: prints which version of verl-regress this is, as "verl-regress 1.2.3".
#
#   scripts/dev/version.sh
#
# The version has one home, __version__ in py/verl_regress/__init__.py. tests/bats/rules/release.bats checks that the newest
# release in CHANGELOG.md is the same.
source "$(dirname "$0")/../lib/regress.bash"
# shellcheck source=scripts/dev/release.bash
source "$(dirname "$0")/release.bash"
cli::begin "$@"
printf 'verl-regress %s\n' "$(release::version)"
