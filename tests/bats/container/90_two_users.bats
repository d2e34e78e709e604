#!/usr/bin/env bats
# Two real users (uids) on one shared root, each with a checkout and a cluster: both submit, see, stop and collect their own
# jobs, and what one of them prepares for the other is refused or harmless.

setup_file() {
  load container_helper
  container::use team 18299
  [[ -d ${WORKDIR}/cache/verl/pypi-0.9.1 ]] || { container::cluster && make down FORCE=1 >/dev/null 2>&1; } # which fetches verl
  export HOUSE=/tmp/verl-regress-team-$$ ANN=41001 BOB=41002 TEAM=42000
  # A value of which the other is the beginning.
  SHORT_KEY=$(head -c 10 /dev/urandom | od -An -vtx1 | tr -d ' \n') LONG_KEY_REST=$(head -c 10 /dev/urandom | od -An -vtx1 | tr -d ' \n')
  export SHORT_KEY LONG_KEY_REST
  two::houses
  container::quietly bob two::bob_comes_first
  container::quietly ann two::ann_comes
}

teardown_file() {
  load container_helper
  ann make --no-print-directory down FORCE=1 >/dev/null 2>&1
  bob make --no-print-directory down FORCE=1 >/dev/null 2>&1
  rm -rf "$HOUSE"
}

setup() {
  load container_helper
  source scripts/lib/wait.bash
  shared=${HOUSE-}/shared
}

ann() { as ann "$ANN" 18301 "$@"; }

bob() { as bob "$BOB" 18302 "$@"; }

# as USER UID PORT ARGV...: in that user's checkout, with the groups of the team and of the engine.
as() {
  (cd "${HOUSE}/$1" && env -i PATH="$PATH" HOME="${HOUSE}/$1" DOCKER_CONFIG="${HOUSE}/$1/docker-config" NO_COLOR=1 PROFILE=cpu WORKERS=1 \
    CLUSTER_NAME="vrtest-$1" DASHBOARD_PORT="$3" SHARED_GROUP="$TEAM" VERL_SOURCE="path:${HOUSE}/$1/verl-source" SHORT_KEY="$SHORT_KEY" \
    LONG_KEY="${SHORT_KEY}${LONG_KEY_REST}" setpriv --reuid "$2" --regid "$2" --groups "$(stat -c %g /var/run/docker.sock),${TEAM}" "${@:4}")
}

# two::houses: a checkout for each, one shared root, and a verl of Ann's that prints her secrets.
two::houses() {
  local user
  source scripts/dev/files.bash
  mkdir "$HOUSE" "${HOUSE}"/{shared,ann,bob}
  container::seed "${HOUSE}/shared"
  for user in ann bob; do
    files::copy_to "${HOUSE}/${user}"
    cp -r "$HOME/.docker" "${HOUSE}/${user}/docker-config"
    mkdir "${HOUSE}/${user}/workdir"
    ln -s "${HOUSE}/shared" "${HOUSE}/${user}/workdir/shared"
    mkdir "${HOUSE}/${user}/verl-source"
    cp -r "${WORKDIR}/cache/verl/pypi-0.9.1/verl" "${HOUSE}/${user}/verl-source"
  done
  printf 'import os as _os\n\nprint("keys", _os.environ.get("SHORT_KEY"), _os.environ.get("LONG_KEY"), flush=True)\n' \
    >>"${HOUSE}/ann/verl-source/verl/__init__.py"
  {
    cat jobspecs/sft.yaml
    printf 'secrets: [{name: SHORT_KEY}, {name: LONG_KEY}]\n'
  } >"${HOUSE}/ann/spec.yaml"
  printf '00000000000a%04x\n' 1 >"${HOUSE}/ann/workdir/id" # as if Bob had read it there
  chown -hR "${ANN}:${ANN}" "${HOUSE}/ann"
  chown -hR "${BOB}:${BOB}" "${HOUSE}/bob" "${HOUSE}/shared"
  # Data and models that were copied here are of the group, like what `make prepare` makes.
  [[ ! -d ${HOUSE}/shared/common ]] || chgrp -hR "$TEAM" "${HOUSE}/shared"/{datasets,common/models}
}

