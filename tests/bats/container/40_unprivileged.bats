#!/usr/bin/env bats
# A user who is in the docker group but not root: starts a cluster next to another one, trains, reads and deletes what the job
# wrote.

setup_file() {
  load container_helper
  container::use quick 18265
  container::cluster # the neighbour
  export HOUSE=/tmp/verl-regress-unprivileged-$$ USER_ID=12345
  mkdir "$HOUSE"
  source scripts/dev/files.bash
  files::copy_to "$HOUSE"
  cp -r "$HOME/.docker" "${HOUSE}/docker-config"
  cp -r "${WORKDIR}/shared/common/code/verl/codeA" "${HOUSE}/verl-source"
  chown -R "${USER_ID}:${USER_ID}" "$HOUSE"
  container::quietly up as_user make --no-print-directory up prepare snapshot
}

teardown_file() {
  as_user make --no-print-directory down FORCE=1 >/dev/null 2>&1
  rm -rf "$HOUSE"
}

setup() { load container_helper; }

# as_user ARGV...: as a uid without an entry in passwd, with only the engine's group added.
as_user() {
  (cd "$HOUSE" && env -i PATH="$PATH" HOME="$HOUSE" DOCKER_CONFIG="${HOUSE}/docker-config" NO_COLOR=1 PROFILE=cpu \
    CLUSTER_NAME=vrtest-user DASHBOARD_PORT=18268 VERL_SOURCE="path:${HOUSE}/verl-source" \
    setpriv --reuid "$USER_ID" --regid "$USER_ID" --groups "$(stat -c %g /var/run/docker.sock)" "$@")
}

@test "the containers run as the user, and the token is the user's alone" {
  [[ $(docker exec vrtest-user-worker-0 id -u) == "$USER_ID" ]]
  [[ $(stat -c '%u %a' "${HOUSE}/workdir/secrets/vrtest-user.token") == "${USER_ID} 600" ]]
}

@test "a job trains, and the user reads and deletes all that it wrote" {
  run as_user make --no-print-directory submit WAIT=1 SUBMISSION_ID=mine OVERRIDES='trainer.total_training_steps=2 trainer.save_freq=2'
  assert_status 0
  assert_line 'ok      mine SUCCEEDED \(the trainer ended\)'
  assert_line ' *2 of 2 training steps, checkpoints/global_step_2'
  [[ $(find "${HOUSE}/workdir/shared" ! -user "$USER_ID" | wc -l) == 0 ]]
  as_user tar -C "${HOUSE}/workdir/shared/jobs/mine" -cf /dev/null .
  as_user rm -r "${HOUSE}/workdir/shared/jobs/mine"
  [[ ! -e ${HOUSE}/workdir/shared/jobs/mine ]]
}

@test "two clusters with two names and ports run side by side, and down removes only one" {
  run as_user make --no-print-directory status
  assert_line 'profile cpu \(rehearsal: no GPU\), cluster vrtest-user'
  [[ $(JSON=1 scripts/50_status.sh | jq -r '[.nodes[] | select(.state == "ALIVE")] | length') == 3 ]]
  run as_user make --no-print-directory down
  assert_status 0
  [[ -z $(docker ps --all --quiet --filter label=verl-regress.cluster=vrtest-user) ]]
  [[ $(JSON=1 scripts/50_status.sh | jq -r '[.nodes[] | select(.state == "ALIVE")] | length') == 3 ]]
}
