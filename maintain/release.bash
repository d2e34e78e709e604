# release: which version this is, and whether CHANGELOG.md agrees.
# shellcheck shell=bash

# release::version [ROOT]
release::version() { sed -nE 's/^__version__ = "([^"]+)".*/\1/p' "${1:-$REPO_DIR}/py/verl_regress/__init__.py"; }

# release::newest [ROOT]: version and date of the newest release in CHANGELOG.md, separated by a space.
release::newest() {
  sed -nE 's/^## \[([0-9]+\.[0-9]+\.[0-9]+)\] - ([0-9]{4}-[0-9]{2}-[0-9]{2})$/\1 \2/p' "${1:-$REPO_DIR}/CHANGELOG.md" | sed -n 1p
}

# release::need_agreement ROOT: version and newest release in CHANGELOG.md are the same.
release::need_agreement() {
  local version newest
  version=$(release::version "$1")
  newest=$(release::newest "$1")
  [[ -n $version && ${newest% *} == "$version" ]] ||
    cli::die 1 "The version is '${version}' (__version__ in py/verl_regress/__init__.py), and the newest release in CHANGELOG.md is '${newest% *}': make them agree, with a heading like '## [1.2.3] - 2026-01-31'."
}

# release::has_unreleased [ROOT]: CHANGELOG.md lists changes since its newest release.
release::has_unreleased() { sed -n '/^## \[Unreleased\]$/,/^## \[[0-9]/p' "${1:-$REPO_DIR}/CHANGELOG.md" | grep '^- ' >/dev/null; }

# release::commit: for records of what ran here: the commit, with -dirty if the checkout has changes; without git the version.
release::commit() {
  if [[ -e ${REPO_DIR}/.git ]] && git -C "$REPO_DIR" describe --always --dirty --abbrev=12 2>/dev/null; then return; fi
  printf 'version %s\n' "$(release::version)"
}