# Where the copies of Ann's checkout will be; Bob may make entries there.
two::place() { printf '%s/shared/common/code/verl_regress/00000000000a0001\n' "$HOUSE"; }

two::bob_comes_first() {
  bob make --no-print-directory up prepare &&
    bob cp -r "$(two::newest_helper bob)" "${HOUSE}/bob/planted" &&
    bob sh -c 'printf "import os\nos.mkdir(\"/private/user/ran\")\n" >planted/run.py'
}

# two::newest_helper USER: that user's copy of the helper on the shared root.
two::newest_helper() {
  local id
  id=$(<"${HOUSE}/$1/workdir/id")
  find "${HOUSE}/shared/common/code/verl_regress/${id}" -mindepth 1 -maxdepth 1 -type d -regex '.*/[0-9a-f]+'
}

# two::ann_comes: the first time she finds what Bob has put where her copy of the helper should be; a test checks the message that she got.
two::ann_comes() {
  local status=0
  bob mkdir "$(two::place)" && bob mv planted "$(two::place)/$(basename "$(two::newest_helper bob)")" || return
  ann make --no-print-directory up >"${HOUSE}/first" 2>&1 || status=$?
  printf '%d\n' "$status" >"${HOUSE}/first.status"
  bob rm -r "$(two::place)" && ann make --no-print-directory up prepare snapshot
}

# two::refused STATUS LINE ARGV...: the command ends like this.
two::refused() {
  run "${@:3}"
  assert_status "$1"
  assert_line "$2"
}

# two::of_ann: every file of hers on the shared root, with its size, time and mode; without what Ray and her own launcher write,
# and without the lock that all share.
two::of_ann() { find "$shared" -user "$ANN" -type f ! -path "${shared}/ray/*" ! -path "${shared}/jobs/.lock" -printf '%p %s %T@ %m\n' | sort; }

# two::await_checkpoint ID: a running job has saved a step.
two::await_checkpoint() {
  wait::until 600 - two::has_checkpoint_or_end "$1" || fail "$1 has no checkpoint after 600 s"
  [[ ! -s ${shared}/jobs/$1/state/ended ]] || fail "$1 ended: $(tail -n 20 "${shared}/jobs/$1/logs/driver.log")"
}
two::has_checkpoint_or_end() { [[ -s ${shared}/jobs/$1/state/ended || -s ${shared}/jobs/$1/checkpoints/latest_checkpointed_iteration.txt ]]; }

# two::age ID: makes a job look as if it had ended two days ago and written nothing since.
two::age() { find "${shared}/jobs/$1" -exec touch --no-dereference -d '2 days ago' {} +; }

readonly LONG='trainer.nnodes=1 trainer.save_freq=10 trainer.total_epochs=999 trainer.total_training_steps=9999'

@test "two users: a copy of the helper from another user is not run" {
  output=$(<"${HOUSE}/first") status=$(<"${HOUSE}/first.status")
  # What make runs ends with 1, and make itself with 2 for any error.
  [[ $status == 2 && $output == *'12_install_py_deps: exit 1 (our own error)'* && ! -e ${shared}/user/ran ]] || fail 'it was run'
  line="error   /private/common/code/verl_regress/00000000000a0001/[0-9a-f]{12} belongs to user ${BOB}, and what is there would run as you: set TRUSTED_UIDS=${BOB} if you trust that user, or use another SHARED_ROOT\."
  assert_line "$line"
  [[ $(stat -c %u "$(two::place)") == "$ANN" ]]
}

