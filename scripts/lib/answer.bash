# answer: what a command prints, as an array. Fails with the command's status, which a process substitution cannot tell: `wait "$!"`
# after one sometimes fails although the command did not (Bash 5.2.15).
# shellcheck shell=bash

# answer::lines NAME COMMAND...: puts the lines into the array NAME.
answer::lines() {
  local -n _lines=$1
  "${@:2}" | mapfile -t _lines
}

# answer::words NAME COMMAND...: puts the words, each of which ends with a NUL byte, into the array NAME.
answer::words() {
  local -n _said=$1
  "${@:2}" | mapfile -d '' -t _said
}
