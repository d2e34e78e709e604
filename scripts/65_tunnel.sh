#!/usr/bin/env bash
# 65_tunnel: the ssh command that forwards the dashboard to where you sit, as one line on stdout for each connection. With containers
# the line is for the machine in front of you, and leads to this host; with TRANSPORT=ssh it is for this host, and leads to the nodes.
#
#   scripts/65_tunnel.sh
#
# `make debugger` prints those to a job's breakpoints.
#
# Knobs: DASHBOARD_PORT
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
owner::need_own head
nodes::show_forwards "${DASHBOARD_PORT}:head:8265"
