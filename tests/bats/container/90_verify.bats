#!/usr/bin/env bats
# `make verify` on a live cluster: the verdict on changes of verl, and red for a check that is broken in the running system.

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

# is_first_over: the command that a test interrupts, whose id is in `first`, has ended.
is_first_over() { ! kill -0 "$first" 2>/dev/null; }

last_session() { find "${WORKDIR}/shared/verify" -mindepth 1 -maxdepth 1 | sort | tail -n 1; }

@test "the opposite sign of B's advantages is regressed, with first step and metric" {
  copy_of_a planted
  sed -i 's/advantages = verl_F.masked_whiten(advantages, response_mask)$/advantages = -verl_F.masked_whiten(advantages, response_mask)/' \
    "${BATS_FILE_TMPDIR}/planted/verl/trainer/ppo/core_algos.py"
  # One PPO and one SFT, short: suites/rehearsal.yaml takes several minutes.
  printf 'cases:\n  ppo: {workload: ppo, steps: 2, overrides: [trainer.nnodes=1]}\n  loss: {workload: sft, steps: 10}\n' >"${BATS_TEST_TMPDIR}/suite.yaml"
  SUITE="${BATS_TEST_TMPDIR}/suite.yaml" CODE_A=codeA CODE_B="path:${BATS_FILE_TMPDIR}/planted" run scripts/60_verify.sh
  assert_status 9
  assert_line ' +this session makes 4 to [0-9]+ runs.*'
  assert_line '([0-9]+) of \1 checks passed'
  assert_line 'ppo +regressed: with equal rewards, critic/advantages has the opposite sign in B at step 1: .*'
  assert_line 'first +step 1, critic/advantages/(max|min): A -?[0-9.]+, B -?[0-9.]+'
  assert_line 'code +1 of the loaded files differ: verl/trainer/ppo/core_algos.py'
  assert_line 'loss +(identical|same): .*'
  assert_line 'verdict +regressed \(exit status 9\)'
  session=$(last_session)
  [[ $(jq -c '[.status, .verdict, .passed]' "${session}/report.json") == '[9,"regressed",true]' ]]
  [[ $(jq -r '.jobs | keys_unsorted | join(" ")' "${session}/report.json") == 'ppo_b ppo_a loss_b loss_a' ]]
  grep -q '^# regressed: B breaks what A does (ppo' "${session}/report.md"
  # 3 decisive metrics of SFT, and at least 8 of PPO.
  (($(grep -o '<svg ' "${session}/report.html" | wc -l) >= 11))
  grep -q '>first difference: step 1<' "${session}/report.html"
  grep -qE 'tests="[0-9]+" failures="[12]"' "${session}/junit.xml"
  # Both began with the same weights, so they sampled the same at step 1, and something else at the end.
  sampled() { jq -c '[.input, .output]' "${WORKDIR}/shared/jobs/$(jq -r ".jobs.ppo_$1.submission_id" "${session}/report.json")/samples/$2.jsonl" | sort; }
  (($(sampled a 1 | grep -c .) >= 16))
  [[ $(sampled a 1) == "$(sampled b 1)" && $(sampled a 2) != "$(sampled b 2)" ]]
  # What the session costs in addition to its bare jobs: printed, not asserted.
  printf '# jobs: %s s, session: %s\n' "$(jq '[.jobs[].seconds] | add' "${session}/report.json")" \
    "$(grep -oE '60_verify: done in [0-9.]+ s|exit 9 .* after [0-9.]+ s' <<<"$output")" >&3
}

