#!/usr/bin/env bats
# The cluster on podman of a user who is not root, in that user's own checkout: a real job, a session, and `make down`. The node image
# comes from docker.

setup_file() {
  load container_helper
  export TRAINER=vrtest-podman HOUSE=/home/vrtest-podman MODE_OF_TUN
  export SOCKET="unix://${HOUSE}/run/podman/podman.sock"
  MODE_OF_TUN=$(stat -c %a /dev/net/tun)
  container::use quick 18265
  container::cluster # has the image and verl's code
  source "${REPO}/scripts/lib/wait.bash"
  source scripts/dev/files.bash
  container::quietly engine env CONTAINER_ENGINE=podman scripts/dev/bootstrap_host.sh --engine # installs podman; the service is root's
  container::quietly stopped env CONTAINER_ENGINE=podman scripts/dev/bootstrap_host.sh --stop-engine
  container::quietly packages scripts/dev/bootstrap_host.sh --rootless
  chmod 666 /dev/net/tun                                                 # as udev has it; slirp4netns opens it
  remove_trainer                                                         # of a run that was killed
  useradd --home-dir "$HOUSE" --create-home --shell /bin/bash "$TRAINER" # with a range of ids in /etc/subuid and /etc/subgid
  mkdir -p "${HOUSE}/.config/containers" "${HOUSE}/vr" "${HOUSE}/run/podman"
  # By default podman asks for higher limits than a CI machine may allow, and for cgroups from systemd.
  printf '[containers]\ndefault_ulimits = ["nofile=%d:%d", "nproc=1024:1024"]\n[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\n' \
    "$(ulimit -Hn)" "$(ulimit -Hn)" >"${HOUSE}/.config/containers/containers.conf"
  cp -r "${HOME}/.docker" "$HOUSE"
  cp -r "${WORKDIR}/shared/common/code/verl/codeA" "${HOUSE}/verl-source"
  files::copy_to "${HOUSE}/vr"
  chown -R "${TRAINER}:" "$HOUSE"
  as_trainer setsid --fork podman system service --time=0 "$SOCKET" >"${BATS_FILE_TMPDIR}/service" 2>&1 3>&-
  wait::until 30 - test -S "${SOCKET#unix://}"
  docker save "$(scripts/10_build_image.sh --name)" | DOCKER_HOST=$SOCKET docker load --quiet >/dev/null
  container::quietly up as_trainer make --no-print-directory up prepare snapshot
}

teardown_file() {
  load container_helper
  source "${REPO}/scripts/lib/wait.bash"
  as_trainer make --no-print-directory down FORCE=1 >/dev/null 2>&1
  remove_trainer
  chmod "$MODE_OF_TUN" /dev/net/tun
}

# The user with all of its processes and files, some of which are other ids' of its range.
remove_trainer() {
  id "$TRAINER" >/dev/null 2>&1 || return 0
  pkill -KILL -u "$TRAINER" || true
  wait::until 10 - has_no_process
  userdel "$TRAINER"
  rm -rf -- "$HOUSE"
}

has_no_process() { ! pgrep -u "$TRAINER" >/dev/null; }

setup() { load container_helper; }

# as_trainer ARGV...
as_trainer() {
  (cd "${HOUSE}/vr" && env -i PATH="$PATH" HOME="$HOUSE" XDG_RUNTIME_DIR="${HOUSE}/run" LANG=C.UTF-8 NO_COLOR=1 PROFILE=cpu CONTAINER_ENGINE=podman \
    CLUSTER_NAME=vrtest-rootless DASHBOARD_PORT=18276 VERL_SOURCE="path:${HOUSE}/verl-source" \
    setpriv --reuid "$TRAINER" --regid "$TRAINER" --clear-groups "$@")
}

@test "podman without root: check and up say ok, and the containers are the user's own" {
  run as_trainer make --no-print-directory check up
  assert_status 0
  assert_line 'ok      container engine podman [0-9.]+'
  assert_line 'ok      containers run: vrtest-rootless-head vrtest-rootless-worker-0 vrtest-rootless-worker-1'
  [[ $(as_trainer podman ps --format '{{.Names}}' | sort | paste -sd' ') == 'vrtest-rootless-head vrtest-rootless-worker-0 vrtest-rootless-worker-1' ]]
  pid=$(as_trainer podman inspect --format '{{.State.Pid}}' vrtest-rootless-worker-0)
  [[ $(stat -c %U "/proc/${pid}") == "$TRAINER" ]] # root in the container
}

@test "podman without root: a job trains with the driver on a worker, make debug and make verify see it, and all files are the user's" {
  run as_trainer make --no-print-directory submit WAIT=1 WORKLOAD=sft SUBMISSION_ID=mine OVERRIDES='trainer.total_training_steps=2 trainer.save_freq=2'
  assert_status 0
  assert_line 'ok      mine SUCCEEDED \(the trainer ended\)'
  assert_line ' *2 of 2 training steps, checkpoints/global_step_2'
  run as_trainer make --no-print-directory debug JOB=mine
  assert_status 0
  printf 'cases:\n  loss: {workload: sft, steps: 1}\n' >"${HOUSE}/vr/small.yaml"
  run as_trainer make --no-print-directory verify SUITE=small.yaml ONLY=placement,head,imports CODE_A=codeA CODE_B=codeA
  assert_status 0
  assert_line 'ok +placement  every driver ran on a worker, not on the head \(checked 2 jobs\)'
  assert_line '3 of 3 checks passed'
  [[ -z $(find "${HOUSE}/vr/workdir" ! -user "$TRAINER") ]]
}

@test "podman without root: down leaves no container and no network" {
  run as_trainer make --no-print-directory down
  assert_status 0
  [[ -z $(as_trainer podman ps --all --quiet) ]]
  [[ -z $(as_trainer podman network ls --quiet --filter label=verl-regress.cluster=vrtest-rootless) ]]
}
