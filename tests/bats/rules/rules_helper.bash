# How house rules check our files. A rule has its reason in its name and one escape:
# a line that must break it says "rule-ok: why".
# shellcheck shell=bash

REPO=$(cd "${BATS_TEST_DIRNAME}/../../.." && pwd)
cd "$REPO" || exit 1
source "${REPO}/scripts/dev/files.bash"

# rules::files PATTERN...: sets FILES (tracked files, or files that git would add), prints how many; none is a failure, not a pass.
rules::files() {
  mapfile -t FILES < <(files::ours "$@")
  printf '# checked %d files\n' "${#FILES[@]}" >&3
  ((${#FILES[@]} > 0))
}

# rules::leave_out REGEX: files that the rule does not apply to.
rules::leave_out() {
  local file kept=()
  for file in "${FILES[@]}"; do [[ $file =~ $1 ]] || kept+=("$file"); done
  FILES=("${kept[@]}")
  ((${#FILES[@]} > 0))
}

# rules::none REGEX: no line of FILES matches, except comments. Prints the lines that match.
rules::none() {
  local found stripped="${BATS_TEST_TMPDIR}/stripped"
  rm -rf "$stripped" && mkdir "$stripped"
  cp --parents -t "$stripped" -- "${FILES[@]}"
  found=$(cd "$stripped" &&
    sed -E -i -- 's/^[[:space:]]*#.*//; /rule-ok: /s/.*//; s/[[:space:]]#[[:space:]].*//' "${FILES[@]/#/./}" &&
    { grep -HnE -- "$1" "${FILES[@]/#/./}" || (($? == 1)); } | sed 's|^\./||')
  [[ -z $found ]] || {
    printf '%s\n' "$found"
    return 1
  }
}

# rules::once WHAT REGEX: FILES have each match of REGEX (in Perl's syntax) only once. Prints how many WHAT it found, and where the others are.
rules::once() {
  local found twice
  found=$(grep -HnoP -- "$2" "${FILES[@]}")
  printf '# checked %d %s\n' "$(wc -l <<<"$found")" "$1" >&3
  twice=$(cut -d: -f3- <<<"$found" | sort | uniq -d)
  [[ -z $twice ]] || {
    sort -t: -k3 <<<"$found" | awk -F: 'NR == FNR { twice[$0]; next } $3 in twice' <(printf '%s\n' "$twice") -
    return 1
  }
}
