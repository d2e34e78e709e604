# log: what the user reads on the terminal. Everything goes to stderr, so that stdout is only for results.
# shellcheck shell=bash

# Set here, because Bash would evaluate a value from the environment as arithmetic, and that can run a command.
LOG_CHANGES=0
LOG_PULSE='' # the process that prints progress while log::while runs a command

# log::is_live: stderr is a terminal on which a line can be overwritten.
log::is_live() { [[ -t 2 && ${TERM:-dumb} != dumb ]]; }

log::_line() {
  local word live='' on='' off=''
  printf -v word '%-8s' "$1"
  ! log::is_live || live=$'\e[K' # clears the live line; the cursor is at its beginning
  [[ ! -t 2 || -n ${NO_COLOR:-} ]] || on=$'\e['"${2}m" off=$'\e[0m'
  shift 2
  printf '%s\n' "${live}${on}${word}${off}$*" >&2 # in one write: parts print at the same time
}

log::step() { log::_line '==' '1' "$@"; }    # a phase starts
log::info() { log::_line '' '0' "$@"; }      # a fact worth reading
log::ok() { log::_line 'ok' '32' "$@"; }     # checked, and it is as it should be
log::skip() { log::_line 'skip' '36' "$@"; } # nothing to do, and why

log::changed() { # we changed something
  LOG_CHANGES=$((LOG_CHANGES + 1))
  log::_line 'changed' '33' "$@"
}

# log::verdict WHAT: says so if nothing had to be changed since the script started.
log::verdict() { ((LOG_CHANGES > 0)) || log::skip "$1 (nothing to change)"; }

log::warn() { log::_line 'warning' '35' "$@"; }
log::error() { log::_line 'error' '31' "$@"; }

# log::while WHAT [DETAIL...] -- COMMAND...: runs COMMAND in this shell and returns its status; its input and output are untouched.
# Meanwhile it prints progress on stderr: a live line on a terminal, else at least one line every 10 s (every minute after 5 minutes).
# DETAIL, an argv, prints what to add to it, such as "12 of 149 wheels". Inside another log::while it prints nothing of its own.
log::while() {
  local what=$1 status columns detail=()
  shift
  until [[ $1 == -- ]]; do
    detail+=("$1")
    shift
  done
  shift
  if [[ -n $LOG_PULSE ]]; then
    "$@"
    return
  fi
  columns=$(log::columns)
  exec 9> >(log::_pulse "$columns" "$what" "${detail[@]}" >&2)
  LOG_PULSE=$!
  "$@" 9>&- # only this shell has the pipe open, so the pulse ends with it in any case
  status=$?
  log::end_pulse
  return "$status"
}

# log::end_pulse: stops the progress lines; cli::_end calls it if COMMAND ended the script.
log::end_pulse() {
  local pulse=$LOG_PULSE
  [[ -n $pulse ]] || return 0
  LOG_PULSE=''
  kill "$pulse" 2>/dev/null || true
  wait "$pulse" 2>/dev/null || true
  exec 9>&-
  ! log::is_live || printf '\e[K' >&2
}

# log::size PATH...: a DETAIL for a command that fills a directory: "12 MB so far".
log::size() { du -cm -- "$@" 2>/dev/null | awk 'END { printf "%d MB so far", $1 }'; }

# log::last_line FILE: a DETAIL for a command that writes a log: its last line, shortened.
log::last_line() { tail -n 1 -- "$1" | tr -cd '[:print:]' | cut -c1-60; }

# log::_pulse COLUMNS WHAT [DETAIL...]: runs until it is killed, or stdin ends.
log::_pulse() {
  local columns=$1 what=$2 began=$SECONDS seconds next=9 said='' line status=0
  shift 2
  ((columns == 0)) || next=2
  while true; do
    read -r -t 1 || status=$?
    ((status > 128)) || break # 1: the end of the pipe; more: a second has passed
    seconds=$((SECONDS - began))
    ((seconds >= next)) || continue
    (($# == 0)) || said=$("$@" 2>/dev/null) || said=''
    if ((columns > 0)); then
      line="        … ${what}${said:+, ${said}}, ${seconds} s"
      printf '\e[K%s\r' "${line::columns-1}" # the next one overwrites it
    else
      log::info "… ${what}${said:+, ${said}}, ${seconds} s"
      next=$((next + (next < 300 ? 9 : 60)))
    fi
  done
}

# log::columns: the width of the terminal; 0 if stderr is not a terminal on which a line can be overwritten.
log::columns() {
  local columns=0
  if log::is_live; then
    columns=$(stty size <&2 2>/dev/null | cut -d' ' -f2) || columns=0
    ((columns >= 20)) || columns=80
  fi
  printf '%s\n' "$columns"
}
