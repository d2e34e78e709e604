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
