#!/usr/bin/env bats
# The steps of `make acceptance`: each is recorded, however it ends; what a report says of them: tests/session/test_acceptance.py.

setup() {
  load ../test_helper
  sandbox::make
}

@test "a failed step is recorded and ends no other; a step without its job does not run" {
  cat >"${HERE}/scripts/steps.sh" <<'SH'
source "$(dirname "$0")/lib/regress.bash"
cli::begin
cli::temp_dir ACCEPTANCE_FILES
refused() { cli::die 2 'The value is refused: use another.'; }
failing() {
  env::give WORKLOAD sft
  false
  echo 'it went on'
}
trained() { echo "job of ${WORKLOAD-nothing}" | tee "${ACCEPTANCE_FILES}/ppo.job"; }
acceptance::step a '' refused
acceptance::step b '' failing
acceptance::step resume ppo echo resumed
acceptance::step ppo '' trained
acceptance::step resume ppo echo resumed
cat "${ACCEPTANCE_FILES}"/{a,b,ppo,resume}.log
cut -f 1,2 "${ACCEPTANCE_FILES}/steps"
SH
  sandbox::run scripts/steps.sh 2>/dev/null
  assert_status 0
  [[ $(grep -vE '^(==|        )' <<<"$output" | tail -n 7) == "error   The value is refused: use another.
job of nothing
resumed
a	2
b	1
ppo	0
resume	0" ]] || fail "$output"
  [[ $output != *'it went on'* ]]
}

@test "knobs that would make another report are refused" {
  cat >"${HERE}/scripts/begin.sh" <<'SH'
source "$(dirname "$0")/lib/regress.bash"
cli::begin
env::load_knobs
acceptance::begin
SH
  sandbox::run PROFILE=cpu SUITE=rehearsal scripts/begin.sh
  assert_error 2 "SUITE='rehearsal' (from the command line or environment) is not for this session: the report must say the same of every installation; leave it out."
}
