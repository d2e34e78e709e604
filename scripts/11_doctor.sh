#!/usr/bin/env bash
# 11_doctor: can these nodes train together? Tries, on all nodes at once and before Ray is up, what Ray, Gloo and NCCL will do there, and
# prints what was tried, between whom, what was seen, what it means and the cure; docs/doctor.md explains the codes. Changes nothing.
# Exit status 9 if there is an alarm. While a job trains it leaves out what would disturb it.
#
#   scripts/11_doctor.sh          JSON=1 scripts/11_doctor.sh
#   scripts/11_doctor.sh --gate   only the quick checks (a second or two, docs/doctor.md), and only alarms are printed: `make up`
#
# Knobs: CLUSTER_NAME JSON SKIP_DOCTOR
source "$(dirname "$0")/lib/regress.bash"
cli::begin_with --gate "$@"
env::load
owner::need_own head
if [[ ${1:-} == --gate ]]; then
  doctor::gate
  log::ok "the nodes reach each other ('make doctor' checks all that they can do together)"
else
  log::while 'checking what the nodes can do together' -- doctor::run
fi
