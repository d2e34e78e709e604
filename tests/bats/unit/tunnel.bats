#!/usr/bin/env bats
# The way to the dashboard: the lines that `make tunnel` prints, the port that `make check` needs, and values that cannot be.

setup() {
  load ../test_helper
  sandbox::make
  printf '%s\n' 'head me@10.0.0.1' 'worker-0 me@10.0.0.2:2222' 'worker-1 me@10.0.0.3' >"${HERE}/env/nodes"
  mkdir -p "${BOX}/root/proc/net"
  nobody_listens
}

# The kernel's list of sockets, as proc_net_tcp(5) says: a connection to port 8265, which is no listener.
nobody_listens() {
  printf '  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n' >"${BOX}/root/proc/net/tcp"
  socket 0100007F:2049 01
}
socket() { printf '   0: %s 00000000:0000 %s 00000000:00000000 00:00000000 00000000 0        0 77 1 0 100 0 0 10 0\n' "$1" "$2" >>"${BOX}/root/proc/net/tcp"; }

# on_ssh [KNOB=VALUE...] ARGV...
on_ssh() { sandbox::verb TRANSPORT=ssh "$@"; }

@test "over ssh there is a line for each port, with the user's settings" {
  on_ssh nodes::show_forwards 8265:head:8265 5678:worker-0:40001
  assert_status 0
  assert_line 'ssh -N -L 8265:127.0.0.1:8265 me@10.0.0.1'
  assert_line 'ssh -N -p 2222 -L 5678:127.0.0.1:40001 me@10.0.0.2'
  on_ssh SSH_CONFIG='/my files/config' nodes::show_forwards 9000:head:8265
  assert_line 'ssh -N -F /my\ files/config -L 9000:127.0.0.1:8265 me@10.0.0.1'
}

@test "make debugger asks the helper once, and prints the page and the forwards" {
  # shellcheck disable=SC2016  # expanded when the script runs
  printf '%s\n' 'source "$(dirname "$0")/lib/regress.bash"' cli::begin env::load \
    'helper::run() { printf "%s\n" "$*" >>"${HOST_ROOT}/asked" && printf "%b" "$(<"${HOST_ROOT}/answer")" && [[ -e ${HOST_ROOT}/answer ]]; }' \
    'tunnel::show_breakpoints job' >"${HERE}/scripts/show.sh"
  printf 'TASK\\n\\n{}\\0worker-0 4711\\nworker-1 4712\\0' >"${BOX}/root/answer"
  sandbox::run TRANSPORT=ssh scripts/show.sh
  assert_status 0
  assert_line '{}'
  assert_line 'ssh -N -p 2222 -L 5678:127.0.0.1:4711 me@10.0.0.2'
  assert_line 'ssh -N -L 5679:127.0.0.1:4712 me@10.0.0.3'
  [[ $(<"${BOX}/root/asked") == 'head breakpoints job --with-ports' ]] || fail "$(<"${BOX}/root/asked")"
}

@test "make check: the dashboard's port is free, our own, or taken" {
  stub docker - <<'END'
[[ $1 != port ]] || cat "${BOX}/published" 2>/dev/null || true
END
  socket 0200A8C0:2049 0A
  sandbox::verb prereq::port
  assert_status 0
  assert_line 'ok      port 127.0.0.1:8265 is free'
  socket 0100007F:2049 0A
  sandbox::verb prereq::port
  assert_error 1 "Port 127.0.0.1:8265 (DASHBOARD_PORT, from env/defaults.env) is taken by another process ('ss -ltnp' shows which): end that process, or set DASHBOARD_PORT to a free port."
  nobody_listens
  socket 00000000:2049 0A
  sandbox::verb prereq::port
  assert_status 1
  printf '127.0.0.1:8265\n' >"${BOX}/published"
  sandbox::verb prereq::port
  assert_status 0
  assert_line "ok      port 127.0.0.1:8265 is our own dashboard's"
}
