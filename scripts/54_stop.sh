#!/usr/bin/env bash
# 54_stop: stop a running or queued job and wait until it is over (a job that is over already is skipped). Then search every
# node for processes that are left of it, kill and count them. If a node cannot be reached, it says so and exits with
# status 8.
#
#   JOB=<submission id> scripts/54_stop.sh
#
# Knobs: JOB
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
helper::ensure
job::stop "$JOB"
