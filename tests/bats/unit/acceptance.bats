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

@test "a CODE_ID that names no snapshot is refused first, and none is made of it" {
  run make -n -C "$REPO" --no-print-directory acceptance
  [[ ${lines[0]} == 'scripts/67_acceptance.sh --check' && $output != *snapshot* ]]
  stub docker
  printf '%s\n' SUITE=rehearsal ONLY=imports SESSION=latest >"${HERE}/env/local.env"
  sandbox::run scripts/67_acceptance.sh --check
  assert_status 0
  [[ -z $output ]] || fail 'it says something before the run'
  sandbox::run CODE_ID=codeX scripts/67_acceptance.sh --check
  assert_error 2 "CODE_ID=codeX (from the command line or environment) is no snapshot in ${BOX}/work dir/shared/common/code/verl: make it with 'make snapshot CODE_ID=codeX'."
  sandbox::run CODE_ID=codeX VERL_SOURCE=pypi:0.9.1 scripts/67_acceptance.sh --check # it is made of that
  assert_status 0
  refute_called 'docker exec'
}

@test "an interrupted step names the job that it leaves" {
  cat >"${HERE}/scripts/interrupted.sh" <<'SH'
source "$(dirname "$0")/lib/regress.bash"
cli::begin
cli::temp_dir ACCEPTANCE_FILES
over() { echo ppo-1 >"${ACCEPTANCE_FILES}/ppo.job"; }
trains() {
  echo sft-1 >"${ACCEPTANCE_FILES}/sft.job"
  kill -INT "$$"
  wait::until 60 - false
}
acceptance::step ppo '' over
acceptance::step sft '' trains
SH
  sandbox::run scripts/interrupted.sh
  assert_status 130
  assert_line "        sft-1 keeps running: 'make wait JOB=sft-1' follows it, 'make stop JOB=sft-1' ends it"
  refute_text ppo-1
}

@test "a CODE_ID that was typed, and the knobs of a session, change no step" {
  cat >"${HERE}/scripts/steps.sh" <<'SH'
source "$(dirname "$0")/lib/regress.bash"
cli::begin
env::load
cli::temp_dir ACCEPTANCE_FILES
echo ppo-1 >"${ACCEPTANCE_FILES}/ppo.job"
helper::run_in() { :; }
secret::read_all() { :; }
job::_begin() { echo "begun $3"; }
job::follow() { echo "followed $1" >&2; }
deps::ensure_judge() { :; }
verify::begin() { echo "ONLY=${ONLY} SESSION=${SESSION} JSON=${JSON} ${SUITE##*/}"; }
verify::run() { :; }
node::get() {
  mkdir -p "${ACCEPTANCE_FILES}/verl/workers/utils"
  echo 'loss_mask_flatten = torch.roll(x)' >"${ACCEPTANCE_FILES}/verl/workers/utils/losses.py"
  tar -C "$ACCEPTANCE_FILES" -c ./verl
}
acceptance::resume
acceptance::verify
SH
  sandbox::run CODE_ID=codeB ONLY=imports SESSION=latest JSON=1 SUITE=rehearsal scripts/steps.sh
  assert_status 0
  assert_line 'followed begun resume'
  assert_line 'ONLY= SESSION= JSON= suite.yaml'
}
