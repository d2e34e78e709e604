# The command lines of README.md, for the tests that read them (rules/readme.bats) and type them (container/95_readme.bats).
# shellcheck shell=bash

# A line of an indented block that begins so is a command; what else is indented is output or a file's content.
README_COMMAND='(make|bash|git clone|cp|printf|scripts/[^ ]*)( |$)'

# readme::code: the indented lines, without the captured output of the quick start.
readme::code() { sed -n '/<!-- quickstart -->/,/<!-- \/quickstart -->/d; s/^    //p' "${REPO}/README.md"; }

# readme::commands: the command lines in their order, without the comments behind them.
readme::commands() { readme::code | grep -E "^${README_COMMAND}" | sed 's/ \{2,\}#.*//'; }
