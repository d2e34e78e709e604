#!/usr/bin/env bash
# readme_capture: put the output of a real `make quickstart` into README.md between its two markers.
#
#   make quickstart 2>&1 | tee FILE; scripts/dev/readme_capture.sh FILE
#
# Left out, and marked with …: the lines of the steps between, and this machine's own paths.
source "$(dirname "$0")/../lib/regress.bash"

capture::shorten() {
  sed -E "s|$(cd "$REPO_DIR" && pwd)/||g; s|[^ (]*/(workdir/)|\1|g" "$1" |
    grep -vE '^ok      (helper|Compose|no container|the names|port|[0-9]+ GiB|no GPU|shared root|[^ ]+ is writable|verl comes)|^(make|real|user|sys)|^$' |
    awk '/ step [3-8] of 10/ { if (!left++) print "        …"; next } { print }' | sed 's/^/    /; s/ *$//'
}

capture::write() {
  local block
  block=$(capture::shorten "$1")
  BLOCK=$block awk '
    /<!-- quickstart -->/ { print; print ""; print ENVIRON["BLOCK"]; print ""; inside = 1; next }
    /<!-- \/quickstart -->/ { inside = 0 }
    !inside' "${REPO_DIR}/README.md" >"${REPO_DIR}/README.md.tmp"
  mv -- "${REPO_DIR}/README.md.tmp" "${REPO_DIR}/README.md"
}

cli::accept '[FILE]' "$@"
[[ -n ${1:-} ]] || cli::die 2 "readme_capture.sh needs the file with the output of 'make quickstart': name it."
capture::write "$1"
