#!/usr/bin/env bats
# Checks before anything changes: version 1, the shared root; and removing what version 1 left.

# bats file_tags=slow

setup() {
  load ../test_helper
  sandbox::make
  stub docker - <<'SH'
case "$1 $2" in
  'ps --all') cat "${BOX}/containers" 2>/dev/null || true ;;
  'rm --force') ! grep -qxF "$3" "${BOX}/stuck" 2>/dev/null ;;
esac
SH
}

# check NAME [KNOB=VALUE...]: only that check.
check() { sandbox::lines "${@:2}" <<<"$1"; }

# promise: removes a container or network without our label
@test "version 1's containers are removed by exact name, and none that bears our label" {
  printf '%s\n' 'mvp-ray-head ' 'mvp-ray-worker-12 ' 'mvp-ray-worker-1 mine' 'mvp-ray-worker-x ' 'my-mvp-ray-head ' \
    'mvp-ray-head-2 ' >"${BOX}/containers"
  sandbox::run scripts/03_cleanup_v1_legacy.sh
  assert_status 0
  assert_line 'changed removed the container mvp-ray-head of version 1'
  assert_line 'changed removed the container mvp-ray-worker-12 of version 1'
  [[ $(grep -c '^docker rm ' "$CALLS") == 2 ]]
}

@test "a container of version 1 that cannot be removed is reported; the others go" {
  printf '%s\n' 'mvp-ray-head ' 'mvp-ray-worker-0 ' >"${BOX}/containers"
  printf 'mvp-ray-head\n' >"${BOX}/stuck"
  sandbox::run scripts/03_cleanup_v1_legacy.sh
  assert_status 1
  assert_line 'changed removed the container mvp-ray-worker-0 of version 1'
  assert_line 'error   The engine did not remove mvp-ray-head (the reason is above): remove them by hand.'
}

@test "nothing of version 1: the cleanup skips" {
  sandbox::run scripts/03_cleanup_v1_legacy.sh
  assert_status 0
  assert_line 'skip    no container of version 1 is here (nothing to change)'
}

@test "the shared root: missing, present, blocked by a file" {
  local shared="${BOX}/work dir/shared"
  check prereq::shared_root
  assert_status 0
  assert_line "ok      ${shared} can be written to, and has locks, links and renames"
}

@test "an engine with other files than this machine's is refused if it has no node" {
  # shellcheck disable=SC2016  # expanded when the stub runs
  stub docker 'case $1 in import) cat >/dev/null; printf "sha256:%064d: sha256:%064d\\n" 7 7 ;; create) echo "invalid mount config: bind source path does not exist: /x" >&2; exit 1 ;; esac'
  check prereq::engine_sees
  assert_error 1 "The container engine does not see what this machine writes to ${BOX} (WORKDIR, from the command line or environment; it says: invalid mount config: bind source path does not exist: /x): set WORKDIR to a directory that both see, share it with the engine's virtual machine, or use an engine of this machine (DOCKER_HOST, 'docker context use')."
  assert_called "docker rmi sha256:$(printf %064d 7)"
  # shellcheck disable=SC2016  # podman makes the directory, and then does not have the file
  stub docker 'case $1 in import) cat >/dev/null; printf "sha256:%064d\n" 7 ;; create) echo c1 ;; cp) echo "no such file" >&2; exit 1 ;; esac'
  check prereq::engine_sees
  assert_status 1
  [[ $output == *"(WORKDIR, from the command line or environment; it says: no such file): "* ]]
  assert_called 'docker rm c1'
  # shellcheck disable=SC2016  # expanded when the stub runs
  stub docker '[[ $1 != inspect ]] || echo "/mvp11-head|true|since|10.0.0.1 |mvp11|00000000000000aa|me|/w"'
  check prereq::engine_sees
  assert_line "ok      the container engine sees ${BOX}/work dir/shared"
}

