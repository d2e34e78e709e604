# wait: for a fact, with a deadline and an early abort; never for a number of seconds.
# shellcheck shell=bash

# wait::until SECONDS ABORT FACT...: asks FACT (an argv, exit 0 = true) until it holds: 0. Gives up at the deadline: 1.
# ABORT (the name of a question, or - for none) is asked between two looks and ends the wait early: 2.
wait::until() {
  local deadline=$((SECONDS + $1)) abort=$2
  shift 2
  until "$@"; do
    [[ $abort == - ]] || ! "$abort" || return 2
    ((SECONDS < deadline)) || return 1
    sleep 0.2 # between two looks at the fact
  done
}
