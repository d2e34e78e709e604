#!/usr/bin/env bash
# 50_status: the profile, the nodes with their resources, and the jobs with code id, status and driver node; for a running job, its last
# step and how long ago that was. If the cluster belongs to another checkout, it names the owner and shows your own jobs.
#
#   scripts/50_status.sh          JSON=1 scripts/50_status.sh
#
# Knobs: JSON LIMIT
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
args=(--profile "$PROFILE_TITLE" "--knobs=$(knob::as_json)")
if [[ -n $(owner::other head) ]]; then
  helper::read status "${args[@]}"
  exit
fi
owner::need_own head
log::while 'asking Ray' -- helper::ask head status "${args[@]}"
