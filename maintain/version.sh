#!/usr/bin/env bash
# version: prints which version of verl-regress this is, as "verl-regress 1.2.3".
#
#   maintain/version.sh
#   maintain/version.sh v1.2.3    fail unless this is the tag of the version, for CI
#
# The version has one home, __version__ in py/verl_regress/__init__.py. tests/bats/rules/release.bats checks that the newest
# release in CHANGELOG.md is the same.
source "$(dirname "$0")/../scripts/lib/regress.bash"
# shellcheck source=maintain/release.bash
source "${REPO_DIR}/maintain/release.bash"
cli::begin_with '[TAG]' "$@"
[[ -z ${1:-} || $1 == "v$(release::version)" ]] || cli::die 1 "The tag is '$1', and the version is '$(release::version)': tag it v$(release::version), or change __version__ in py/verl_regress/__init__.py."
printf 'verl-regress %s\n' "$(release::version)"
