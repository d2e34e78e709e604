#!/usr/bin/env bash
# knob_table: the table of knobs in docs/knobs.md, made from env/defaults.env, its types and its comments.
#
#   scripts/dev/knob_table.sh           print the table
#   scripts/dev/knob_table.sh --write   put it into docs/knobs.md between its two markers
#
# tests/bats/rules/readme.bats compares the two.
source "$(dirname "$0")/../lib/regress.bash"

table::print() {
  printf '| knob | value | default | what it is | make … |\n| --- | --- | --- | --- | --- |\n'
  awk '
    /^# ---/ || /^$/ { text = ""; next }
    /^#- / { next }
    /^#: / {
      type = substr($0, 4)
      match(type, /, for [a-z].*/)
      readers = substr(type, RSTART + 6)
      type = substr(type, 1, RSTART - 1)
      if (at = index(type, " matching ")) {
        empty = type ~ / or empty(, typed)?$/ ? " or empty" : ""
        type = substr(type, 1, at - 1) empty
      }
      if (split(type, words, " ") > 12) type = words[1] " " words[2] " " words[3] " … or empty"
      next
    }
    /^# / { text = text (text == "" ? "" : " ") substr($0, 3); next }
    match($0, /^[A-Z0-9_]+=/) {
      name = substr($0, 1, RLENGTH - 1)
      value = substr($0, RLENGTH + 1)
      gsub(/\|/, "\\|", text)
      printf "| `%s` | %s | %s | %s | %s |\n", name, type, (value == "" ? "" : "`" value "`"), text, readers
      text = ""
    }' "${REPO_DIR}/env/defaults.env"
}

cli::accept --write "$@"
if [[ ${1:-} == --write ]]; then table::print | python3 "${REPO_DIR}/maintain/page.py" put docs/knobs.md knobs; else table::print; fi
