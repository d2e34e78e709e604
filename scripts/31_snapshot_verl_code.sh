#!/usr/bin/env bash
# 31_snapshot_verl_code: verl's source as the immutable snapshot CODE_ID that jobs run from.
#
#   VERL_SOURCE   pypi:VERSION   that release, from this host's pip
#                 git:URL@REF    a branch, tag or commit; the clone is kept at ${WORKDIR}/verl
#                 path:DIR       the working tree at DIR as it is now, without what git ignores there
#   CODE_ID       its name: common/code/verl/<CODE_ID> on the shared root; auto: verl-<hash of the tree>, which is printed
#
# A CODE_ID that has the same tree already is skipped; with another tree it is an error: a snapshot is never changed.
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load

helper::ensure
[[ $CODE_ID != auto ]] || CODE_ID='verl-{tree}'
snapshot::ensure "$CODE_ID" "$VERL_SOURCE"
