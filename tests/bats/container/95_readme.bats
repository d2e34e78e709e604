#!/usr/bin/env bats
# Runs every command line of the README and of the pages that continue it (tests/bats/readme.bash) as it is written there, in a clean
# clone that has no .venv yet, on data that the files before have prepared; a job trains for one step unless its line names another number.
#
# A new or changed line fails the last test: run it in a test here, or add it to the exceptions with the reason.

setup_file() {
  load container_helper
  container::use readme 18277
  export TYPED="${BATS_FILE_TMPDIR}/typed" OVERRIDES='trainer.total_training_steps=1 trainer.save_freq=1 trainer.nnodes=1'
  : >"$TYPED"
}

teardown_file() {
  load container_helper
  make --no-print-directory down FORCE=1 >/dev/null 2>&1
}

setup() {
  load container_helper
  load ../readme
  source scripts/dev/files.bash
  SECONDS=0
}

teardown() { printf '# %d s\n' "$SECONDS" >&3; }

# clone: a clean clone with the uncommitted changes; the lines run there.
clone() {
  cd "$BATS_FILE_TMPDIR" || return
  types 'git clone <this repository> verl-regress && cd verl-regress'
  cd verl-regress || return
  files::copy_to "$PWD"
  [[ ! -e .venv && ! -e workdir ]]
}

# types COMMAND: runs a line of these pages in the current directory; fails with the end of its output.
types() {
  readme::commands | grep -qxF -- "$1" || fail "no page has the line: $1"
  printf '%s\n' "$1" >>"$TYPED"
  run bash -c "${1/<this repository>/\"$REPO\"}" </dev/null
  output=$(tail -n 40 <<<"${output-}")
  [[ $status == 0 ]] || fail "exit status ${status}: $1"
}

@test "docs/several-hosts.md: its files and its make line work" {
  clone
  types 'cp env/hosts.example env/hosts'
  types "printf '%s\n' HOSTS_FILE=env/hosts PROFILE=gpu WORKDIR=/nfs/verl-regress >>env/local.env"
  grep -qx HOSTS_FILE=env/hosts env/local.env
  rm env/hosts env/local.env # the hosts of the example do not exist; 85_hosts.bats uses real ones
  types 'cp env/nodes.example env/nodes'
  types "printf '%s\n' TRANSPORT=ssh PROFILE=cpu RAY_BASE_CONFIG=env/ray/cpu.yaml SHARED_ROOT=/private >>env/local.env"
  grep -qx TRANSPORT=ssh env/local.env
  rm env/nodes env/local.env                               # the hosts of the example do not exist; 80_ssh.bats logs in to real ones
  DRY_RUN=1 types 'make up prepare snapshot submit WAIT=1' # the job itself: everyday use
  assert_line '# runtime_env'
}

@test "docs/gpu.md, without a GPU: the lines are those of a rehearsal" {
  cd "${BATS_FILE_TMPDIR}/verl-regress"
  types 'make build check up prepare snapshot'
  DRY_RUN=1 types 'make submit WORKLOAD=ppo WAIT=1'
  assert_line '# runtime_env'
}

@test "everyday use, line by line" {
  # ~/verl is the user's working tree; the rest of the home, such as pip's configuration, stays as it was.
  mkdir "${BATS_FILE_TMPDIR}/home"
  find "$HOME" -mindepth 1 -maxdepth 1 ! -name verl -exec ln -s -t "${BATS_FILE_TMPDIR}/home" {} +
  export HOME="${BATS_FILE_TMPDIR}/home"
  cp -r "${WORKDIR}/cache/verl/pypi-0.9.1" "${HOME}/verl"
  cd "${BATS_FILE_TMPDIR}/verl-regress"
  types 'make build'
  types 'make up prepare'
  types 'make snapshot CODE_ID=codeB VERL_SOURCE=path:~/verl'
  WORKLOAD=sft types 'make submit CODE_ID=auto VERL_SOURCE=path:~/verl WAIT=1'
  assert_line 'ok      sft-verl-[0-9a-f]+-.* SUCCEEDED \(the trainer ended\)'
  types 'make submit WORKLOAD=ppo CODE_ID=codeB'
  types 'make status'
  types 'make wait JOB=latest'
  assert_line 'ok      ppo-codeB-.* SUCCEEDED \(the trainer ended\)'
  types 'make jobs'
  assert_line 'ppo-codeB-.* +ppo +codeB +SUCCEEDED .*'
  types 'make logs JOB=latest'
  types 'make resume JOB=latest OVERRIDES=trainer.total_training_steps=20'
  assert_line 'ppo-codeB-.*\.a2'
  make --no-print-directory stop JOB=latest # a running job cannot be retried
  types 'make retry JOB=latest'
  assert_line 'ppo-codeB-.*\.a3'
  types 'make stop JOB=latest'
  assert_line 'changed ppo-codeB-.*\.a3 was .*, is STOPPED .*'
  types 'make debug JOB=latest TAR=1'
  # One short run, which make history shows too; whole sessions: 90_verify.bats.
  echo 'cases: {sft: {workload: sft, steps: 1, overrides: [trainer.nnodes=1]}}' >"${BATS_TEST_TMPDIR}/suite.yaml"
  OVERRIDES='' ONLY=placement SUITE="${BATS_TEST_TMPDIR}/suite.yaml" types 'make verify CODE_A=pypi:0.9.1 CODE_B=path:~/verl'
  assert_line '1 of 1 .*'
  types 'make report'
  assert_line '.*/verify/.*/report\.html'
  types 'make history'
  assert_line 'page +.*/verify/history\.html'
  types 'make gc KEEP=5 DRY_RUN=1'
  types 'make down'
  [[ -z $(docker ps --all --quiet --filter "label=verl-regress.cluster=${CLUSTER_NAME}") ]]
}

# Lines that are not run here, and why.
left_out() {
  printf '%s\n' 'make quickstart' # 10_quickstart.bats runs it twice, from start to end
  printf '%s\n' 'make acceptance' # 90_verify.bats runs its script on a cluster that is up
  # DETERMINISTIC=1 has an effect only on GPUs: 36_releases.bats and tests/plan/test_request_deterministic.py compose what it adds.
  printf '%s\n' 'make submit WORKLOAD=grpo DETERMINISTIC=1' 'make verify CODE_A=pypi:0.9.1 CODE_B=path:../verl DETERMINISTIC=1'
}

@test "every command line of these pages was run, or is left out with a reason" {
  printf '# %d command lines, %d left out\n' "$(readme::commands | wc -l)" "$(left_out | wc -l)" >&3
  diff <(readme::commands | sort -u) <({ cat "$TYPED" && left_out; } | sort -u)
}
