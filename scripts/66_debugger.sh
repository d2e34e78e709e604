#!/usr/bin/env bash
# 66_debugger: for a job that was submitted with DEBUGGER=1, the breakpoints in which it waits: task, file, line, node and port, a
# configuration with which VS Code attaches, and the command that forwards the ports. Changes nothing.
#
#   JOB=latest scripts/66_debugger.sh          JSON=1 JOB=latest scripts/66_debugger.sh
#
# Knobs: JOB JSON
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
helper::ensure
if [[ $JSON == 1 ]]; then
  helper::run head breakpoints "$JOB" --json
else
  tunnel::show_breakpoints "$JOB"
fi
