# output: what a command prints, as an array. Fails with the command's status, which a process substitution cannot tell: `wait "$!"`
# after one sometimes fails although the command did not (Bash 5.2.15).
# shellcheck shell=bash

# output::read_lines NAME COMMAND...: puts the lines into the array NAME.
output::read_lines() {
  local -n _lines=$1
  "${@:2}" | mapfile -t _lines
}

# output::read_words NAME COMMAND...: puts the words, each of which ends with a NUL byte, into the array NAME.
output::read_words() {
  local -n _said=$1
  "${@:2}" | mapfile -d '' -t _said
}
