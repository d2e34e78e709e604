#!/usr/bin/env bats
# Checks before anything changes: version 1, the shared root, verl's source; and removing what version 1 left.

# bats file_tags=slow

setup() {
  load ../test_helper
  sandbox::make
  stub docker - <<'SH'
case "$1 $2" in
  'ps --all') cat "${BOX}/containers" 2>/dev/null ;;
  'rm --force') ! grep -qxF "$3" "${BOX}/stuck" 2>/dev/null ;;
esac
SH
}

# check NAME [KNOB=VALUE...]: only that check.
check() {
  local name=$1
  shift
  # shellcheck disable=SC2016  # expanded by that script
  printf 'source "$(dirname "$0")/lib/regress.bash"\ncli::begin\nenv::load\n%s\n' "$name" >"${HERE}/scripts/lines.sh"
  sandbox::run WORKDIR="${BOX}/work dir" "$@" scripts/lines.sh
}

@test "version 1's containers are removed by their exact names, and never one that bears our label" {
  printf '%s\n' 'mvp-ray-head ' 'mvp-ray-worker-12 ' 'mvp-ray-worker-1 mine' 'mvp-ray-worker-x ' 'my-mvp-ray-head ' \
    'mvp-ray-head-2 ' >"${BOX}/containers"
  sandbox::run scripts/03_cleanup_v1_legacy.sh
  assert_status 0
  assert_line 'changed removed the container mvp-ray-head of version 1'
  assert_line 'changed removed the container mvp-ray-worker-12 of version 1'
  [[ $(grep -c '^docker rm ' "$CALLS") == 2 ]]
}

@test "a container of version 1 that cannot be removed is reported, and the others are removed" {
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
  assert_line "ok      shared root ${shared}: 9 directories (9 to be made)"
  assert_line "ok      ${shared} has locks, links and renames"
  mkdir -p "${shared}"/{datasets,hf,jobs,outputs,ray,common/{models,datasets,code},user/code}
  check prereq::shared_root
  assert_line "ok      shared root ${shared}: 9 directories (0 to be made)"
  rmdir "${shared}/hf"
  check prereq::shared_root
  assert_line "ok      shared root ${shared}: 9 directories (1 to be made)"
  touch "${shared}/hf"
  check prereq::shared_root
  assert_status 1
  [[ $output == *"error   User "*" cannot write to ${shared}/hf, because ${shared}/hf is not a writable directory: fix its mode or owner, or point WORKDIR elsewhere."* ]] || fail 'wrong sentence'
}

# What exists here belongs to us, and the containers would run as 4242.
@test "the shared root of a group: what its owner must open, with the command for it; and a cluster name that is taken" {
  local shared="${BOX}/work dir/shared" group command
  group=$(id -g)
  knobs=(RUN_AS=4242:4242 SHARED_GROUP="$group")
  mkdir -p "${shared}"/{jobs,datasets,user/code}
  chmod 1777 "${shared}"/user{,/code}
  chmod 755 "${shared}"{,/jobs,/datasets}
  check prereq::shared_root "${knobs[@]}"
  assert_status 1
  command="chgrp ${group}$(printf ' %q' "$shared" "${shared}"/{datasets,jobs}) && chmod g+rwxs,+t$(printf ' %q' "$shared" "${shared}"/{datasets,jobs})"
  assert_line "error   The group ${group} (SHARED_GROUP) cannot use what belongs to user ${EUID}: ask that user to run '${command}'."
  bash -c "$command"
  check prereq::shared_root "${knobs[@]}"
  assert_status 0
  assert_line "ok      shared root ${shared}: 9 directories (6 to be made)"
  chmod -t "${shared}/jobs" # all members could remove each other's
  check prereq::shared_root "${knobs[@]}"
  assert_line "error   The group ${group} (SHARED_GROUP) cannot use what belongs to user ${EUID}: ask that user to run 'chgrp ${group}$(printf ' %q' "${shared}/jobs") && chmod g+rwxs,+t$(printf ' %q' "${shared}/jobs")'."
  check prereq::shared_root RUN_AS="${EUID}:${group}" SHARED_GROUP="$group" # its owner: make up opens it
  assert_status 0
  mkdir -p "${shared}/queue/mvp11"
  check prereq::shared_root "${knobs[@]}"
  assert_status 2
  assert_line "error   The cluster name mvp11 (from env/defaults.env) is taken on this shared root by user ${EUID} (${shared}/queue/mvp11): set another CLUSTER_NAME."
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
  assert_status 2
  assert_line 'error   SHARED_GROUP=others (from the command line or environment) is not a group of this machine: name one, or give its number.'
}

@test "the directories of a group that are checked are those that the helper opens" {
  cd "$REPO"
  python3 -c '
import pathlib, sys
sys.path.insert(0, "py")
from verl_regress.base.layout import SharedRoot
for path, mode in SharedRoot(pathlib.Path("/r"))._modes(1).items():
    if mode & 0o020: print(path.relative_to("/r"))  # each user has a cache of their own' | sort >"${BATS_TEST_TMPDIR}/opened"
  # shellcheck disable=SC2016  # expanded by that shell
  bash -c 'source scripts/lib/regress.bash && printf "%s\n" "${SHARED_ROOT_OF_GROUP[@]}" "${SHARED_ROOT_DIRECTORIES[@]}"' | sort >"${BATS_TEST_TMPDIR}/checked"
  diff "${BATS_TEST_TMPDIR}/opened" "${BATS_TEST_TMPDIR}/checked"
}

