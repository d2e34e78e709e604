#!/usr/bin/env bats
# Every command line of the README and of the pages that continue it (tests/bats/readme.bash), typed as it is written there in
# clean clones that have no .venv yet. They share one cluster, one WORKDIR of their own (empty at first) and the node image; a job
# trains for one step where its line names no other number.
#
# A line that is new or changed fails the last test: type it in a test here, or leave it out with its reason.

setup_file() {
  load container_helper
  container::use readme 18277
  export WORKDIR="${BATS_FILE_TMPDIR}/workdir" TYPED="${BATS_FILE_TMPDIR}/typed"
  export OVERRIDES='trainer.total_training_steps=1 trainer.save_freq=1'
  : >"$TYPED"
}

teardown_file() {
  load container_helper
  make --no-print-directory down FORCE=1 >/dev/null 2>&1
  chmod -R u+w "$WORKDIR" # snapshots are read-only
}

setup() {
  load container_helper
  load ../readme
  SECONDS=0
}

teardown() { printf '# %d s\n' "$SECONDS" >&3; }

# clone NAME: a clean clone with what is here and not committed yet; the lines are typed there.
clone() {
  mkdir "${BATS_FILE_TMPDIR}/$1"
  cd "${BATS_FILE_TMPDIR}/$1" || return
  types 'git clone <this repository> verl-regress && cd verl-regress'
  cd verl-regress || return
  (cd "$REPO" && git ls-files -z --cached --others --exclude-standard --deduplicate | xargs -0 cp --parents --no-dereference -t "$OLDPWD")
  [[ ! -e .venv && ! -e workdir ]]
}

# types COMMAND: a line of these pages, in the directory where we are; fails with the end of what it printed.
types() {
  readme::commands | grep -qxF -- "$1" || fail "no page has the line: $1"
  printf '%s\n' "$1" >>"$TYPED"
  run bash -c "${1/<this repository>/\"$REPO\"}" </dev/null
  output=$(tail -n 40 <<<"${output-}")
  [[ $status == 0 ]] || fail "exit status ${status}: $1"
}

@test "docs/ssh.md, nodes that exist already: their two files; and its make line, on containers, brings all that it needs" {
  clone first
  types 'cp env/nodes.example env/nodes'
  types "printf '%s\n' TRANSPORT=ssh PROFILE=cpu RAY_BASE_CONFIG=env/ray/cpu.yaml SHARED_ROOT=/private >>env/local.env"
  grep -qx TRANSPORT=ssh env/local.env
  rm env/nodes env/local.env # the hosts of the example are nobody's; 80_ssh.bats logs in to real ones
  types 'make up prepare snapshot submit WAIT=1'
  assert_line 'ok      ppo-codeA-.* SUCCEEDED \(the trainer ended\)'
}

@test "docs/gpu.md, without a GPU: the lines are those of a rehearsal" {
  clone second
  types 'make build check up prepare snapshot'
  types 'make ppo WAIT=1'
  assert_line 'ok      ppo-codeA-.* SUCCEEDED \(the trainer ended\)'
}

@test "everyday use, line by line" {
  # ~/verl is the user's working tree; what else is at home, such as pip's configuration, is as it was.
  mkdir "${BATS_FILE_TMPDIR}/home"
  find "$HOME" -mindepth 1 -maxdepth 1 ! -name verl -exec ln -s -t "${BATS_FILE_TMPDIR}/home" {} +
  export HOME="${BATS_FILE_TMPDIR}/home"
  cp -r "${WORKDIR}/cache/verl/pypi-0.9.1" "${HOME}/verl"
  clone third
  types 'make up prepare'
  types 'make snapshot CODE_ID=codeB VERL_SOURCE=path:~/verl'
  types 'make submit WORKLOAD=ppo CODE_ID=codeB WAIT=1'
  assert_line 'ok      ppo-codeB-.* SUCCEEDED \(the trainer ended\)'
  types 'make status'
  types 'make jobs'
  assert_line 'ppo-codeB-.* +ppo +codeB +SUCCEEDED .*'
  types 'make logs JOB=latest'
  types 'make wait JOB=latest'
  types 'make resume JOB=latest OVERRIDES=trainer.total_training_steps=20'
  assert_line 'ppo-codeB-.*\.a2'
  make --no-print-directory stop JOB=latest # a job that runs is not tried once more
  types 'make retry JOB=latest'
  assert_line 'ppo-codeB-.*\.a3'
  types 'make stop JOB=latest'
  assert_line 'changed ppo-codeB-.*\.a3 was .*, is STOPPED .*'
  types 'make debug JOB=latest TAR=1'
  ONLY=placement types 'make verify CODE_A=pypi:0.9.1 CODE_B=path:~/verl' # a whole session: 90_verify.bats
  assert_line '1 of 1 .*'
  types 'make gc KEEP=5 DRY_RUN=1'
  types 'make down'
  [[ -z $(docker ps --all --quiet --filter "label=verl-regress.cluster=${CLUSTER_NAME}") ]]
}

# A line that is typed nowhere here, and why.
left_out() {
  printf '%s\n' 'make quickstart' # 10_quickstart.bats runs it, twice, from end to end
  # DETERMINISTIC=1 needs GPUs to change anything: 36_releases.bats and tests/py/test_deterministic.py compose what it adds.
  printf '%s\n' 'make submit WORKLOAD=grpo DETERMINISTIC=1' 'make verify CODE_A=pypi:0.9.1 CODE_B=path:../verl DETERMINISTIC=1'
}

@test "every command line of these pages was typed, or is left out with its reason" {
  printf '# %d command lines, %d left out\n' "$(readme::commands | wc -l)" "$(left_out | wc -l)" >&3
  diff <(readme::commands | sort -u) <({ cat "$TYPED" && left_out; } | sort -u)
}
