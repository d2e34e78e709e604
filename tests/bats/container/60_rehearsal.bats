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

# compare OPTION...: ci/compare.py as the packages of ci/compare.sh run it, but those of the node image, without a cluster or a network.
compare() {
  local code='import sys; sys.executable = sys.argv.pop(1); import compare; sys.exit(compare.main(sys.argv[1:]))'
  run env PYTHONPATH=ci:py:judge .venv/bin/python -c "$code" "${BATS_TEST_TMPDIR}/python" \
    --verl "${BATS_TEST_TMPDIR}/verl" --out "${BATS_TEST_TMPDIR}/report" --cache "${BATS_TEST_TMPDIR}/cache" "$@"
}

# branch NAME EXPRESSION FILE: a branch of main on which sed changed that file of verl.
branch() {
  git checkout --quiet -b "$1" main
  sed -i "$2" "verl/$3"
  git commit --quiet --all --message "$1"
}

@test "ci/compare.py finds a fault in SFT of real verl, and trains base once" {
  local image
  image=$(docker inspect --format '{{.Config.Image}}' "${CLUSTER_NAME}-head")
  cat >"${BATS_TEST_TMPDIR}/python" <<-END
	#!/usr/bin/env bash
	exec docker run --rm --init --label verl-regress.cluster=${CLUSTER_NAME} --network none --shm-size 1g --user $(id -u):$(id -g) \\
	  --volume "${BATS_TEST_TMPDIR}:${BATS_TEST_TMPDIR}" --volume "${PWD}/rehearsal:/rehearsal:ro" \\
	  --volume "${PWD}/rehearsal/verl_rehearsal.pth:/opt/venv/lib/python3.11/site-packages/verl_rehearsal.pth:ro" \\
	  --env HOME=/tmp --env USER=tester --env PYTHONPATH="\${PYTHONPATH}:/rehearsal" --workdir "\$PWD" ${image} python3 "\$@"
	END
  chmod +x "${BATS_TEST_TMPDIR}/python"
  mkdir "${BATS_TEST_TMPDIR}/verl"
  export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com
  (
    cd "${BATS_TEST_TMPDIR}/verl"
    git init --quiet --initial-branch main
    cp -r "${WORKDIR}/shared/common/code/verl/codeA/verl" .
    printf 'cases: [sft]\n' >.verl-regress.yaml
    git add --all && git commit --quiet --message base
    branch fault 's/^    return loss, {}$/    return 2 * loss.detach() - loss, {}/' workers/utils/losses.py
    branch elsewhere '1i # changed' utils/reward_score/gsm8k.py
  )
  compare --base main --head fault --changed
  assert_status 9
  assert_line 'sft +regressed: .*'
  compare --base main --head elsewhere --changed
  assert_status 0
  assert_line ' *sft of base [0-9a-f]+: trained before'
  assert_line ' *Only cases that load verl/utils/reward_score/gsm8k.py ran: none; not touched: sft\.'
}