@test "every mode of a group's directory is judged as the helper judges it" {
  cd "$REPO"
  # shellcheck disable=SC2016  # expanded by that shell
  run bash -c 'source scripts/lib/regress.bash
    modes() { [[ $5 == "%u %n" ]] || for mode in {0..4095}; do printf "7 5 %o %d-5\n7 6 %o %d-6\n" "$mode" "$mode" "$mode" "$mode"; done; }
    SHARED_GROUP=5 CLUSTER_NAME=c
    prereq::need_open_to_group 1000 5 /r modes'
  assert_status 1
  sed "s/.*'chgrp 5 //; s/ && chmod .*//" <<<"$output" | tr ' ' '\n' | sort >"${BATS_TEST_TMPDIR}/checked"
  python3 -c '
import sys, types
sys.path.insert(0, "py")
from verl_regress.base import layout
for mode in range(4096):
    for group in (5, 6):
        found = types.SimpleNamespace(st_mode=0o040000 | mode, st_uid=-1, st_gid=group)
        if not layout._is_usable(found, 5):
            print(f"{mode}-{group}")' | sort >"${BATS_TEST_TMPDIR}/helper"
  (($(wc -l <"${BATS_TEST_TMPDIR}/helper") > 4096))
  diff "${BATS_TEST_TMPDIR}/checked" "${BATS_TEST_TMPDIR}/helper"
}

@test "the directories that are checked are those that the helper makes" {
  mapfile -t made < <(cd "$REPO" && python3 -c '
import pathlib, sys, tempfile
sys.path.insert(0, "py")
from verl_regress.base.layout import SharedRoot
root = pathlib.Path(tempfile.mkdtemp(dir=sys.argv[1]))
for path in SharedRoot(root).ensure(): print(path.relative_to(root))' "$BATS_TEST_TMPDIR")
  ((${#made[@]} > 8))
  run bash -c 'cd "$1" && source scripts/lib/regress.bash && printf "%s\n" "${SHARED_ROOT_DIRECTORIES[@]}"' - "$REPO"
  for directory in "${lines[@]}"; do [[ " ${made[*]} " == *" ${directory} "* ]] || fail "$directory"; done
  for directory in "${made[@]}"; do
    # A directory that contains a checked one, or is inside one, is covered by it.
    grep -q "^${directory}\(/\|$\)" <<<"$output" || grep -qxF "$(cut -d/ -f1,2 <<<"$directory")" <<<"$output" || fail "$directory"
  done
}

@test "verl from PyPI: in the cache, fetched later by pip, or no way to fetch it" {
  rm -f "${BOX}/bin/python3"
  check prereq::verl_source VERL_SOURCE=pypi:0.7.1 WORKDIR="${BOX}/work"
  assert_status 0
  assert_line "warning verl comes from pypi:0.7.1, and this machine has no python3 (3.10 or newer) with venv and ensurepip to fetch it: run 'scripts/dev/bootstrap_host.sh' before 'make snapshot'."
  stub python3 '[[ $* != --version ]] || echo "Python 3.11.7"'
  check prereq::verl_source VERL_SOURCE=pypi:0.7.1 WORKDIR="${BOX}/work"
  assert_line "ok      verl comes from pypi:0.7.1 (pip of ${HERE}/.venv, which will be made, will fetch it)"
  sandbox::venv
  check prereq::verl_source VERL_SOURCE=pypi:0.7.1 WORKDIR="${BOX}/work"
  assert_line "ok      verl comes from pypi:0.7.1 (pip of ${HERE}/.venv will fetch it)"
  mkdir -p "${BOX}/work/cache/verl/pypi-0.7.1"
  check prereq::verl_source VERL_SOURCE=pypi:0.7.1 WORKDIR="${BOX}/work"
  assert_line "ok      verl comes from pypi:0.7.1 (in ${BOX}/work/cache/verl/pypi-0.7.1)"
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

@test "verl's source as a path is checked" {
  check prereq::verl_source VERL_SOURCE="path:${BOX}/my verl"
  assert_status 2
  assert_line "error   ${BOX}/my verl (from VERL_SOURCE=path:${BOX}/my verl) has no verl/__init__.py that can be read: name the folder that contains the folder 'verl'."
  mkdir -p "${BOX}/my verl/verl"
  touch "${BOX}/my verl/verl/__init__.py"
  check prereq::verl_source VERL_SOURCE="path:${BOX}/my verl"
  assert_line "ok      verl's source is at ${BOX}/my verl"
}

@test "43_submit_jobspec needs a JobSpec" {
  sandbox::run scripts/43_submit_jobspec.sh
  assert_status 2
  assert_line 'error   43_submit_jobspec.sh needs a JobSpec file: name one with JOBSPEC=FILE, such as JOBSPEC=jobspecs/ppo.yaml.'
}
