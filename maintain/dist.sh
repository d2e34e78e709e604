#!/usr/bin/env bash
# dist: makes build/dist/verl-regress-VERSION.tar.gz and prints its path. The tarball runs without git.
#
#   maintain/dist.sh
#
# It contains the files that git tracks, as they are in the working tree; in an unpacked tarball, all files except ignored ones. The
# same files always give the same bytes: order, owner, modes and times are fixed, and the time is the day of the release.
source "$(dirname "$0")/../scripts/lib/regress.bash"
# shellcheck source=scripts/dev/files.bash
source "${REPO_DIR}/scripts/dev/files.bash"
# shellcheck source=maintain/release.bash
source "${REPO_DIR}/maintain/release.bash"
cli::begin "$@"
release::need_agreement "$REPO_DIR"
cd "$REPO_DIR"

read -r version day < <(release::newest)
name=verl-regress-${version}
tarball=build/dist/${name}.tar.gz
! files::is_checkout || [[ -z $(git status --porcelain) ]] || log::warn "the checkout has uncommitted changes: ${name} will contain those to tracked files"
! release::has_unreleased || log::warn "CHANGELOG.md has changes under Unreleased: ${name} will contain more than the release ${version}"
mkdir -p "${tarball%/*}"
files::to_release | sort |
  tar --create --no-recursion --verbatim-files-from --files-from=- --transform "flags=r;s,^,${name}/," --format=gnu \
    --owner=0 --group=0 --numeric-owner --mode='u=rwX,go=rX' --mtime="${day} 00:00:00Z" |
  gzip -9n >"${tarball}.tmp"
mv -T -- "${tarball}.tmp" "$tarball"
log::changed "${tarball} ($(sha256sum <"$tarball" | cut -c1-12), $(files::to_release | wc -l) files)"
printf '%s\n' "$tarball"
