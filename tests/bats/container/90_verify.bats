#!/usr/bin/env bats
# `make verify`, `make bisect` and `make acceptance` on a live cluster: the verdict on changes of verl, the commit that made one, and
# whether the installation keeps its promises. Checks that fail: tests/session/test_checks.py, test_checks_sentences.py and
# test_acceptance.py.

setup_file() {
  load container_helper
  container::use verify 18269
  container::cluster
}

teardown_file() {
  load container_helper
  make --no-print-directory down >/dev/null 2>&1
}

setup() { load container_helper; }

# copy_of_a NAME: a directory with the verl of codeA, to change it.
copy_of_a() {
  mkdir -p "${BATS_FILE_TMPDIR}/$1"
  cp -r "${WORKDIR}/shared/common/code/verl/codeA/verl" "${BATS_FILE_TMPDIR}/$1"
  chmod -R u+w "${BATS_FILE_TMPDIR}/$1"
}

# plant_nan DIRECTORY: the loss of its SFT is NaN in training. It differs from noise without a second run of A.
plant_nan() { sed -i 's/^\( *loss = -masked_sum.*dp_size\)$/\1 * (float("nan") if torch.is_grad_enabled() else 1.0)/' "$1/verl/workers/utils/losses.py"; }

# is_first_over: the command that a test interrupts, whose id is in `first`, has ended.
is_first_over() { ! kill -0 "$first" 2>/dev/null; }

last_session() { find "${WORKDIR}/shared/verify" -mindepth 1 -maxdepth 1 | sort | tail -n 1; }

# interrupts LINE COMMAND...: Ctrl-C when the command has printed LINE.
interrupts() {
  source scripts/lib/wait.bash
  setsid env --default-signal=INT "${@:2}" >"${BATS_TEST_TMPDIR}/first" 2>&1 &
  first=$!
  wait::until 600 is_first_over grep -q "$1" "${BATS_TEST_TMPDIR}/first" || fail "$(<"${BATS_TEST_TMPDIR}/first")"
  kill -INT -- "-${first}"
  status=0
  wait "$first" || status=$?
  ((status == 130)) || fail "interrupted, it ended with ${status}: $(<"${BATS_TEST_TMPDIR}/first")"
}

@test "the opposite sign of B's advantages, replayed, interrupted: regressed at step 1" {
  copy_of_a planted
  sed -i 's/advantages = verl_F.masked_whiten(advantages, response_mask)$/advantages = -verl_F.masked_whiten(advantages, response_mask)/' \
    "${BATS_FILE_TMPDIR}/planted/verl/trainer/ppo/core_algos.py"
  # One short PPO: suites/rehearsal.yaml takes several minutes.
  printf 'cases:\n  ppo: {workload: ppo, steps: 2, recompute_rewards: true, overrides: [trainer.nnodes=1]}\n' >"${BATS_TEST_TMPDIR}/suite.yaml"
  REPLAY=1 SUITE="${BATS_TEST_TMPDIR}/suite.yaml" CODE_A=codeA CODE_B="path:${BATS_FILE_TMPDIR}/planted" interrupts 'step 1 of 2' scripts/60_verify.sh
  grep -qE ' +this session makes 2 to [0-9]+ runs.*' "${BATS_TEST_TMPDIR}/first"
  grep -q "the session can be continued: 'make verify SESSION=" "${BATS_TEST_TMPDIR}/first"
  REPLAY=1 SESSION=latest run scripts/60_verify.sh
  assert_status 9
  assert_line '==      regression session .*: A is codeA, B is verl-[0-9a-f]{8}'
  assert_line '([0-9]+) of \1 checks passed'
  assert_line 'ppo +regressed: with equal rewards, critic/advantages has the opposite sign in B at step 1: .*'
  assert_line 'first +step 1, critic/advantages/(max|min): A -?[0-9.]+, B -?[0-9.]+'
  assert_line 'code +1 of the loaded files differ: verl/trainer/ppo/core_algos.py'
  assert_line 'ppo rollout +identical: .*'
  assert_line 'note +which half: the trainer differs, the rollout is as in A'
  assert_line "note +this is about the trainer: .* with rewards of their own, .*"
  assert_line 'verdict +regressed \(exit status 9\)'
  session=$(last_session)
  # A wrote both steps, and B used them, with rewards of its own.
  (($(jq -r '.files | keys[]' "${session}/evidence/recording-ppo-100.json" | grep -cE '/[12]/0/tq_batch.pt$') == 2))
  [[ ! -e ${session}/replay ]]
  [[ $(jq .misused "${session}/evidence/job-ppo_b.json") == null ]]
  [[ $(jq -c '[.status, .verdict, .passed]' "${session}/report.json") == '[9,"regressed",true]' ]]
  [[ $(jq -r '.jobs | keys_unsorted | join(" ")' "${session}/report.json") == 'ppo_a ppo_b ppo_b_rollout' ]]
  grep -q '^# regressed: B breaks what A does (ppo' "${session}/report.md"
  (($(grep -o '<svg ' "${session}/report.html" | wc -l) >= 8)) # decisive metrics of PPO
  grep -q '>first difference: step 1<' "${session}/report.html"
  grep -qE 'tests="[0-9]+" failures="[12]"' "${session}/junit.xml"
  # B alone would have sampled something else at step 2.
  sampled() { jq -c '[.input, .output]' "${WORKDIR}/shared/jobs/$(jq -r ".jobs.ppo_$1.submission_id" "${session}/report.json")/samples/$2.jsonl" | sort; }
  (($(sampled a 1 | grep -c .) >= 16))
  [[ $(sampled a 1) == "$(sampled b_rollout 1)" && $(sampled a 1) == "$(sampled b 1)" && $(sampled a 2) == "$(sampled b 2)" ]]
}

