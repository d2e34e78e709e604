# The command lines of the README and of the pages that continue it, for the tests that read them (rules/readme.bats) and run them
# (container/95_readme.bats).
# shellcheck shell=bash

# Every page with command lines for users.
README_PAGES=(README.md docs/several-hosts.md docs/gpu.md docs/ascend.md docs/verify.md docs/rehearsal.md docs/layout.md docs/knobs.md)

# A line of an indented block that begins like this is a command; other indented lines are output or a file's content.
README_COMMAND='(make|bash|git clone|cp|printf|scripts/[^ ]*)( |$)'

# readme::code [PAGE...]: the indented lines, without the captured output of the quick start. All pages, if none is named.
readme::code() {
  local pages=("${@:-${README_PAGES[@]}}")
  (cd "$REPO" && sed -n '/<!-- quickstart -->/,/<!-- \/quickstart -->/d; s/^    //p' "${pages[@]}")
}

# readme::commands [PAGE...]: the command lines in their order, without the comments behind them.
readme::commands() { readme::code "$@" | grep -E "^${README_COMMAND}" | sed 's/ \{2,\}#.*//'; }