@test "a loss of B that is NaN, interrupted: the session goes on, and B is regressed" {
  copy_of_a nan
  sed -i 's/^\( *loss = -masked_sum.*dp_size\)$/\1 * (float("nan") if torch.is_grad_enabled() else 1.0)/' "${BATS_FILE_TMPDIR}/nan/verl/workers/utils/losses.py"
  printf 'cases:\n  loss: {workload: sft, steps: 10}\n' >"${BATS_TEST_TMPDIR}/small.yaml"
  source scripts/lib/wait.bash
  SUITE="${BATS_TEST_TMPDIR}/small.yaml" CODE_A=codeA CODE_B="path:${BATS_FILE_TMPDIR}/nan" setsid env --default-signal=INT scripts/60_verify.sh >"${BATS_TEST_TMPDIR}/first" 2>&1 &
  first=$!
  wait::until 120 is_first_over grep -q 'step 1 of 10' "${BATS_TEST_TMPDIR}/first" || fail "$(<"${BATS_TEST_TMPDIR}/first")"
  kill -INT -- "-${first}"
  status=0
  wait "$first" || status=$?
  ((status == 130)) || fail "interrupted, it ended with ${status}: $(<"${BATS_TEST_TMPDIR}/first")"
  grep -q "the session can be continued: 'make verify SESSION=" "${BATS_TEST_TMPDIR}/first"
  session=$(last_session)
  SESSION=latest run scripts/60_verify.sh
  assert_status 9
  assert_line 'warning loss-b-.*: [0-9]+ metrics are not finite since step 1'
  assert_line '==      regression session .*: A is codeA, B is verl-[0-9a-f]{8}'
  assert_line 'skip    loss_a \(the run loss-a-[0-9TZ]+ of the session [0-9TZ]+ is the same\)'
  assert_line "loss +regressed: A trains to the end, and in B's .* train/loss is NaN or infinite \(null in the record\) at step 1.*"
  [[ $(last_session) == "$session" ]]
  run scripts/58_jobs.sh
  assert_line 'loss-b-.* SUCCEEDED +1 +10 .* [0-9]+ metrics are not finite since step 1'
  run scripts/50_status.sh
  assert_line 'loss-b-.* SUCCEEDED .* [0-9]+ metrics are not finite since step 1'
  [[ $(jq -r '.jobs.loss_b.submission_id' "${session}/report.json") == "loss-b-${session##*/}" ]]
  [[ $(container::jobs | grep -c "${session##*/}") == 1 ]]
  SESSION=${session##*/} run scripts/60_verify.sh
  assert_status 2
  assert_line "error   SESSION=${session##*/} \\(${session##*/}\\) is over: read .*/report.md, or leave SESSION empty for a new one."
}

@test "make bisect over 4 commits, interrupted: the planted one, confirmed" {
  history="${BATS_FILE_TMPDIR}/history"
  copy_of_a history
  git -C "$history" init --quiet --initial-branch main
  # Beside a broken commit git goes on by the commits' hashes, and thus by their dates: with these each run takes the same way.
  local -x GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z
  for number in {0..4}; do
    printf '# %s\n' "$number" >>"${history}/verl/__init__.py"
    case $number in
      2) sed -i '1i import no_such_module' "${history}/verl/trainer/sft_trainer_ray.py" ;;
      3) sed -i '1d' "${history}/verl/trainer/sft_trainer_ray.py" ;;
      4) sed -i 's/loss = -masked_sum(log_prob_flatten/loss = -2 * masked_sum(log_prob_flatten/' "${history}/verl/workers/utils/losses.py" ;;
    esac
    git -C "$history" add .
    git -C "$history" -c user.name=me -c user.email=me@example.org commit --quiet --message "commit ${number}"
  done
  [[ -n $(git -C "$history" diff HEAD~1 HEAD -- verl/workers/utils/losses.py) ]]
  printf 'cases:\n  loss: {workload: sft, steps: 2, overrides: [trainer.nnodes=1]}\n' >"${BATS_TEST_TMPDIR}/small.yaml"
  source scripts/lib/wait.bash
  VERL_REPO="path:${history}" GOOD=main~4 BAD=main SUITE="${BATS_TEST_TMPDIR}/small.yaml" setsid env --default-signal=INT scripts/62_bisect.sh >"${BATS_TEST_TMPDIR}/first" 2>&1 &
  first=$!
  wait::until 600 is_first_over grep -q '==      bisect: ' "${BATS_TEST_TMPDIR}/first" || fail "$(<"${BATS_TEST_TMPDIR}/first")"
  kill -INT -- "-${first}"
  status=0
  wait "$first" || status=$?
  ((status == 130)) || fail "interrupted, it ended with ${status}: $(<"${BATS_TEST_TMPDIR}/first")"
  grep -q '4 commits change verl/: 2 runs for both ends' "${BATS_TEST_TMPDIR}/first"
  BISECT=latest run scripts/62_bisect.sh
  assert_status 0
  assert_line ' +what tells them apart: loss, step 1, train/loss: GOOD [0-9.]+, BAD [0-9.]+; (changed|regressed): .*'
  assert_line ' +[0-9a-f]{12} is skipped: .*no_such_module.*'
  assert_line 'the first bad commit is [0-9a-f]{12} \(commit 4\); fresh runs of it and of its parent confirm it'
  search=$(find "${WORKDIR}/shared/bisect" -mindepth 1 -maxdepth 1 | sort | tail -n 1) # a name is a time
  [[ $(jq -r .found "${search}/report.json") == $(git -C "$history" rev-parse HEAD) ]]
  (($(jq '.commits | length' "${search}/report.json") <= 6))
  # GOOD's runs are taken over, so each commit needs one run of its own.
  for session in $(jq -r '.commits[].session' "${search}/report.json"); do
    [[ $(jq '[.jobs[] | select(.reused_from == null)] | length' "${WORKDIR}/shared/verify/${session}/report.json") == 1 ]]
  done
  [[ $(jq -r '[.commits[] | select(.word == "skip")] | length' "${search}/report.json") == 1 ]]
  grep -q '^+.*2 \* ' "${search}/report.md"
  grep -q '<svg ' "$(last_session)/report.html"
}

