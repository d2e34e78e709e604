# tunnel: the way from where the user sits to ports of the nodes. A forward is a word LOCAL:NODE:PORT.
# shellcheck shell=bash

# tunnel::show_breakpoints JOB: the breakpoints in which the job waits, and how VS Code reaches them: from port 5678 on, one after the other.
tunnel::show_breakpoints() {
  local said=() forwards=() node port local_port=5678
  output::read_words said helper::run head breakpoints "$1" --with-ports
  printf '%s\n' "${said[0]}"
  while read -r node port; do
    forwards+=("${local_port}:${node}:${port}")
    local_port=$((local_port + 1))
  done <<<"${said[1]}"
  printf '\nForward, where VS Code runs:\n'
  nodes::show_forwards "${forwards[@]}"
}

# tunnel::as_typed WORD...: the words as a command line that can be typed into a shell.
tunnel::as_typed() {
  local line
  printf -v line '%q ' "$@"
  printf '%s\n' "${line% }"
}
