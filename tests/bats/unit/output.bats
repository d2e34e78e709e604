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
  } >"${HERE}/scripts/output.sh"
}

@test "lines and words arrive as they are: empty ones, spaces, and newlines in a word" {
  script <<'SH'
output::read_lines got printf 'a b\n\nc\n'
printf '[%s]' "${#got[@]}" "${got[@]}"
output::read_words got printf 'a\nb\0\0c\0'
printf '[%s]' "${#got[@]}" "${got[@]}"
output::read_lines got true
printf '[%s]' "${#got[@]}"
SH
  sandbox::run scripts/output.sh
  [[ $output == $'[3][a b][][c][3][a\nb][][c][0]' ]]
}

@test "a command that fails after it has printed ends the script with its status" {
  script <<'SH'
half() { printf 'one\n' && return 7; }
output::read_lines got half || printf '%s %s\n' "$?" "${got[*]}"
output::read_lines got half
printf 'not reached\n'
SH
  sandbox::run scripts/output.sh
  [[ $status == 7 && $output == '7 one' ]]
}
