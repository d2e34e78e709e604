#!/usr/bin/env bats
# What a command prints, as an array, and the command's status.

setup() {
  load ../test_helper
  sandbox::make
}

# script: one that runs what is on stdin.
script() {
  {
    # shellcheck disable=SC2016  # expanded when the script runs
    printf '%s\n' 'source "$(dirname "$0")/lib/regress.bash"'
    cat
  } >"${HERE}/scripts/answer.sh"
}

@test "lines and words arrive as they are: empty ones, spaces, and newlines in a word" {
  script <<'SH'
answer::lines got printf 'a b\n\nc\n'
printf '[%s]' "${#got[@]}" "${got[@]}"
answer::words got printf 'a\nb\0\0c\0'
printf '[%s]' "${#got[@]}" "${got[@]}"
answer::lines got true
printf '[%s]' "${#got[@]}"
SH
  sandbox::run scripts/answer.sh
  [[ $output == $'[3][a b][][c][3][a\nb][][c][0]' ]]
}

@test "a command that fails after it has printed ends the script with its status, or gives it to ||" {
  script <<'SH'
half() { printf 'one\n' && return 7; }
answer::lines got half || printf '%s %s\n' "$?" "${got[*]}"
answer::lines got half
printf 'not reached\n'
SH
  sandbox::run scripts/answer.sh
  [[ $status == 7 && $output == '7 one' ]]
}
