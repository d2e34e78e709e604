#!/usr/bin/env bats
# Two real users (uids) on one shared root, each with a checkout and a cluster: both train, and neither harms the other.

setup_file() {
  load fault_helper
  fault::use work 18285
  container::cluster # from which the users take verl
  export HOUSE=/tmp/verl-regress-team-$$ ANN=41001 BOB=41002 TEAM=42000 user
  mkdir "$HOUSE" "${HOUSE}"/{shared,ann,bob}
  cp -r "${WORKDIR}/shared/common/code/verl/codeA" "${HOUSE}/verl-source"
  fault::down
  source scripts/dev/files.bash
  for user in ann bob; do
    files::copy_to "${HOUSE}/${user}"
    cp -r "$HOME/.docker" "${HOUSE}/${user}/docker-config"
    mkdir "${HOUSE}/${user}/workdir"
    ln -s "${HOUSE}/shared" "${HOUSE}/${user}/workdir/shared"
  done
  chown -hR "${ANN}:${ANN}" "${HOUSE}/ann" "${HOUSE}/shared"
  chown -hR "${BOB}:${BOB}" "${HOUSE}/bob"
  {
    ann make --no-print-directory up prepare snapshot && bob make --no-print-directory up prepare
  } >"${BATS_FILE_TMPDIR}/up" 2>&1 || {
    tail -n 40 "${BATS_FILE_TMPDIR}/up" >&3
    return 1
  }
}

teardown_file() {
  load fault_helper
  ann make --no-print-directory down FORCE=1 >/dev/null 2>&1
  bob make --no-print-directory down FORCE=1 >/dev/null 2>&1
  rm -rf "$HOUSE"
}

setup() { load fault_helper; }

ann() { as ann "$ANN" 18301 "$@"; }

bob() { as bob "$BOB" 18302 "$@"; }

# as USER UID PORT ARGV...: in that user's checkout, with the groups of the team and the engine.
as() {
  (cd "${HOUSE}/$1" && env -i PATH="$PATH" HOME="${HOUSE}/$1" DOCKER_CONFIG="${HOUSE}/$1/docker-config" NO_COLOR=1 PROFILE=cpu WORKERS=1 \
    CLUSTER_NAME="vrfault-$1" DASHBOARD_PORT="$3" SHARED_GROUP="$TEAM" VERL_SOURCE="path:${HOUSE}/verl-source" \
    setpriv --reuid "$2" --regid "$2" --groups "$(stat -c %g /var/run/docker.sock),${TEAM}" "${@:4}")
}

# trains USER ID: a job of one step.
trains() {
  run "$1" make --no-print-directory sft WAIT=1 SUBMISSION_ID="$2" OVERRIDES=trainer.total_training_steps=1
  assert_status 0
  assert_line "ok      $2 SUCCEEDED \(the trainer ended\)"
}

# bats test_tags=turn:1
@test "two users of one shared root: each trains, the second one from what the first made, and both see both jobs" {
  trains ann anns
  trains bob bobs
  [[ $(stat -c '%u:%g %a' "${HOUSE}/shared/jobs"/{anns,bobs} | paste -sd' ') == "${ANN}:${TEAM} 2755 ${BOB}:${TEAM} 2755" ]]
  [[ -z $(find "${HOUSE}/shared/jobs/bobs" ! -user "$BOB") ]]
  for user in ann bob; do
    run "$user" make --no-print-directory jobs
    assert_status 0
    assert_line 'bobs +sft +codeA +SUCCEEDED .*'
    assert_line 'anns +sft +codeA +SUCCEEDED .*'
  done
  run bob make --no-print-directory logs JOB=latest METRICS=1
  assert_line '\{"step": ?1,.*'
  run bob scripts/70_gc.sh
  assert_status 0
  assert_line '.*; left to other users: 1 jobs, 1 snapshots'
  [[ -d ${HOUSE}/shared/jobs/anns/checkpoints/global_step_1 && -d ${HOUSE}/shared/common/code/verl/codeA ]]
}

# bats test_tags=turn:1
@test "what one user does to the other's job, secrets, helper and cluster name is refused; what cannot be read is one line" {
  [[ -d ${HOUSE}/shared/jobs/anns ]] || trains ann anns
  local before plan="${HOUSE}/shared/jobs/anns/config/resolved.json" helper
  before=$(find "${HOUSE}/shared" -user "$ANN" -type f -printf '%p %s %T@ %m\n' | grep -v '/ray/' | sort | sha256sum)
  helper=$(find "${HOUSE}/shared/common/code/verl_regress" -mindepth 1 -maxdepth 1 -user "$ANN")
  run bob env JOB=anns scripts/54_stop.sh
  assert_status 2
  assert_line "error   anns is on the cluster vrfault-ann, and CLUSTER_NAME is vrfault-bob: stop it from there \(user ${ANN}, ${HOUSE}/ann/workdir\)."
  run bob env JOB=anns scripts/57_retry.sh
  assert_status 2
  assert_line "error   anns belongs to uid ${ANN}, who alone can add an attempt to it: submit a job of your own, as in 'make submit JOBSPEC=.*/jobs/anns/config/job_spec.json'\."
  run bob env CLUSTER_NAME=vrfault-ann DASHBOARD_PORT=18303 scripts/00_prereq_check.sh
  assert_status 2
  for argv in "rm -r ${plan}" "mv ${HOUSE}/shared/jobs/anns ${HOUSE}/shared/jobs/mine" "mv ${helper} ${helper}.away" \
    "touch ${helper}/planted.py" "ls ${HOUSE}/shared/secrets/vrfault-ann" "rm -r ${HOUSE}/shared/queue/vrfault-ann"; do
    # shellcheck disable=SC2086  # words
    run bob $argv
    [[ $status != 0 ]] || fail "$argv"
  done
  [[ $(find "${HOUSE}/shared" -user "$ANN" -type f -printf '%p %s %T@ %m\n' | grep -v '/ray/' | sort | sha256sum) == "$before" ]]
  ann mkdir -p "${HOUSE}/shared/jobs/by-hand/state"
  ann cp "${HOUSE}/shared/jobs/anns/state/ended" "${HOUSE}/shared/jobs/by-hand/state/ended"
  ann truncate --size 20 "${HOUSE}/shared/jobs/by-hand/state/ended"
  ann chmod 700 "${HOUSE}/shared/jobs/anns"
  run bob make --no-print-directory jobs
  assert_status 0
  assert_line "anns +\? +\? +UNKNOWN +1 .* cannot be read: owned by uid ${ANN}, mode 0700"
  assert_line 'by-hand +\? +\? +UNKNOWN .* cannot be read: state/ended is cut off, or no JSON object'
  run bob make --no-print-directory status
  assert_status 0
  assert_line "anns +\? +UNKNOWN +- +cannot be read: owned by uid ${ANN}, mode 0700"
  run bob env KEEP=0 scripts/70_gc.sh
  assert_status 0
  assert_line '.*; 1 jobs cannot be read \(anns\), so every snapshot and helper stays'
  ann chmod 2755 "${HOUSE}/shared/jobs/anns"
}
