# cli: how a script starts and ends: --help from its own header, the exit-status table, the only EXIT trap.
# shellcheck shell=bash

# The exit statuses of every command, the same as in py/verl_regress/base/errors.py (a test compares them).
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
  [9]='a verification check failed, or B regressed'
  [10]='B changed'
  [11]='inconclusive'
  [12]='A and B are incomparable'
)

# cli::begin "$@": the first line of a script that takes no arguments; see cli::begin_with.
cli::begin() { cli::begin_with '' "$@"; }

# cli::begin_with WORDS "$@": refuses unknown arguments (see cli::accept), and prints the script's result as its last line.
cli::begin_with() {
  CLI_NAME=${0##*/}
  CLI_STARTED=${EPOCHREALTIME}
  CLI_SHELL=$BASHPID
  CLI_CLEANUPS=()
  CLI_PARTS=()
  CLI_IF_INTERRUPTED=(true)
  CLI_IS_CHECK=''
  [[ " ${*:2} " != *' --check '* ]] || CLI_IS_CHECK=1 # of a run that begins with it: "done" is not its first word
  cli::accept "$@"
  trap 'cli::_end "$?"' EXIT
  # A second Ctrl-C or SIGTERM cuts no cleanup short, and hides no last word.
  trap "trap '' INT; trap : TERM; exit 130" INT
  trap "trap '' INT; trap : TERM; exit 143" TERM
}

# cli::accept WORDS ARGUMENT...: --help prints the header. Refuses an argument that is not in WORDS, and words that make was given
# and does not know. WORDS are separated by spaces: a literal word (--engine), or [FILE] for any argument that does not begin with a
# dash. At most one argument is accepted, unless the last word is "...".
cli::accept() {
  local words=$1 argument hint
  shift
  for argument in "$@"; do
    if [[ $argument == -h || $argument == --help ]]; then
      cli::help
      exit 0
    fi
  done
  cli::_check_make
  for argument in "$@"; do
    ! cli::_is_accepted "$argument" "${words% ...}" || continue
    hint=''
    [[ $argument != *=* ]] || hint=", and give knobs before the command, as in 'WORKERS=3 ...'"
    cli::die 2 "'$(cli::shown "${argument/=*/=…}")' is not an argument of ${0##*/}: see --help${hint}." # what follows a = may be a secret
  done
  (($# <= 1)) || [[ $words == *' ...' ]] || cli::die 2 "${0##*/} takes one argument and got $#: see --help."
}

# cli::_is_accepted ARGUMENT WORDS: KNOB=VALUE is never a file, because knobs belong before the command.
cli::_is_accepted() {
  [[ -n $1 ]] || return 1
  [[ $1 == *' '* || " $2 " != *" $1 "* ]] || return 0
  [[ $2 == *'['* && $1 != -* && ! $1 =~ ^[A-Z][A-Z0-9_]*= ]]
}

# cli::_check_make: the first script that make runs refuses the words that make was given and does not know (see the Makefile), knobs that
# none of its targets reads, and keys of env/local.env that are not knobs, even if it reads none.
cli::_check_make() {
  local word _ nearest use=use names=()
  if [[ -z ${MAKE_UNKNOWN_KNOBS-}${MAKE_UNKNOWN_GOALS-} ]]; then
    [[ ! -v MAKE_GIVEN ]] || (env::read_local) || exit "$?"
    [[ ${REGRESS_SAID:-} == 1 ]] || (typed::check) || exit "$?"
    return
  fi
  if read -r word _ <<<"${MAKE_UNKNOWN_KNOBS-}" && [[ -n $word ]]; then
    knob::read
    knob::refuse_name "$word" "on make's command line"
  fi
  read -r word _ <<<"$MAKE_UNKNOWN_GOALS"
  mapfile -t names < <(sed -nE 's/^([a-z][a-z-]*):.*## .*/\1/p' "${REPO_DIR}/Makefile")
  nearest=$(spelling::nearest "$word" "${names[@]}")
  [[ -z $nearest ]] || use=Use
  cli::die 2 "'$(cli::shown "$word")' is not a target of make: ${nearest:+did you mean ${nearest}? }${use} one of those that 'make' lists."
}

# cli::help: the comment block at the top of the script is its manual; it is written once and printed from there.
cli::help() (cd "$CALLER_DIR" && sed -n '2,/^[^#]/{ /^#/!q; s/^# \{0,1\}//; p; }' "$0")

# cli::die STATUS SENTENCE: one sentence with the value, where it came from, and the cure.
cli::die() {
  local status=$1
  shift
  log::error "$*"
  exit "$status"
}

# cli::shown TEXT: a user's value as a message shows it: on one line, with limited length.
cli::shown() {
  local text=${1::200}
  text=${text//[[:cntrl:]]/?}
  ((${#1} <= 200)) || text+="… (${#1} characters)"
  printf '%s\n' "$text"
}

# cli::on_exit COMMAND...: an argv to run when the script ends, last registered first. In a subshell, when that ends: what is added to
# an array there is unknown to the script.
cli::on_exit() {
  [[ ${CLI_SHELL:-$BASHPID} == "$BASHPID" ]] || cli::_own_cleanups
  CLI_CLEANUPS+=("${*@Q}")
}

# cli::_own_cleanups: this subshell has no part and no cleanup yet, and runs its own when it ends.
cli::_own_cleanups() {
  CLI_SHELL=$BASHPID CLI_CLEANUPS=() CLI_PARTS=()
  trap 'set +e; cli::_clean_up' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

# cli::on_interrupt COMMAND...: the argv to run when a signal ends the script (Ctrl-C).
cli::on_interrupt() { CLI_IF_INTERRUPTED=("$@"); }

# cli::temp_dir NAME: a directory in the variable NAME, removed when the script ends, or the subshell that made it.
cli::temp_dir() {
  local -n _dir=$1
  _dir=$(mktemp -d "${TMPDIR:-/tmp}/verl-regress.XXXXXX")
  cli::on_exit rm -rf -- "$_dir"
}

# cli::part COMMAND...: runs COMMAND in the background, with its own cleanups. cli::await_parts waits for all parts.
cli::part() {
  ((${#CLI_PARTS[@]})) || cli::on_exit cli::_end_parts
  set -m # a separate process group: one signal ends all of it, and Ctrl-C reaches it through us
  {
    cli::_own_cleanups
    "$@"
  } </dev/null &
  set +m
  CLI_PARTS+=("$!")
}

# cli::await_parts: waits until every part has succeeded. The first failure, which said why, ends the script and the other parts.
cli::await_parts() {
  while ((${#CLI_PARTS[@]})); do
    wait::until 86400 - cli::has_part_ended || continue
    wait "${CLI_PARTS[CLI_ENDED]}" || exit "$?"
    unset "CLI_PARTS[CLI_ENDED]"
  done
}

# cli::has_part_ended: one of them has; await_parts then ends the script if it failed.
cli::has_part_ended() {
  for CLI_ENDED in "${!CLI_PARTS[@]}"; do
    kill -0 "${CLI_PARTS[CLI_ENDED]}" 2>/dev/null || return 0
  done
  return 1
}

# Each part cleans up after itself, so wait for it. SIGINT first, because Bash prints no line for a process that it ends. A part
# that was started with SIGINT ignored gets SIGTERM, but not earlier: a second signal would interrupt the cleanup.
cli::_end_parts() {
  local signal part
  for signal in INT TERM; do
    for part in "${CLI_PARTS[@]}"; do kill -s "$signal" -- "-${part}" 2>/dev/null; done
    ! wait::until 10 - cli::_have_parts_ended || break
  done
  wait "${CLI_PARTS[@]}"
}

cli::_have_parts_ended() { ! kill -0 "${CLI_PARTS[@]}" 2>/dev/null; } # true if none of them takes a signal

cli::_end() {
  local status=$1 tenths seconds
  set +e
  log::end_pulse
  ((status != 130 && status != 143)) || "${CLI_IF_INTERRUPTED[@]}"
  cli::_clean_up
  tenths=$(((${EPOCHREALTIME/./} - ${CLI_STARTED/./}) / 100000))
  seconds="$((tenths / 10)).$((tenths % 10))"
  if ((status != 0)); then
    log::error "${CLI_NAME%.sh}: exit ${status} (${CLI_STATUS[$status]:-ended by a signal or a tool}) after ${seconds} s"
  elif [[ -z $CLI_IS_CHECK ]]; then
    log::_line '==' '1' "${CLI_NAME%.sh}: done in ${seconds} s"
  fi
  [[ -z ${PHASES_FILE:-} ]] ||
    { mkdir -p "$(dirname "$PHASES_FILE")" && printf '%s\t%s\n' "${CLI_NAME%.sh}" "$seconds" >>"$PHASES_FILE"; }
}

cli::_clean_up() {
  local i
  for ((i = ${#CLI_CLEANUPS[@]} - 1; i >= 0; i--)); do
    eval "${CLI_CLEANUPS[i]}"
  done
}
