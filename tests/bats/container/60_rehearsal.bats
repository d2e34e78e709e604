#!/usr/bin/env bats
# The rehearsal's hooks, inside the node image, against real torch and two releases of verl: the default snapshot and the
# image's own. What the other releases do: maintain/releases.sh.

setup_file() {
  load container_helper
  container::use quick 18265
  container::cluster
  HELPER=$(. scripts/lib/regress.bash && cli::begin && trap - EXIT && env::load && helper::dir)
  # Tests that do not touch verl run once.
  rehearsal::test worker-1 0.7.1 '' test_hooks_on_real_verl.py test_rollout.py test_sft_driver.py 3>&- &
  rehearsal::test worker-0 0.9.1 codeA
  wait "$!"
}

setup() { load container_helper; }

# rehearsal::test NODE VERSION SNAPSHOT [TEST...]: these tests, or all of them, on that node, with that snapshot on PYTHONPATH; without a
# SNAPSHOT, with the image's own verl. Their output and exit status are in the file VERSION.
rehearsal::test() {
  tar -c -C "${PWD}/rehearsal/tests" . -C "${PWD}/tests/on_verl" . |
    docker exec --interactive "${CLUSTER_NAME}-$1" sh -c 'rm -rf /tmp/tests && mkdir /tmp/tests && tar -C /tmp/tests -x'
  {
    docker exec --env PYTHONPATH="${3:+/private/common/code/verl/$3:}${HELPER}/py/hooks:${HELPER}/rehearsal" \
      --env PYTHONDONTWRITEBYTECODE=1 --env HOME=/tmp/home --workdir /tmp/tests "${CLUSTER_NAME}-$1" \
      sh -c 'python3 -c "import verl; print(\"verl\", verl.__version__)" && python3 -m pytest -q -p no:cacheprovider "$@"' \
      sh "${@:4}" && echo passed
  } >"${BATS_FILE_TMPDIR}/$2" 2>&1 || true
}

# have_passed VERSION
have_passed() {
  output=$(<"${BATS_FILE_TMPDIR}/$1")
  tail -n 5 <<<"$output" | sed 's/^/# /' >&3
  assert_line "verl $1"
  [[ $output =~ [1-9][0-9]*' passed' && $output == *$'\npassed' ]] || fail 'they failed'
}

@test "verl 0.9.1, the default snapshot" { have_passed 0.9.1; }
@test "verl 0.7.1, which the image contains" { have_passed 0.7.1; }

@test "without a cluster or a network, SFT trains and its records pass fidelity" {
  local image
  image=$(docker inspect --format '{{.Config.Image}}' "${CLUSTER_NAME}-head")
  run docker run --rm --label "verl-regress.cluster=${CLUSTER_NAME}" --network none --shm-size 1g --volume "${WORKDIR}/shared:/private:ro" \
    --volume "${PWD}/rehearsal:/rehearsal:ro" --env PYTHONPATH=/private/common/code/verl/codeA:/rehearsal --env HOME=/tmp --workdir /tmp "$image" bash -euc '
      cp /rehearsal/verl_rehearsal.pth "$(python3 -c "import site; print(site.getsitepackages()[0])")"
      python3 -m verl_rehearsal data data
      python3 -m verl_rehearsal train --model /private/common/models/tiny-qwen2 --data data sft run trainer.total_training_steps=2 >out 2>&1 ||
        { tail -n 30 out; exit 1; }
      python3 -m verl_rehearsal.fidelity sft run/metrics.jsonl run/reports --one-machine'
  assert_status 0
  assert_line 'ok      fidelity: 4 of 4 checks passed'
}