@test "two users: data and models of the other are read after one line in env/local.env" {
  local what kind
  for what in dataset=datasets model=common/models; do
    kind=${what%=*}
    # The other of both is the machine's.
    chown -R root "${shared}"/{datasets,common/models}
    chown -R "$BOB" "${shared}/${what#*=}"
    two::refused 2 \
      "error   ${kind}=[^ ]+ \(from the knob ${kind^^}\) is refused, because [^ ]+ belongs to user ${BOB}, and what is there decides what your job does: set TRUSTED_UIDS=${BOB} if you trust that user, or TRUSTED_UIDS=group if you trust all of SHARED_GROUP, or name one of your own\." \
      ann env SUBMISSION_ID=refused scripts/44_submit_sdk.sh spec.yaml
  done
  chown -R "$BOB" "${shared}"/{datasets,common/models}
  ann sh -c 'echo TRUSTED_UIDS=group >>env/local.env'
  run ann env DRY_RUN=1 scripts/44_submit_sdk.sh spec.yaml
  assert_status 0
  [[ ! -e ${shared}/jobs/refused ]]
}

@test "two users: both train at once, see both jobs, and stop their own" {
  run ann env OVERRIDES="$LONG" SUBMISSION_ID=anns scripts/44_submit_sdk.sh spec.yaml
  assert_status 0
  run bob env CODE_ID=codeA TRUSTED_UIDS="$ANN" OVERRIDES="$LONG" SUBMISSION_ID=bobs scripts/42_submit_sft_minimal.sh
  assert_status 0
  two::await_checkpoint anns
  two::await_checkpoint bobs
  for user in ann bob; do
    run "$user" make --no-print-directory jobs
    assert_status 0
    assert_line 'anns +sft +codeA +RUNNING .*'
    assert_line 'bobs +sft +codeA +RUNNING .*'
  done
  run bob make --no-print-directory logs JOB=anns METRICS=1
  assert_status 0
  assert_line '\{"step": ?1,.*'
  [[ $(stat -c '%u:%g %a' "${shared}/jobs"/{anns,bobs} | paste -sd' ') == "${ANN}:${TEAM} 2755 ${BOB}:${TEAM} 2755" ]]
  [[ -z $(find "${shared}/jobs/anns" ! -user "$ANN")$(find "${shared}/jobs/bobs" ! -user "$BOB") ]]

  two::refused 2 \
    "error   anns is on the cluster vrtest-ann, and CLUSTER_NAME is vrtest-bob: stop it from there \(user ${ANN}, ${HOUSE}/ann/workdir\)\." \
    bob env JOB=anns scripts/54_stop.sh
  for user in ann bob; do
    run "$user" env JOB=latest scripts/54_stop.sh
    assert_status 0
    assert_line "changed ${user}s was RUNNING, is STOPPED .*"
  done
  grep -qxF 'keys <secret SHORT_KEY> <secret LONG_KEY>' "${shared}/jobs/anns/logs/driver.log" || fail "$(grep keys "${shared}/jobs/anns/logs/driver.log")"
}

@test "two users: a reward function and a checkpoint of the other are refused" {
  local reward=/private/user/code/ann/reward.py checkpoint
  run bob env CODE_ID=codeB make --no-print-directory snapshot
  assert_status 0
  ann mkdir "${shared}/user/code/ann"
  printf 'def compute_score(*args, **kwargs):\n    return 1.0\n' | ann tee "${shared}/user/code/ann/reward.py" >/dev/null
  printf 'workload: ppo\ncode_id: codeB\nreward_fn_path: %s\n' "$reward" | bob tee reward.yaml >/dev/null
  line="error   reward\.custom_reward_function\.path=[^ ]+/user/code/ann/reward\.py \(from [^ ]+\) is refused, because [^ ]+/reward\.py belongs to user ${ANN}, and what is there decides what your job does: set TRUSTED_UIDS=${ANN} if you trust that user, or TRUSTED_UIDS=group if you trust all of SHARED_GROUP, or name one of your own\."
  two::refused 2 "$line" bob env SUBMISSION_ID=refused scripts/44_submit_sdk.sh reward.yaml
  printf 'workload: ppo\ncode_id: codeB\n' | bob tee ppo.yaml >/dev/null
  two::refused 2 "$line" bob env SUBMISSION_ID=refused OVERRIDES="reward.custom_reward_function.path=${reward}" scripts/44_submit_sdk.sh ppo.yaml
  checkpoint=$(find "${shared}/jobs/anns/checkpoints" -maxdepth 1 -name 'global_step_*' | head -n 1)
  two::refused 2 \
    "error   trainer\.resume_from_path=[^ ]+ \(from OVERRIDES\) is refused, because [^ ]+/jobs/anns/checkpoints/[^ ]+ belongs to user ${ANN}, and what is there decides what your job does: .*" \
    bob env SUBMISSION_ID=refused CODE_ID=codeB OVERRIDES="trainer.resume_mode=resume_path trainer.resume_from_path=/private/jobs/anns/checkpoints/${checkpoint##*/}" \
    scripts/42_submit_sft_minimal.sh
  [[ ! -e ${shared}/jobs/refused ]]
}

