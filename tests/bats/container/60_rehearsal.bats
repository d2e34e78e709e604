#!/usr/bin/env bats
# The rehearsal's hooks, inside the node image, against real torch and two releases of verl: the default snapshot and the
# image's own. What the other releases do: scripts/dev/releases.sh.

setup_file() {
  load container_helper
  container::use quick 18265
  container::cluster
  docker exec vrtest-quick-worker-0 rm -rf /tmp/tests
  tar -C tests -c rehearsal | docker exec --interactive vrtest-quick-worker-0 tar -C /tmp -x
  HELPER=$(. scripts/lib/regress.bash && cli::begin && trap - EXIT && env::load && helper::dir)
  export HELPER
}

setup() { load container_helper; }

# hooks_against VERSION SNAPSHOT [TEST...]: these tests, or all of them, with that snapshot on PYTHONPATH; without a SNAPSHOT, with
# the image's own verl.
hooks_against() {
  run docker exec --env PYTHONPATH="${2:+/private/common/code/verl/$2:}${HELPER}/hooks:${HELPER}/rehearsal" \
    --env PYTHONDONTWRITEBYTECODE=1 --env HOME=/tmp/home --workdir /tmp/rehearsal vrtest-quick-worker-0 \
    sh -c 'python3 -c "import verl; print(\"verl\", verl.__version__)" && python3 -m pytest -q -p no:cacheprovider "$@"' \
    sh "${@:3}"
  tail -n 5 <<<"$output" | sed 's/^/# /' >&3
  assert_status 0
  assert_line "verl $1"
  [[ $output =~ [1-9][0-9]*' passed' ]]
}

# Tests that do not touch verl run once.
with_verl=(test_hooks_on_real_verl.py test_rollout.py test_sft_driver.py)

@test "verl 0.9.1, the default snapshot" { hooks_against 0.9.1 codeA; }
@test "verl 0.7.1, which the image contains" { hooks_against 0.7.1 '' "${with_verl[@]}"; }
