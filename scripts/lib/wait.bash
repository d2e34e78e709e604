# wait: for a condition, never for a duration; with a deadline and an early abort.
# shellcheck shell=bash

# wait::until SECONDS ABORT FACT...: runs FACT (an argv, exit 0 = true) until it is true: returns 0. At the deadline: returns 1.
# ABORT (the name of a check, or - for none) runs between two attempts and ends the wait early: returns 2.
wait::until() {
  local deadline=$((SECONDS + $1)) abort=$2
  shift 2
  until "$@"; do
    [[ $abort == - ]] || ! "$abort" || return 2
    ((SECONDS < deadline)) || return 1
    sleep 0.2 # between two attempts
  done
}
