#!/usr/bin/env bash
# 58_jobs: all jobs, the latest first: id, workload, code, status, attempts, steps done, creation time, and why if it did not
# succeed. Reads the jobs' own directories, with the cluster up or down: without Ray a job that recorded no end is UNKNOWN.
#
#   scripts/58_jobs.sh          JSON=1 LIMIT=1000 scripts/58_jobs.sh
#
# Knobs: CLUSTER_NAME JSON LIMIT
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
log::while 'reading the jobs' -- helper::read jobs "--knobs=$(knob::as_json)"
