# attached: a subcommand of the helper in the head that ends when this script does. An engine passes neither Ctrl-C nor the end of a
# terminal into a container, so the subcommand ends with its stdin: a pipe that only this shell holds open. A network that dies closes
# nothing, so the stream has a byte each second, and a session that is driven over a network ends if none comes
# (py/verl_regress/jobs/watch.py).
# shellcheck shell=bash

# attached::begin: makes that pipe. Sets ATTACHED_SAID, the file that gets the stdout of each attached::run.
attached::begin() {
  local dir
  cli::temp_dir dir
  ATTACHED_SAID=${dir}/said ATTACHED_PIPE=${dir}/open ATTACHED_CUT=$SECONDS
  mkfifo "$ATTACHED_PIPE"
  : >"$ATTACHED_SAID"
  exec {ATTACHED_OPEN}<>"$ATTACHED_PIPE"
}

# attached::run FEED SUBCOMMAND ARGS...: runs the subcommand in the head; on its stdin what the function FEED prints, then the bytes. Sets
# ATTACHED_STATUS, which may not be its own: whether it has ended by itself, its stdout says.
attached::run() {
  local feed=$1
  ATTACHED_STATUS=0 ATTACHED_BEGAN=$SECONDS
  # A subshell: a head that goes away ends it, not us.
  (
    exec {open}<"$ATTACHED_PIPE" {ATTACHED_OPEN}>&-
    helper::run_in head "${@:2}" < <("$feed" && attached::_beat "$open") >"$ATTACHED_SAID"
  ) || ATTACHED_STATUS=$?
  ((ATTACHED_STATUS != 0)) || ATTACHED_STATUS=130 # the engine's client was interrupted, if the subcommand did not say how it ended
}

# attached::_beat FD: a byte each second, until the pipe or the reader ends.
attached::_beat() {
  local _
  while read -r -t 1 _ <&"$1" || (($? > 128)); do printf . 2>/dev/null || return 0; done # more than 128: a second has passed
}

# attached::await_head DOING RUNS COMMAND: after a subcommand that did not say how it ended: waits for the head if the connection to it was
# lost; else ends the script with the subcommand's status.
attached::await_head() {
  # Unless it was killed, or the connection was lost, it ended by itself.
  ((ATTACHED_STATUS == 8 || ATTACHED_STATUS >= 125)) || ! node::is_alive head || exit "$ATTACHED_STATUS"
  ((SECONDS - ATTACHED_BEGAN < 10)) || ATTACHED_CUT=$SECONDS
  log::info "lost the connection to the head; $1 when the head is back"
  { log::while 'waiting for the head' -- wait::until "$UNREACHABLE_TIMEOUT" - attached::_is_head_back && ((SECONDS - ATTACHED_CUT <= UNREACHABLE_TIMEOUT)); } ||
    cli::die 8 "The head has not been there for ${UNREACHABLE_TIMEOUT} s (UNREACHABLE_TIMEOUT): $2 may run on; bring the cluster up with 'make up', then '$3'."
  transport::load # it may be another one than before
}

# A container that is starting counts as running but takes no command yet.
attached::_is_head_back() { node::is_alive head && (node::exec head true) >/dev/null 2>&1; }
