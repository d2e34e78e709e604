# debugger: a person in front of a job that waits in a breakpoint.
# shellcheck shell=bash

# debugger::show JOB: the breakpoints, and how VS Code reaches them.
debugger::show() {
  local forwards=() said=()
  output::read_words said helper::run head breakpoints "$1" --with-ports
  printf '%s\n' "${said[0]}"
  tunnel::of_ports forwards "${said[1]}"
  printf '\nForward, where VS Code runs:\n'
  nodes::show_forwards "${forwards[@]}"
}
