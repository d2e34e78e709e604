# log: what a person reads on the terminal. Everything goes to stderr, so that stdout stays for answers.
# shellcheck shell=bash

# Counted from here: what the environment says would be reckoned out, and in Bash that may run a command.
LOG_CHANGES=0

log::_colour() { [[ -t 2 && -z ${NO_COLOR:-} ]] && printf '\e[%sm' "$1" >&2 || true; }

log::_line() {
  local word=$1 colour=$2
  shift 2
  log::_colour "$colour"
  printf '%-8s' "$word" >&2
  log::_colour 0
  printf '%s\n' "$*" >&2
}

log::step() { log::_line '==' '1' "$@"; }    # a phase begins
log::info() { log::_line '' '0' "$@"; }      # a fact worth reading
log::ok() { log::_line 'ok' '32' "$@"; }     # looked, and it is as it should be
log::skip() { log::_line 'skip' '36' "$@"; } # nothing to do, and why

log::changed() { # we changed something
  LOG_CHANGES=$((LOG_CHANGES + 1))
  log::_line 'changed' '33' "$@"
}

# log::verdict WHAT: says so when nothing had to be changed since the script began.
log::verdict() { ((LOG_CHANGES > 0)) || log::skip "$1 (nothing to change)"; }

log::warn() { log::_line 'warning' '35' "$@"; }
log::error() { log::_line 'error' '31' "$@"; }
