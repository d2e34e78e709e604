#!/usr/bin/env bats
# maintain/releases.sh: which rows it runs, and on which cluster; maintain/tests/test_releases.py tests what a row does.

# bats file_tags=slow

setup() {
  GIVEN=()
  load ../test_helper
  sandbox::make
  stub docker
  stub make - <<'SH'
printf 'CLUSTER_NAME=%s FORCE=%s CODE_ID=%s VERL_SOURCE=%s make %s\n' "$CLUSTER_NAME" "$FORCE" "${CODE_ID-}" "${VERL_SOURCE-}" "${*:4}" >>"${BOX}/made"
[[ $* != *snapshot ]] || echo verl-0a1b2c3d
SH
  sandbox::venv
  # The rows are the real ones; each works.
  stub venv_python - <<SH
case "\$1 \$2" in
  *'releases.py rows'*) exec $(python3 -c "import sys; print(sys.executable)") "\$@" ;;
  *'releases.py recorded'*) exit 1 ;;
  *release_row.py*) echo "\$2 of \$3 was run" ;;
  *) echo "written: \$*" >>"\${BOX}/made" ;;
esac
SH
}

releases() { sandbox::run CLUSTER_NAME=mine "${GIVEN[@]}" maintain/releases.sh "$@"; }
made() { cat "${BOX}/made"; }

@test "rows run one after the other, on a cluster that is up only for them" {
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

@test "all rows: main's are left out without VERL_MAIN, and the page shows the others" {
  releases
  assert_status 0
  assert_line 'skip    main-ppo-v0 (VERL_MAIN is empty: set it to git:URL@REF or path:DIR)'
  assert_line '14 of 14 rows work'
  [[ $(made) == *'written: '*'/releases.py write 0.7.1-ppo '*' 0.9.1-resume'* && $(made) != *main-* ]]
  GIVEN=(VERL_MAIN=git:https://example.org/verl@main)
  releases
  assert_line '20 of 20 rows work'
  [[ $(made) == *'VERL_SOURCE=git:https://example.org/verl@main make snapshot'* ]]
}
