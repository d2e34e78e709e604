#!/usr/bin/env bash
# version: prints which version of verl-regress this is, as "verl-regress 1.2.3".
#
#   scripts/dev/version.sh
#   scripts/dev/version.sh v1.2.3    fail unless this is the tag of the version, for CI
#
# The version has one home, __version__ in py/verl_regress/__init__.py. tests/bats/rules/release.bats checks that the newest
# release in CHANGELOG.md is the same.
source "$(dirname "$0")/../lib/regress.bash"
# shellcheck source=scripts/dev/release.bash
source "${REPO_DIR}/scripts/dev/release.bash"
cli::begin_with '[TAG]' "$@"
[[ -z ${1:-} || $1 == "v$(release::version)" ]] || cli::die 1 "The tag is '$1', and the version is '$(release::version)': tag it v$(release::version), or change __version__ in py/verl_regress/__init__.py."
printf 'verl-regress %s\n' "$(release::version)"
