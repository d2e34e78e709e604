#!/usr/bin/env bats
# cli::part: steps that run at the same time; a failure or an interrupt ends all of them, and each cleans up after itself.

# bats file_tags=slow

setup() {
  bats_require_minimum_version 1.5.0
  load ../test_helper
  sandbox::make
  mkfifo "${BOX}/begun" "${BOX}/never"
}

# script: one that can use BOX and runs what is on stdin; `stays` is a part that says it has started, keeps a temporary folder, and
# does not end.
script() {
  {
    printf 'BOX=%q\n' "$BOX"
    cat <<'SH'
source "$(dirname "$0")/lib/regress.bash"
stays() {
  cli::temp_dir mine
  touch "${mine}/x"
  bash -c 'echo $$ >>"$1/pids"; echo >"$1/begun"; exec cat "$1/never"' - "$BOX"
}
cli::begin
SH
    cat
  } >"${HERE}/scripts/parts.sh"
}

all_is_over() {
  while read -r pid; do run ! kill -0 "$pid"; done <"${BOX}/pids"
  [[ -s ${BOX}/pids && -z $(ls "${BOX}/tmp") ]] || fail 'something is left'
}

@test "all parts are waited for, also one that ended long ago" {
  script <<'SH'
cli::part true
cli::part touch "${BOX}/a"
until [[ -e ${BOX}/a ]]; do :; done
cli::part touch "${BOX}/b"
cli::await_parts
[[ -e ${BOX}/b ]]
cli::await_parts
SH
  sandbox::run scripts/parts.sh
  assert_status 0
}

@test "the first failing part decides: its status, its sentence, and the others end" {
  script <<'SH'
fails() { read -r <"${BOX}/begun"; cli::die 2 "This is why."; }
cli::part stays
cli::part fails
log::while waiting -- cli::await_parts
SH
  sandbox::run scripts/parts.sh
  assert_status 2
  [[ ${lines[0]} == 'error   This is why.' && ${lines[1]} == 'error   parts: exit 2 '* && ${#lines[@]} == 2 ]] || fail 'more was said'
  all_is_over
}

@test "Ctrl-C and a kill end them too" {
  script <<'SH'
cli::part stays
log::while waiting -- cli::await_parts
SH
  for signal in INT TERM; do
    rm -f "${BOX}/pids"
    run python3 - "$BOX" "$HERE" "$signal" <<'PYTHON'
import signal, subprocess, sys
box, here, name = sys.argv[1:]
env = {"HOME": f"{box}/home dir", "PATH": f"{box}/bin", "TMPDIR": f"{box}/tmp", "NO_COLOR": "1"}
script = subprocess.Popen([f"{box}/bin/bash", f"{here}/scripts/parts.sh"], env=env)
open(f"{box}/begun").read()
script.send_signal(getattr(signal, f"SIG{name}"))
sys.exit(script.wait(60))
PYTHON
    if [[ $signal == INT ]]; then assert_status 130; else assert_status 143; fi
    all_is_over
  done
}
