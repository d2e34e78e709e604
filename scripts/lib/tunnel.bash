# tunnel: the way from where the user sits to ports of the nodes. A forward is a word LOCAL:NODE:PORT.
# shellcheck shell=bash

readonly TUNNEL_DEADLINE=30 # seconds in which the dashboard must answer through it

# tunnel::list ARRAY: the forwards: the dashboard's, and those of the breakpoints in which JOB waits, if it was given.
tunnel::list() {
  local -n _listed=$1
  local ports
  _listed=("$(tunnel::dashboard_port):head:8265")
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

# tunnel::dashboard_port: the local port that leads to the dashboard.
tunnel::dashboard_port() {
  if [[ -n $TUNNEL_PORT ]]; then printf '%s\n' "$TUNNEL_PORT"; else printf '%s\n' "$DASHBOARD_PORT"; fi
}

# tunnel::hold FORWARD...: holds them in the foreground until Ctrl-C, or until one of them ends.
tunnel::hold() {
  local port
  port=$(tunnel::dashboard_port)
  nodes::need_holdable
  nodes::open_forwards "$@"
  cli::on_interrupt log::info 'the tunnel is closed'
  log::while 'opening the tunnel' -- wait::until "$TUNNEL_DEADLINE" cli::has_part_ended dashboard::is_forwarded "$port" ||
    tunnel::_die_unless_part_did "$port"
  log::ok "dashboard: http://127.0.0.1:${port}, token in $(dashboard::token_file)"
  log::info 'Ctrl-C closes the tunnel'
  cli::await_parts
}

# tunnel::_die_unless_part_did PORT: a forward that ended has said why, and its status ends the script.
tunnel::_die_unless_part_did() {
  ! cli::has_part_ended || cli::await_parts
  cli::die 8 "The dashboard did not answer at 127.0.0.1:$1 within ${TUNNEL_DEADLINE} s, though the forward is open: run 'make up', then this again."
}