# helper_in NODE ARG...: runs the helper there.
helper_in() { docker exec "vrtest-verify-$1" python3 "$HELPER/py/run.py" --shared-root /private "${@:2}"; }

# judged LINE JOB: a session with only that check of that job; sets status and output.
judged() {
  local session
  session=$(docker exec -i vrtest-verify-head python3 "$HELPER/py/run.py" --shared-root /private verify begin --name rehearsal \
    --profile cpu --cluster vrtest-verify --only "$1" --code-a codeA --code-b codeA <<<'cases: {sft: {workload: sft}}')
  helper_in head verify record --session "$session" --name sft_b --job "$2"
  [[ $1 != imports ]] || helper_in head verify record --session "$session" --name sft_a --job "$2"
  run helper_in head verify judge --session "$session"
}

# The helper as the scripts install it, and a stream of JobSpec and base config as they send it.
stream() {
  HELPER=$(bash -c 'source scripts/lib/regress.bash; cli::begin; trap - EXIT; env::load; helper::dir')
  cp jobspecs/sft.yaml "${BATS_TEST_TMPDIR}/job_spec"
  sed "s|http://127.0.0.1:8265|${1:-http://127.0.0.1:8265}|" env/ray/cpu.yaml >"${BATS_TEST_TMPDIR}/ray_config"
  SUBMIT=(submit --spec-name jobspecs/sft.yaml --base-name env/ray/cpu.yaml --profile cpu --cluster vrtest-verify --default-model tiny-qwen2
    --default-dataset sums --default-code-id codeA --overrides=trainer.total_training_steps=1)
}

@test "red: a driver on the head" {
  stream
  # The plan refuses such a request, so the submitter is changed just before it calls Ray.
  tar -C "$BATS_TEST_TMPDIR" -c job_spec ray_config | docker exec --interactive vrtest-verify-head python3 -c '
import sys
sys.path[:0] = [f"{sys.argv[1]}/{part}" for part in ("py", "py/hooks", "judge")]
from verl_regress import cli
from verl_regress.cluster import ray_api
real = ray_api.RayApi.submit
ray_api.RayApi.submit = lambda self, **asked: real(self, **{**asked, "entrypoint_num_cpus": 0, "entrypoint_resources": {}})
sys.exit(cli.main(["--shared-root", "/private", *sys.argv[2:]]))' "$HELPER" "${SUBMIT[@]}" --submission-id=on-the-head
  JOB=on-the-head scripts/52_wait.sh
  judged placement on-the-head
  assert_status 9
  assert_line 'FAIL +placement .*'
  assert_line " +- the driver of sft_b ran on $(container::ip head); workers are .*"
}

@test "red: a marker that was swapped" {
  CODE_ID=swapped scripts/31_snapshot_verl_code.sh
  marker=${WORKDIR}/shared/common/code/verl/swapped/mvp_marker.py
  chmod u+w "$(dirname "$marker")" && rm "$marker" && printf 'MARKER = "codeA"\n' >"$marker"
  WAIT=1 SUBMISSION_ID=swapped CODE_ID=swapped run scripts/42_submit_sft_minimal.sh
  assert_status 3
  stream
  judged imports swapped
  assert_status 9
  assert_line " +- sft_b did not print 'MVP_PRECHECK_MARKER: swapped'"
}
