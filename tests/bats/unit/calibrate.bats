#!/usr/bin/env bats
# maintain/calibrate.sh: what it does with a run, and how it ends; maintain/tests/test_calibration.py tests which runs there are.

setup() {
  load ../test_helper
  sandbox::make
}

# calibrate COMMAND...: with functions instead of a cluster, which log their calls; FAILS is the exit status of a job.
calibrate() {
  cat >"${HERE}/try" <<'SH'
source scripts/lib/regress.bash
cli::begin
source maintain/release.bash
source maintain/calibrate.bash
WORKDIR=${TMPDIR} SHARED_ROOT=/private VERL_SOURCE=pypi:0.9.1 CALIBRATE_A=verl-a
declare -A ENV_ORIGIN=()
did() { printf '%s\n' "$*" >>"${HOME}/did"; }
job::submit() { did "submit $1 CODE_ID=${CODE_ID} TRAIN_SEED=${TRAIN_SEED} PERTURBED=${PERTURBED} OVERRIDES=${OVERRIDES} WAIT=${WAIT} MAX_RUNNING=${MAX_RUNNING}" && echo the-job && return "${FAILS-0}"; }
node::image() { echo the-image; }
release::commit() { echo the-commit; }
calibrate::python() { did "$*"; }
"$@"
SH
  sandbox::run FAILS="${FAILS-0}" try "$@"
}

did() { cat "${BOX}/home dir/did"; }

@test "a run is submitted alone, followed and recorded, also if its job failed" {
  for FAILS in 0 3; do
    rm -f "${BOX}/home dir/did"
    calibrate calibrate::run A-ppo-10-1 ppo 300 1 '' 'a=1 b={shared}/c'
    assert_status 0
    diff <(did) - <<DID
submit jobspecs/ppo.yaml CODE_ID=verl-a TRAIN_SEED=300 PERTURBED=1 OVERRIDES=a=1 b=/private/c WAIT=1 MAX_RUNNING=1
record A-ppo-10-1 ${BOX}/tmp/shared/jobs/the-job pypi:0.9.1 the-commit the-image
DID
  done
}
