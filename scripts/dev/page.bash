# page: the part of a page that a script writes: what is between <!-- NAME --> and <!-- /NAME --> (page.py does it in Python).
# shellcheck shell=bash

# page::put FILE NAME: replaces that part of FILE, a path from the root of the project, by stdin, byte for byte.
page::put() {
  local file=${REPO_DIR}/$1 text
  IFS= read -r -d '' text || true
  if ! grep -qxF "<!-- $2 -->" "$file" || ! grep -qxF "<!-- /$2 -->" "$file"; then
    cli::die 1 "$1 has no lines '<!-- $2 -->' and '<!-- /$2 -->' for what this script writes: add them."
  fi
  NAME=$2 TEXT=$text awk '
    $0 == "<!-- " ENVIRON["NAME"] " -->" { print; printf "%s", ENVIRON["TEXT"]; inside = 1; next }
    $0 == "<!-- /" ENVIRON["NAME"] " -->" { inside = 0 }
    !inside' "$file" >"${file}.tmp"
  mv -- "${file}.tmp" "$file"
}

# page::part FILE NAME: that part of FILE, without its two markers.
page::part() { sed -n "/^<!-- $2 -->\$/,/^<!-- \/$2 -->\$/p" "${REPO_DIR}/$1" | sed '1d;$d'; }
