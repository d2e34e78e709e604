#!/usr/bin/env bats
# scripts/dev/releases.sh: which rows it runs, on which cluster, and how it ends; tests/py/test_releases.py tests what a row does.

# bats file_tags=slow

setup() {
  GIVEN=()
  load ../test_helper
  sandbox::make
  mkdir -p "${BOX}/found"
  # shellcheck disable=SC2016  # expanded when the stub runs
  stub docker '[[ $* != "ps --all"* ]] || cat "${BOX}/found/clusters" 2>/dev/null || true'
  stub make - <<'SH'
printf 'CLUSTER_NAME=%s FORCE=%s CODE_ID=%s VERL_SOURCE=%s make %s\n' "$CLUSTER_NAME" "$FORCE" "${CODE_ID-}" "${VERL_SOURCE-}" "${*:4}" >>"${BOX}/made"
[[ $* != *snapshot ]] || echo verl-0a1b2c3d
[[ $* != *' up '* || ! -e ${BOX}/found/broken ]] || { echo 'error   no engine' >&2; exit 2; }
SH
  sandbox::venv
  # The rows are the real ones; whether a row works is in the file with its name.
  stub venv_python - <<SH
case "\$1 \$2" in
  *'releases.py rows'*) exec $(python3 -c "import sys; print(sys.executable)") "\$@" ;;
  *'releases.py recorded'*) [[ -e "\${BOX}/found/recorded-\$3" ]] && echo "\$3: as recorded" ;;
  *release_row.py*)
    echo "\$2 of \$3 was run"
    [[ ! -e "\${BOX}/found/broken-\$2" ]] || exit "\$(<"\${BOX}/found/broken-\$2")" ;;
  *) echo "written: \$*" >>"\${BOX}/made" ;;
esac
SH
}

releases() { sandbox::run CLUSTER_NAME=mine "${GIVEN[@]}" scripts/dev/releases.sh "$@"; }
made() { cat "${BOX}/made"; }

@test "rows run one after the other on a cluster that is brought up for them and taken down" {
  releases 0.8.0-ppo 0.7.1-sft 0.8.0-grpo
  assert_status 0
  assert_line 'ok      0.7.1-sft of verl-0a1b2c3d was run'
  assert_line 'ok      0.8.0-ppo of verl-0a1b2c3d was run'
  assert_line 'ok      0.8.0-grpo of verl-0a1b2c3d was run'
  assert_line '3 of 3 rows work'
  diff <(made) - <<'MADE'
CLUSTER_NAME=mine FORCE= CODE_ID= VERL_SOURCE= make build up prepare
CLUSTER_NAME=mine FORCE= CODE_ID=verl-{tree} VERL_SOURCE=pypi:0.7.1 make snapshot
CLUSTER_NAME=mine FORCE= CODE_ID=verl-{tree} VERL_SOURCE=pypi:0.8.0 make snapshot
CLUSTER_NAME=mine FORCE= CODE_ID= VERL_SOURCE= make down FORCE=1
MADE
}

@test "a failing row is an error, the others run, and the exit status is 9" {
  echo 9 >"${BOX}/found/broken-0.8.0-ppo"
  releases 0.8.0-ppo 0.8.0-sft
  assert_error 9 '0.8.0-ppo of verl-0a1b2c3d was run'
  assert_line 'ok      0.8.0-sft of verl-0a1b2c3d was run'
  assert_line '1 of 2 rows work'
}

@test "a row that is recorded is skipped, unless FORCE=1" {
  touch "${BOX}/found/recorded-0.8.0-ppo"
  releases 0.8.0-ppo
  assert_status 0
  assert_line 'skip    0.8.0-ppo: as recorded (recorded with the same code and image; FORCE=1 runs it again)'
  assert_line '1 of 1 rows work'
  GIVEN=(FORCE=yes)
  releases 0.8.0-ppo
  assert_line 'ok      0.8.0-ppo of verl-0a1b2c3d was run'
}

@test "all rows: main's are left out without VERL_MAIN, and the page is written of those that were run" {
  releases
  assert_status 0
  assert_line 'skip    main-ppo-v0 (VERL_MAIN is empty: set it to git:URL@REF or path:DIR)'
  assert_line '14 of 14 rows work'
  [[ $(made) == *'written: '*'/releases.py write 0.7.1-ppo '*' 0.9.1-resume'* && $(made) != *main* ]]
  GIVEN=(VERL_MAIN=git:https://example.org/verl@main)
  releases
  assert_line '20 of 20 rows work'
  [[ $(made) == *'VERL_SOURCE=git:https://example.org/verl@main make snapshot'* ]]
}

@test "values that cannot work are refused before anything is done" {
  releases 0.9.2
  assert_status 2
  [[ $output == *"error   '0.9.2' is neither a release nor a row: use some of 0.7.1, 0.8.0, 0.9.1, main, 0.7.1-ppo, "* ]]
  GIVEN=(PROFILE=gpu)
  releases 0.9.1
  assert_error 2 "PROFILE='gpu' (from the command line or environment) is not usable: releases are tried in rehearsals; use cpu, or leave it out."
  [[ ! -e ${BOX}/made ]]
}
