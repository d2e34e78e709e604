#!/usr/bin/env bats
# scripts/dev/calibrate.sh: what it does with a run, and how it ends; tests/py/test_calibration.py tests which runs there are.

setup() {
  load ../test_helper
  sandbox::make
}

# calibrate COMMAND...: with functions instead of a cluster, which log their calls; FAILS is the exit status of a job.
calibrate() {
  cat >"${HERE}/try" <<'SH'
source scripts/lib/regress.bash
cli::begin
source scripts/dev/release.bash
source scripts/dev/calibrate.bash
WORKDIR=${TMPDIR} VERL_SOURCE=pypi:0.9.1 CALIBRATE_A=verl-a
declare -A ENV_ORIGIN=()
did() { printf '%s\n' "$*" >>"${HOME}/did"; }
job::submit() { did "submit $1 CODE_ID=${CODE_ID} TRAIN_SEED=${TRAIN_SEED} PERTURBED=${PERTURBED} OVERRIDES=${OVERRIDES} WAIT=${WAIT} MAX_RUNNING=${MAX_RUNNING}" && echo the-job && return "${FAILS-0}"; }
job::again() { did "$1 JOB=${JOB} OVERRIDES=${OVERRIDES} WAIT=${WAIT}" && echo the-job.a2; }
job::stop() { did "stop $1"; }
node::image() { echo the-image; }
release::commit() { echo the-commit; }
calibrate::python() { did "$*"; }
snapshot::ensure() { did "snapshot $1 ${2%%:*}: $(<build/calibrate/verl/a.py)" && echo verl-b; }
"$@"
SH
  sandbox::run FAILS="${FAILS-0}" try "$@"
}

did() { cat "${BOX}/home dir/did"; }

@test "a run is submitted alone, followed and recorded, also if its job failed" {
  for FAILS in 0 3; do
    rm -f "${BOX}/home dir/did"
    calibrate calibrate::run A-ppo-10-1 ppo 300 1 '' 'a=1 b=2'
    assert_status 0
    diff <(did) - <<DID
submit jobspecs/ppo.yaml CODE_ID=verl-a TRAIN_SEED=300 PERTURBED=1 OVERRIDES=a=1 b=2 WAIT=1 MAX_RUNNING=1
record A-ppo-10-1 ${BOX}/tmp/shared/jobs/the-job pypi:0.9.1 the-commit the-image
DID
  done
}

@test "a job that stalls is stopped and recorded; one that lost its node is not recorded" {
  FAILS=6 calibrate calibrate::run x ppo '' '' '' a=1
  assert_status 0
  [[ $(did) == *$'\nstop the-job\nrecord x '* ]]
  rm "${BOX}/home dir/did"
  FAILS=7 calibrate calibrate::run x ppo '' '' '' a=1
  assert_error 7 'How the run x (the-job) ended tells nothing about its code (the reason is above): fix that, then run this again.'
  [[ $(did) != *record* ]]
}

# bats test_tags=slow
@test "patches change a copy of A, which is a snapshot of its own" {
  ln -s "$(command -v git)" "${BOX}/bin/git"
  mkdir -p "${BOX}/tmp/shared/common/code/verl/verl-a/verl"
  echo 'x = 1' >"${BOX}/tmp/shared/common/code/verl/verl-a/verl/a.py"
  printf '%s\n' '--- a/verl/a.py' '+++ b/verl/a.py' '@@ -1 +1 @@' '-x = 1' '+x = 2' >"${BOX}/it.patch"
  printf '%s\n' '--- a/verl/a.py' '+++ b/verl/a.py' '@@ -1 +1 @@' '-x = 2' '+x = 4' >"${BOX}/second one.patch"
  calibrate calibrate::run x ppo '' '' '' a=1 "${BOX}/it.patch" "${BOX}/second one.patch"
  assert_status 0
  [[ $(did) == 'snapshot verl-{tree} path: x = 4'$'\n'*' CODE_ID=verl-b '* ]]
  [[ $(<"${BOX}/tmp/shared/common/code/verl/verl-a/verl/a.py") == 'x = 1' ]]
  sed -i 's/x = 1/x = 3/' "${BOX}/it.patch"
  calibrate calibrate::run x ppo '' '' '' a=1 "${BOX}/it.patch"
  assert_error 2 "The patch ${BOX}/it.patch does not apply to pypi:0.9.1 (VERL_SOURCE): write the patch for that release."
}
