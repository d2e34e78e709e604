# debugger: a person in front of a job that waits in a breakpoint.
# shellcheck shell=bash

# debugger::show JOB: the breakpoints, and how to reach those that VS Code can attach to.
debugger::show() {
  local forwards=() said=()
  answer::words said helper::run head breakpoints "$1" --with-ports
  printf '%s\n' "${said[0]}"
  ((${#said[@]} > 1)) || return 0 # all of them wait for `ray debug`
  tunnel::of_ports forwards "$(printf '%s\n' "${said[@]:1}")"
  printf '\nForward, where VS Code runs:\n'
  nodes::show_forwards "${forwards[@]}"
}

# debugger::legacy JOB: `ray debug` where it waits: Ray's legacy debugger listens on 127.0.0.1 of that node (2.60).
debugger::legacy() {
  local node
  node=$(helper::run head breakpoints "$1" --legacy-node)
  [[ -t 0 && -t 1 ]] || cli::die 2 "DEBUGGER=legacy (from ${ENV_ORIGIN[DEBUGGER]}) starts an interactive program ('ray debug'): run this in a terminal."
  log::info "'ray debug' on ${node}; Ctrl-C leaves it, and the job goes on waiting"
  # It never ends by itself, and Ctrl-C is status 1; it has shown any other problem on the terminal.
  node::exec_tty "$node" env RAY_DEBUG=legacy ray debug --address="$(node::address head):${GCS_PORT}" || log::info "'ray debug' was left"
}