@test "an SFT loss of B that grows with its micro-batches: regressed, with the factor" {
  copy_of_a accumulated
  sed -i 's|^\( *loss = -masked_sum(log_prob_flatten, loss_mask_flatten)\) / batch_num_tokens \* dp_size$|\1 / loss_mask_flatten.sum()|' \
    "${BATS_FILE_TMPDIR}/accumulated/verl/workers/utils/losses.py"
  printf 'cases:\n  split: {workload: sft, steps: 1, overrides: [trainer.nnodes=1], equal: [[data.micro_batch_size_per_gpu=2]]}\n' >"${BATS_TEST_TMPDIR}/split.yaml"
  SUITE="${BATS_TEST_TMPDIR}/split.yaml" CODE_A=codeA CODE_B="path:${BATS_FILE_TMPDIR}/accumulated" run scripts/60_verify.sh
  assert_status 9
  assert_line 'split +regressed: B breaks what A holds: (train|val)/(loss|grad_norm) is (3\.9|4(\.0)?)[0-9]* times as large with data.micro_batch_size_per_gpu=2 \([0-9.]+ instead of [0-9.]+\)'
  assert_line 'code +1 of the loaded files differ: verl/workers/utils/losses.py'
  [[ $(jq -r '.jobs | keys_unsorted | join(" ")' "$(last_session)/report.json") == 'split_b split_a split-1_b split-1_a' ]]
}

@test "make bisect, interrupted: finds the planted commit, and fresh runs confirm it" {
  history="${BATS_FILE_TMPDIR}/history"
  copy_of_a history
  git -C "$history" init --quiet --initial-branch main
  for number in {0..2}; do
    printf '# %s\n' "$number" >>"${history}/verl/__init__.py"
    ((number < 2)) || plant_nan "$history"
    git -C "$history" add .
    git -C "$history" -c user.name=me -c user.email=me@example.org commit --quiet --message "commit ${number}"
  done
  [[ -n $(git -C "$history" diff HEAD~1 HEAD -- verl/workers/utils/losses.py) ]]
  printf 'cases:\n  loss: {workload: sft, steps: 2, overrides: [trainer.nnodes=1]}\n' >"${BATS_TEST_TMPDIR}/small.yaml"
  VERL_REPO="path:${history}" GOOD=main~2 BAD=main SUITE="${BATS_TEST_TMPDIR}/small.yaml" interrupts '==      bisect: ' scripts/62_bisect.sh
  grep -q '2 commits change verl/: 2 runs for both ends' "${BATS_TEST_TMPDIR}/first"
  BISECT=latest run scripts/62_bisect.sh
  assert_status 0
  assert_line ' +what tells them apart: loss, .*train/loss.*'
  assert_line 'the first bad commit is [0-9a-f]{12} \(commit 2\); fresh runs of it and of its parent confirm it'
  search=$(find "${WORKDIR}/shared/bisect" -mindepth 1 -maxdepth 1 | sort | tail -n 1) # a name is a time
  [[ $(jq -r .found "${search}/report.json") == $(git -C "$history" rev-parse HEAD) ]]
  (($(jq '.commits | length' "${search}/report.json") <= 4))
  # GOOD's runs are taken over, so each commit needs one run of its own.
  for session in $(jq -r '.commits[].session' "${search}/report.json"); do
    [[ $(jq '[.jobs[] | select(.reused_from == null)] | length' "${WORKDIR}/shared/verify/${session}/report.json") == 1 ]]
  done
  grep -q '^+.*float("nan")' "${search}/report.md"
  grep -q '<svg ' "$(last_session)/report.html"
}

@test "make acceptance names a host outside that a job connects to; all else is kept" {
  copy_of_a egress
  printf '%s\n' 'import socket' 'outside = socket.socket()' 'outside.settimeout(0.2)' 'outside.connect_ex(("192.0.2.1", 80))' \
    >>"${BATS_FILE_TMPDIR}/egress/verl/workers/utils/losses.py"
  CODE_ID=egress VERL_SOURCE="path:${BATS_FILE_TMPDIR}/egress" scripts/31_snapshot_verl_code.sh
  CODE_ID=egress OVERRIDES=trainer.nnodes=1 run scripts/67_acceptance.sh
  assert_status 9
  assert_line ' +- the process .* asked for 192\.0\.2\.1:80'
  assert_line '5 of 10 checks passed, 4 not checked \(exit status 9\)'
  assert_line "ok      secrets +a secret reached every process .* \(checked [0-9]+ files, 6 answers of Ray, [0-9]+ files and [0-9]+ processes of 3 nodes while the job ran; [2-9] processes got it\)"
  report=$(find "${WORKDIR}/shared/acceptance" -mindepth 1 -maxdepth 1)
  [[ $(jq -c '[.checks[] | select(.skipped) | .name]' "${report}/report.json") == '["grpo","ppo","resume","verify"]' ]]
  [[ $(tar -xzOf "${report}/acceptance.tar.gz" --wildcards '*/logs/driver.log') == *'Total training steps: 4'* ]]
}
