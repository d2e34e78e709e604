#!/usr/bin/env bash
# 67_acceptance: does this installation keep its promises? One report, on a cluster that is up and prepared. Exit status: 0 if no check failed,
# 9 if one did. It makes the snapshot CODE_ID of VERL_SOURCE; a CODE_ID without a VERL_SOURCE names one that exists already.
#
#   scripts/67_acceptance.sh               what this profile has
#   scripts/67_acceptance.sh --training    with the section training on any profile, such as a rehearsal of it with PROFILE=cpu
#   scripts/67_acceptance.sh --check       only looks whether CODE_ID is there; needs no cluster
#
# installation: an SFT of 4 steps with a secret, for which every node's processes, all outputs and Ray's answers are searched; a second
# prepare; debug bundles; who can change what a job wrote. training, on GPUs: GRPO and PPO of 3 steps, a resumed PPO, and a session of SFT
# that must find a planted fault. What did not run is listed as "skip". The report is in ${SHARED_ROOT}/acceptance/<time>/: report.txt,
# report.json, and acceptance.tar.gz, a file to send, with the logs and the records of the jobs; secrets are hidden in all of them.
#
# Knobs: CODE_ID VERL_SOURCE OVERRIDES ALLOW_MISMATCH PENDING_TIMEOUT START_TIMEOUT STALL_TIMEOUT UNREACHABLE_TIMEOUT
source "$(dirname "$0")/lib/regress.bash"
cli::begin_with '--training --check' "$@"
env::load
acceptance::check
[[ ${1:-} != --check ]] || exit 0
helper::ensure
acceptance::begin
acceptance::step sft '' acceptance::train_with_secret
acceptance::step prepare '' acceptance::prepare
acceptance::step bundles sft acceptance::bundle
if [[ ${1:-} == --training || $PROFILE != cpu ]]; then
  acceptance::step grpo '' acceptance::train grpo 3
  acceptance::step ppo '' acceptance::train ppo 3
  acceptance::step resume ppo acceptance::resume
  acceptance::step verify '' acceptance::verify
fi
acceptance::report
