#!/usr/bin/env bash
# knob_table: the README's table of knobs, made from env/defaults.env, its types and its comments, so that neither can lie.
#
#   scripts/dev/knob_table.sh           print the table
#   scripts/dev/knob_table.sh --write   put it into README.md between its two markers
#
# tests/bats/rules/readme.bats compares the two.
source "$(dirname "$0")/../lib/regress.bash"

table::print() {
  printf '| knob | value | default | what it is |\n| --- | --- | --- | --- |\n'
  awk '
    /^# ---/ || /^$/ { text = ""; next }
    /^#: / { type = substr($0, 4); next }
    /^# / { text = text (text == "" ? "" : " ") substr($0, 3); next }
    match($0, /^[A-Z0-9_]+=/) {
      name = substr($0, 1, RLENGTH - 1)
      value = substr($0, RLENGTH + 1)
      gsub(/\|/, "\\|", text)
      printf "| `%s` | %s | %s | %s |\n", name, type, (value == "" ? "" : "`" value "`"), text
      text = ""
    }' "${REPO_DIR}/env/defaults.env"
}

table::write() {
  local table
  table=$(table::print)
  TABLE=$table awk '
    /<!-- knobs -->/ { print; print ENVIRON["TABLE"]; inside = 1; next }
    /<!-- \/knobs -->/ { inside = 0 }
    !inside' "${REPO_DIR}/README.md" >"${REPO_DIR}/README.md.tmp"
  mv -- "${REPO_DIR}/README.md.tmp" "${REPO_DIR}/README.md"
}

cli::accept --write "$@"
if [[ ${1:-} == --write ]]; then table::write; else table::print; fi
