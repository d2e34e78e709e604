#!/usr/bin/env bats
# Bad input on a live cluster: one sentence with the value, where it came from and the cure, the right exit status, and nothing
# created.

setup_file() {
  load container_helper
  container::use quick 18265
  container::cluster
}

setup() {
  load container_helper
  remember
}

# remember, is_as_remembered: records what is under the shared root, and checks that nothing was added.
remember() { container::listing >"${BATS_TEST_TMPDIR}/before"; }
is_as_remembered() { diff "${BATS_TEST_TMPDIR}/before" <(container::listing); }

# refused STATUS SENTENCE COMMAND...: exits with that status and that whole sentence, and creates nothing.
refused() {
  local status_wanted=$1 sentence=$2
  shift 2
  run "$@"
  assert_status "$status_wanted"
  grep -qxF -- "error   ${sentence}" <<<"$output" || fail "no line: error   ${sentence}"
  is_as_remembered || fail 'something was created'
}

@test "a misspelt override is refused within seconds, with the nearest real key" {
  printf '%s\n' '# mine' 'trainer.logger=["a b"]' 'trainer.totl_epochs=2' >"${BATS_TEST_TMPDIR}/overrides"
  SECONDS=0
  refused 2 "The override 'trainer.totl_epochs=2' (from OVERRIDES_FILE ${BATS_TEST_TMPDIR}/overrides line 3) sets a key that ppo_trainer of CODE_ID=codeA (verl 0.9.1) lacks: did you mean trainer.total_epochs? To add a new key, write '+trainer.totl_epochs=2'." \
    env OVERRIDES_FILE="${BATS_TEST_TMPDIR}/overrides" scripts/44_submit_sdk.sh
  ((SECONDS < 60)) # about one second if nothing else runs
}

@test "DRY_RUN=1 prints what would be submitted and a line to paste, creates nothing" {
  printf '{"workload": "ppo", "trainer_overrides": ["trainer.save_freq=10"]}' >"${BATS_TEST_TMPDIR}/spec.json"
  DRY_RUN=1 run scripts/44_submit_sdk.sh "${BATS_TEST_TMPDIR}/spec.json"
  assert_status 0
  assert_line '# resolved config'
  assert_line "# verl's config"
  assert_line '# runtime_env'
  line=$(grep '^ray job submit ' <<<"$output")
  eval "set -- ${line}" # as if pasted: the shell reads the line back into the same words
  [[ $# == 21 && ${*: -3:2} == */run.py\ launch ]] || fail "$# words"
  is_as_remembered
}

@test "GSM8K from a folder becomes datasets/gsm8k in verl's format" {
  [[ -n ${GSM8K_DIR:-} ]] || skip 'GSM8K_DIR names no folder with train.jsonl and test.jsonl'
  DATASET_SOURCE="path:${GSM8K_DIR}" DATASET=gsm8k run scripts/30_prepare_data_and_model.sh
  assert_status 0
  run docker exec vrtest-quick-worker-0 python3 -c '
import pyarrow.parquet as parquet
for split, rows in (("train", 1024), ("test", 256)):
    table = parquet.read_table(f"/private/datasets/gsm8k/{split}.parquet")
    assert table.num_rows == rows, table.num_rows
    assert table.column_names == ["data_source", "prompt", "ability", "reward_model", "extra_info"], table.column_names
    assert table["reward_model"][0].as_py()["style"] == "rule"'
  assert_status 0
}