@test "two users: a snapshot of the other is not run" {
  two::refused 2 \
    "error   CODE_ID=codeA \(from the command line\) is refused, because ${HOUSE}/bob/workdir/shared/common/code/verl/codeA belongs to user ${ANN}, and what is there decides what your job does: set TRUSTED_UIDS=${ANN} if you trust that user, or TRUSTED_UIDS=group if you trust all of SHARED_GROUP, or make a snapshot of your own under another CODE_ID\." \
    bob env CODE_ID=codeA SUBMISSION_ID=refused scripts/42_submit_sft_minimal.sh
  [[ ! -e ${shared}/jobs/refused ]]
}

@test "two users: the token and the secrets of one never reach the other" {
  local token="${HOUSE}/ann/workdir/secrets/vrtest-ann.token" place
  ann test -r "$token"
  run bob cat "$token"
  [[ $status != 0 && $output == *'Permission denied'* ]]
  # shellcheck disable=SC2016  # expanded there
  run bob bash -c 'source scripts/lib/dashboard.bash; bash -c "$DASHBOARD_ASK" ask 127.0.0.1 18301 /api/jobs/ workdir/secrets/vrtest-bob.token'
  [[ $output == 403 ]] || fail "Ann's Ray answers Bob's token"
  run ann make --no-print-directory debug JOB=anns
  assert_status 0
  # Of the jobs above, which printed both: the whole tail of the longer one is gone, in the bundle too.
  for place in "$SHORT_KEY" "$LONG_KEY_REST"; do
    ! grep -rqF -e "$place" "${shared}/jobs" "${shared}/ray" "${shared}/queue" || fail "$(grep -rlF -e "$place" "$shared")"
  done
}

@test "two users: gc removes the caller's own old checkpoints alone" {
  local before
  # A job of each that leads to checkpoints of a job that is kept, or of the other.
  ann mkdir -p "${shared}/jobs/hers-by-hand/state"
  bob mkdir -p "${shared}/jobs/his-by-hand/state"
  ann ln -s ../bobs/checkpoints "${shared}/jobs/hers-by-hand/checkpoints"
  bob ln -s ../anns/checkpoints "${shared}/jobs/his-by-hand/checkpoints"
  bob ln -s ../anns/attempts "${shared}/jobs/his-by-hand/attempts"
  for job in anns bobs hers-by-hand his-by-hand; do two::age "$job"; done
  before=$(two::of_ann)
  two::refused 0 ' +keep 1 \(of another checkout, cluster or user\): anns' bob env KEEP=0 scripts/70_gc.sh
  assert_line 'changed removed checkpoints of bobs \(.*\): .*'
  diff <(two::of_ann) - <<<"$before"
  [[ -z $(ls -A "${shared}/jobs/bobs/checkpoints") && -n $(ls -A "${shared}/jobs/anns/checkpoints") ]]
  [[ -L ${shared}/jobs/his-by-hand/checkpoints && -d ${shared}/common/code/verl/codeA ]]
  run ann env KEEP=0 scripts/70_gc.sh
  assert_status 0
  assert_line 'changed removed checkpoints of anns \(.*\): .*'
  [[ -z $(ls -A "${shared}/jobs/anns/checkpoints") && -s ${shared}/jobs/bobs/logs/driver.log ]]
}
