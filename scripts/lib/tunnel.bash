# tunnel: the way from where the user sits to ports of the nodes. A forward is a word LOCAL:NODE:PORT.
# shellcheck shell=bash

# tunnel::list ARRAY: the forwards to the dashboard and, if JOB was given, to the breakpoints in which it waits.
tunnel::list() {
  local -n _listed=$1
  local ports
  _listed=("${DASHBOARD_PORT}:head:8265")
  env::is_given JOB || return 0
  helper::ensure
  ports=$(helper::run head breakpoints "$JOB" --ports)
  tunnel::of_ports "$1" "$ports"
}

# tunnel::of_ports ARRAY PORTS: adds a forward for each line "NODE PORT": from 5678 on, one after the other.
tunnel::of_ports() {
  local -n _forwards=$1
  local node port local_port=5678
  while read -r node port; do
    _forwards+=("${local_port}:${node}:${port}")
    local_port=$((local_port + 1))
  done <<<"$2"
}

# tunnel::as_typed WORD...: the words as a command line that can be typed into a shell.
tunnel::as_typed() {
  local line
  printf -v line '%q ' "$@"
  printf '%s\n' "${line% }"
}
