#!/usr/bin/env bash
# 64_dashboard: where Ray's dashboard is, the file with its token, and how to log in, as three lines on stdout. Checks that it answers
# and takes the token; with TRANSPORT=ssh the head checks it, because the dashboard listens only there.
#
#   scripts/64_dashboard.sh
#
# Knobs: DASHBOARD_PORT
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
owner::need_own head
dashboard::check
dashboard::show