@test "SELinux keeps no node from the shared root; without it nothing is rendered" {
  for options in '[name=seccomp,profile=default name=selinux]' '[name=seccomp,profile=default]'; do
    stub docker "[[ \$1 != info ]] || echo '|28.2.2||${options}|'"
    check 'compose::render this' WORKERS=1
    assert_status 0
    [[ $(grep -cxF '    security_opt: ["label=disable"]' <<<"$output") == "$([[ $options != *selinux* ]] && echo 0 || echo 2)" ]] || fail "$options"
  done
}

# promise: removes a container or network without our label
@test "a network of our name without our label is refused" {
  # shellcheck disable=SC2016  # expanded when the stub runs
  stub docker '[[ "$1 $2" != "network inspect" ]] || cat "${BOX}/label"'
  check prereq::owner
  assert_line 'ok      the cluster mvp11 is ours, or not there yet'
  echo >"${BOX}/label"
  check prereq::owner
  assert_error 2 "The network mvp11_ray does not bear our label (an older version made it, or another tool): remove it with 'docker network rm mvp11_ray', or set another CLUSTER_NAME (and DASHBOARD_PORT)."
  echo mvp11 >"${BOX}/label"
  check prereq::owner
  assert_status 0
}

@test "containers that do not come up: Compose's last line, and its cure" {
  # shellcheck disable=SC2016  # expanded when the stub runs
  stub docker '[[ $* != *" up "* ]] || { printf " Network x  Creating\n%s\n" "$(cat "${BOX}/why")"; exit 1; }'
  mkdir -p "${BOX}/work dir"
  for why in 'failed to create network mvp11_ray: Error response from daemon: could not find an available, non-overlapping IPv4 address pool among the defaults to assign to the network' 'all predefined address pools have been fully subnetted'; do
    echo "$why" >"${BOX}/why"
    check 'compose::_start_at this' NODE_IMAGE=mine:1
    assert_error 1 "The containers did not come up (${why}): remove networks that nothing uses ('docker network prune'), end a VPN whose routes cover all addresses, or add default-address-pools to the engine's daemon.json."
  done
  echo 'Error response from daemon: no space left on device' >"${BOX}/why"
  check 'compose::_start_at this' NODE_IMAGE=mine:1
  assert_error 1 'The containers did not come up (Error response from daemon: no space left on device): correct that, then run this again.'
}

@test "SHARED_GROUP by its name is a group of this machine" {
  # shellcheck disable=SC2016  # expanded when the stub runs
  stub getent '[[ $2 == team ]] && echo team:x:42000:ann,bob'
  check 'nodes::shared_group' SHARED_GROUP=team
  assert_status 0
  assert_line 42000
  check 'nodes::shared_group' SHARED_GROUP=42001
  assert_line 42001
  check 'nodes::shared_group' SHARED_GROUP=others
  assert_error 2 'SHARED_GROUP=others (from the command line or environment) is not a group of this machine: name one, or give its number.'
}

@test "a node image that was not built is a warning with its cure, and counted" {
  # shellcheck disable=SC2016  # expanded when the stub runs
  stub docker '[[ -e ${BOX}/built ]]'
  check 'prereq::run prereq::node_image' NODE_IMAGE=mine:1
  assert_status 0
  assert_line "warning node image mine:1 is not on this machine yet, and 'make up' needs it: run 'make build' first."
  assert_line "ok      0 of 1 checks passed, 1 ended in a warning"
  touch "${BOX}/built"
  check 'prereq::run prereq::node_image' NODE_IMAGE=mine:1
  assert_line "ok      node image mine:1 is here"
  assert_line "ok      1 of 1 checks passed"
}

@test "43_submit_jobspec needs a JobSpec" {
  sandbox::run scripts/43_submit_jobspec.sh
  assert_error 2 '43_submit_jobspec.sh needs a JobSpec file: name one with JOBSPEC=FILE, such as JOBSPEC=jobspecs/ppo.yaml.'
}
