# files: which files are ours, with git or without it (a tarball of `make dist` has no .git). Knows the directory that it is in,
# and nothing else of the project: rules, lint and dist use it.
# shellcheck shell=bash

FILES_ROOT=$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd)
readonly FILES_ROOT

# files::ours PATTERN...: files that git tracks or would add, one a line, relative to the root. A pattern is a path, a folder, or
# a glob whose * also matches slashes, as in git. Without a pattern: all of them.
files::ours() {
  local file
  {
    if files::is_checkout; then
      git -C "$FILES_ROOT" ls-files --cached --others --exclude-standard --deduplicate
    else
      files::_unpacked
    fi
  } | while IFS= read -r file; do
    [[ ! -f ${FILES_ROOT}/${file} ]] || ! files::_matches "$file" "$@" || printf '%s\n' "$file"
  done
}

# files::to_release: the files of a release, one a line: what git tracks, or all of ours without git.
files::to_release() {
  if files::is_checkout; then git -C "$FILES_ROOT" ls-files --cached; else files::_unpacked; fi
}

# files::is_checkout: this folder is a git checkout itself (not a folder inside somebody else's), and there is a git to ask.
files::is_checkout() { [[ -e ${FILES_ROOT}/.git ]] && command -v git >/dev/null; }

# files::_matches FILE PATTERN...
files::_matches() {
  local file=$1 pattern
  shift
  (($#)) || return 0
  for pattern in "$@"; do
    # shellcheck disable=SC2053  # a glob
    [[ $file != $pattern && $file != $pattern/* ]] || return 0
  done
  return 1
}

# files::_unpacked: everything here but what .gitignore names: /path and /path/ from the root, name/ at any depth.
files::_unpacked() {
  local line leave_out=(-path ./.git)
  while IFS= read -r line; do
    line=${line%/}
    case $line in
      '' | '#'*) ;;
      /*) leave_out+=(-o -path ".${line}") ;;
      *) leave_out+=(-o -name "$line") ;;
    esac
  done <"${FILES_ROOT}/.gitignore"
  (cd "$FILES_ROOT" && find . \( "${leave_out[@]}" \) -prune -o ! -type d -printf '%P\n') | LC_ALL=C sort
}
