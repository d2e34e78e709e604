# files: which files are ours, with git or without it (a tarball of `make dist` has no .git). It depends on nothing else in the
# project; rules, lint and dist use it.
# shellcheck shell=bash

FILES_ROOT=$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd)
readonly FILES_ROOT

# files::ours PATTERN...: files that git tracks or would add, one per line, relative to the root. A pattern is a path, a folder, or a
# glob whose * also matches slashes, as in git. Without a pattern: all of them. No loop, because bats traces each of our commands.
files::ours() {
  if files::is_checkout; then
    git -C "$FILES_ROOT" ls-files --cached --others --exclude-standard --deduplicate -- "$@" |
      grep -vxFf <(git -C "$FILES_ROOT" ls-files --deleted) || true
  else
    files::_unpacked "$@"
  fi
}

# files::to_release: the files of a release, one per line: what git tracks, or all of ours without git.
files::to_release() {
  if files::is_checkout; then git -C "$FILES_ROOT" ls-files --cached; else files::_unpacked; fi
}

# files::copy_to DIRECTORY: copies all of ours into DIRECTORY, an absolute path.
files::copy_to() {
  files::ours '*' | tr '\n' '\0' | (cd "$FILES_ROOT" && xargs -0 cp --parents --no-dereference -t "$1" --)
}

# files::is_checkout: this folder itself is a git checkout (not a folder inside another checkout), and git is installed.
files::is_checkout() { [[ -e ${FILES_ROOT}/.git ]] && command -v git >/dev/null; }

# files::_unpacked PATTERN...: all files here except what .gitignore names: /path and /path/ from the root, name/ at any depth.
files::_unpacked() {
  local line leave_out=(-path ./.git) wanted=(-path './*')
  (($# == 0)) || wanted=(-false)
  for line in "$@"; do wanted+=(-o -path "./${line}" -o -path "./${line}/*"); done
  while IFS= read -r line; do
    line=${line%/}
    case $line in
      '' | '#'*) ;;
      /*) leave_out+=(-o -path ".${line}") ;;
      *) leave_out+=(-o -name "$line") ;;
    esac
  done <"${FILES_ROOT}/.gitignore"
  (cd "$FILES_ROOT" && find . \( "${leave_out[@]}" \) -prune -o ! -type d \( "${wanted[@]}" \) -printf '%P\n') | LC_ALL=C sort
}
