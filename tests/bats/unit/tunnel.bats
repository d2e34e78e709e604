#!/usr/bin/env bats
# The way to the dashboard: the lines that `make tunnel` prints, the port that `make check` needs, and values that cannot be.

setup() {
  load ../test_helper
  sandbox::make
  printf '%s\n' 'head me@10.0.0.1' 'worker-0 me@10.0.0.2:2222' 'worker-1 me@10.0.0.3' >"${HERE}/env/nodes"
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
  stub timeout 'exit 1' # bash -c 'exec 3<>/dev/tcp/…'
  sandbox::verb prereq::port
  assert_status 0
  assert_line 'ok      port 127.0.0.1:8265 is free'
  assert_called 'listens 8265'
  stub timeout
  sandbox::verb prereq::port
  assert_error 1 "Port 127.0.0.1:8265 (DASHBOARD_PORT, from env/defaults.env) is taken by another process ('ss -ltnp' shows which): set DASHBOARD_PORT to a free port, or end that process."
  printf '127.0.0.1:8265\n' >"${BOX}/published"
  sandbox::verb prereq::port
  assert_status 0
  assert_line "ok      port 127.0.0.1:8265 is our own dashboard's"
}
