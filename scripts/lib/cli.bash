# cli: how a script begins and ends: --help from its own header, the exit-status table, the one EXIT trap.
# shellcheck shell=bash

# The exit statuses of every command, the same in py/verl_regress/errors.py (a test holds the two together).
declare -grA CLI_STATUS=(
  [0]='succeeded'
  [1]='our own error'
  [2]='bad input, nothing was created'
  [3]='job failed'
  [4]='stopped'
  [5]='not schedulable in time'
  [6]='stalled'
  [7]='node or driver lost'
  [8]='cluster unreachable'
  [9]='a verification check failed'
)

# cli::begin "$@": prints the header as help on --help, and puts the script's result on its last line.
cli::begin() {
  CLI_NAME=$(basename "$0")
  CLI_STARTED=${EPOCHREALTIME}
  CLI_CLEANUPS=()
  CLI_IF_INTERRUPTED=(true)
  case ${1:-} in
    -h | --help)
      cli::help
      exit 0
      ;;
  esac
  trap 'cli::_end "$?"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

# cli::help: the comment block at the top of the script is its manual; written once, printed from there.
cli::help() { sed -n '2,/^[^#]/{ /^#/!q; s/^# \{0,1\}//; p; }' "$0"; }

# cli::die STATUS SENTENCE: one sentence with the value, where it came from, and the cure.
cli::die() {
  local status=$1
  shift
  log::error "$@"
  exit "$status"
}

# cli::shown TEXT: a user's value as a sentence shows it, on one line and not without end.
cli::shown() {
  local text=${1//[[:cntrl:]]/?}
  ((${#text} <= 200)) || text="${text::200}… (${#1} characters)"
  printf '%s\n' "$text"
}

# cli::on_exit COMMAND...: an argv to run when the script ends, last registered first.
cli::on_exit() { CLI_CLEANUPS+=("$(printf '%q ' "$@")"); }

# cli::on_interrupt COMMAND...: the argv to run when a signal ends the script (Ctrl-C).
cli::on_interrupt() { CLI_IF_INTERRUPTED=("$@"); }

# cli::temp_dir NAME: a directory in the variable NAME, removed when the script ends.
cli::temp_dir() {
  local -n _dir=$1
  _dir=$(mktemp -d "${TMPDIR:-/tmp}/verl-regress.XXXXXX")
  cli::on_exit rm -rf -- "$_dir"
}

cli::seconds_since() { awk -v a="$1" -v b="${EPOCHREALTIME}" 'BEGIN { printf "%.1f", b - a }'; }

cli::_end() {
  local status=$1 i
  set +e
  ((status != 130 && status != 143)) || "${CLI_IF_INTERRUPTED[@]}"
  for ((i = ${#CLI_CLEANUPS[@]} - 1; i >= 0; i--)); do
    eval "${CLI_CLEANUPS[i]}"
  done
  local seconds
  seconds=$(cli::seconds_since "$CLI_STARTED")
  if ((status == 0)); then
    log::_line '==' '1' "${CLI_NAME%.sh}: done in ${seconds} s"
  else
    log::error "${CLI_NAME%.sh}: exit ${status} (${CLI_STATUS[$status]:-ended by a signal or a tool}) after ${seconds} s"
  fi
  [[ -z ${PHASES_FILE:-} ]] || cli::_record "$seconds"
}

cli::_record() { mkdir -p "$(dirname "$PHASES_FILE")" && printf '%s\t%s\n' "${CLI_NAME%.sh}" "$1" >>"$PHASES_FILE"; }
