#!/usr/bin/env bats
# Progress lines while a command runs (log::while), with a fake clock, and paths as they are on this host.

setup() {
  load ../test_helper
  sandbox::make
}

# Each read of the pulse is one second, SECONDS_LEFT of them.
# shellcheck disable=SC2016  # expanded in the script that is written there
fake_clock='read() { SECONDS=$((SECONDS + 1)) && ((SECONDS <= SECONDS_LEFT)) && return 142 || return 1; }; SECONDS=0'

@test "a log has a line every ten seconds, and one a minute after five minutes" {
  sandbox::lines SECONDS_LEFT=500 <<<"${fake_clock}; log::_pulse 0 'building the image'"
  assert_status 0
  mapfile -t seconds < <(sed -nE 's/^ {8}… building the image, ([0-9]+) s$/\1/p' <<<"$output")
  [[ ${seconds[0]} == 9 && ${seconds[1]} == 18 && ${#seconds[@]} == 37 ]] || fail "${#seconds[@]} lines: ${seconds[*]}"
}

@test "a detail is added" {
  sandbox::lines SECONDS_LEFT=20 <<<"${fake_clock}; log::_pulse 80 'fetching' echo 12 of 149 wheels"
  [[ $output == *'… fetching, 12 of 149 wheels, 2 s'*'… fetching, 12 of 149 wheels, 20 s'* ]] || fail 'no detail'
}

@test "a terminal has one line that is written over, cut to its width" {
  sandbox::lines SECONDS_LEFT=3 <<<"${fake_clock}; log::_pulse 30 'loading something with a long name'"
  [[ $output == *$'\e[K        … loading something w\r\e[K        … loading something w\r'* ]] || fail "$(cat -v <<<"$output")"
}

@test "log::while leaves the command's status, input, output and shell alone" {
  sandbox::lines <<'LINES'
work() { cat; variable=set; return "$1"; }
log::while working -- work 0 <<<"from stdin"
log::while working -- work 3 </dev/null || echo "status $?, variable ${variable}, pulse '${LOG_PULSE}'"
answer=$(log::while working -- work 0 <<<"an answer")
echo "$answer"
echo piped | log::while working -- work 0
LINES
  assert_status 0
  assert_line 'from stdin'
  assert_line "status 3, variable set, pulse ''"
  assert_line 'an answer'
  assert_line 'piped'
}

@test "what ends the script inside of log::while ends it at once, with every process" {
  sandbox::lines <<'LINES'
dies() { echo "$LOG_PULSE" >"$TMPDIR/pulse"; cli::die 8 "No answer: try again."; }
log::while waiting -- dies
LINES
  assert_error 8 'No answer: try again.'
  [[ ! -e /proc/$(<"${BOX}/tmp/pulse") ]] || fail 'the pulse goes on'
  sandbox::lines <<<$'fails() { false; echo went on; }\nlog::while waiting -- fails\necho went on'
  assert_status 1
  refute_text 'went on'
}

@test "paths of the nodes are shown as on this host, and the dashboard with its token" {
  sandbox::lines WORKDIR="${BOX}/work dir" DASHBOARD_PORT=8300 CLUSTER_NAME=mine <<<'
    nodes::shown /private/jobs/a
    nodes::shown /private
    nodes::shown /privateer/a
    dashboard::tell'
  assert_line "${BOX}/work dir/shared/jobs/a"
  assert_line "${BOX}/work dir/shared"
  assert_line '/privateer/a'
  assert_line "ok      dashboard: http://127.0.0.1:8300, token in ${BOX}/work dir/secrets/mine.token"
}

@test "the helper gets the host's path and the terminal's width" {
  stub docker '[[ $* != *inspect* ]] || echo true'
  sandbox::lines WORKDIR="${BOX}/work dir" <<<'helper::run head jobs'
  assert_called "run.py --shared-root /private --shown-root=${BOX}/work dir/shared --terminal=0 jobs"
}
