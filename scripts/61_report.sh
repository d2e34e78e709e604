#!/usr/bin/env bash
# 61_report: where the report of a regression session is on this host, as the one line on stdout, and its verdict. Reads files only,
# with the cluster up or down.
#
#   scripts/61_report.sh          SESSION=20261122T100000Z scripts/61_report.sh
#
# SESSION is the name of a session; empty or latest is the newest one that has a report.
#
# Knobs: SESSION
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
helper::read report "--name=${SESSION}"
