# acceptance: the steps of `make acceptance`. Each calls what the targets call; one that fails ends no other, and the helper judges all.
# shellcheck shell=bash

# acceptance::check: a CODE_ID that the user only names is there already, where the shared root is on this host.
acceptance::check() { ! snapshot::is_named || snapshot::check CODE_ID >/dev/null; }

# acceptance::begin: makes the report's directory. Sets ACCEPTANCE_NAME, ACCEPTANCE_FILES, and ACCEPTANCE_CANARY, the first job's secret.
acceptance::begin() {
  local -
  set +x
  acceptance::_ensure_code
  cli::temp_dir ACCEPTANCE_FILES
  ACCEPTANCE_CANARY=$(od -An -vtx1 -N20 /dev/urandom | tr -d ' \n') # JSON, URLs and shells do not change hexadecimal digits
  ACCEPTANCE_NAME=$(helper::run head acceptance begin)
}

# acceptance::_ensure_code: the snapshot CODE_ID, which is made of VERL_SOURCE unless the user only names it: a wrong name makes none.
acceptance::_ensure_code() {
  job::make_code
  if snapshot::is_named; then snapshot::need_on_head CODE_ID; else snapshot::ensure "$CODE_ID" "$VERL_SOURCE" >/dev/null; fi
}

# acceptance::step NAME JOB_OF COMMAND...: runs COMMAND, and keeps its status, its seconds and what it prints. It needs the job of the step
# JOB_OF, if that is not empty: without it, it does not run.
acceptance::step() {
  local name=$1 began=$SECONDS status=0
  [[ -z $2 || -s ${ACCEPTANCE_FILES}/$2.job ]] || return 0
  log::step "acceptance: ${name}"
  cli::on_interrupt acceptance::_tell_left "${ACCEPTANCE_FILES}/${name}.job"
  cli::part acceptance::_logged "${ACCEPTANCE_FILES}/${name}.log" "${@:3}"
  wait "${CLI_PARTS[-1]}" || status=$?
  unset 'CLI_PARTS[-1]'
  cli::on_interrupt true
  printf '%s\t%s\t%s\n' "$name" "$status" "$((SECONDS - began))" >>"${ACCEPTANCE_FILES}/steps"
}

# acceptance::_tell_left FILE: for an interrupted step: its job, whose id is in FILE if it submitted one.
acceptance::_tell_left() {
  local job
  [[ -s $1 ]] || return 0
  job=$(<"$1")
  log::info "${job} keeps running: 'make wait JOB=${job}' follows it, 'make stop JOB=${job}' ends it"
}

acceptance::_logged() { "${@:2}" 2>&1 | tee -- "$1" >&2; }

# acceptance::train WORKLOAD STEPS [SPEC]: its last step leaves a checkpoint.
acceptance::train() {
  env::give WORKLOAD "$1" JOBSPEC '' SUBMISSION_ID '' WAIT '' DRY_RUN '' OVERRIDES_FILE '' TRAIN_SEED '' DEBUGGER '' FAIL_ON '' REWARD_CHECK ''
  env::give OVERRIDES "${OVERRIDES:+${OVERRIDES} }trainer.total_training_steps=$2 trainer.save_freq=$2"
  job::submit "${3:-$(job::spec_of "$1")}" >"${ACCEPTANCE_FILES}/$1.job"
  job::follow "$(<"${ACCEPTANCE_FILES}/$1.job")"
}

# acceptance::train_with_secret: SFT with a secret; every node watches its processes meanwhile.
acceptance::train_with_secret() {
  local - spec=${ACCEPTANCE_FILES}/sft.yaml
  set +x
  export ACCEPTANCE_CANARY
  cp -- "$(job::spec_of sft)" "$spec"
  printf '%s\n' 'secrets:' '  - name: ACCEPTANCE_CANARY' 'env_vars: {VERL_REGRESS_OFFLINE: "1"}' >>"$spec"
  cli::part acceptance::_watch
  acceptance::train sft 4 "$spec"
  cli::await_parts
}

acceptance::_watch() {
  local answers
  cli::temp_dir answers
  wait::until 600 - test -s "${ACCEPTANCE_FILES}/sft.job" || return
  node::ask_all "$answers" acceptance::_watch_on "$(<"${ACCEPTANCE_FILES}/sft.job")"
}

acceptance::_watch_on() {
  printf '%s\n' "$ACCEPTANCE_CANARY" | helper::run_in "$1" acceptance watch "--name=${ACCEPTANCE_NAME}" "--cluster=${CLUSTER_NAME}" "--node=$1" "--job=$2"
}

# acceptance::prepare: what is there already.
acceptance::prepare() {
  artefact::ensure_data
  artefact::ensure_model
}

acceptance::bundle() { helper::run head debug "$(<"${ACCEPTANCE_FILES}/sft.job")" --tar; }

# acceptance::resume: two further steps of the PPO.
acceptance::resume() {
  env::give WAIT '' DRY_RUN '' OVERRIDES_FILE '' DEBUGGER '' FAIL_ON '' REWARD_CHECK '' JOB "$(<"${ACCEPTANCE_FILES}/ppo.job")"
  env::give OVERRIDES "${OVERRIDES:+${OVERRIDES} }trainer.total_training_steps=5"
  job::again resume >"${ACCEPTANCE_FILES}/resume.job"
  job::follow "$(<"${ACCEPTANCE_FILES}/resume.job")"
}

# acceptance::verify: a session of SFT, whose B is the same snapshot without the line that shifts the loss mask.
acceptance::verify() {
  local dir losses
  cli::temp_dir dir
  node::get head "${SHARED_ROOT}/common/code/verl/${CODE_ID}" | tar -C "$dir" --no-same-owner -x ./verl
  losses=${dir}/verl/workers/utils/losses.py
  grep -q 'loss_mask_flatten = torch.roll(' "$losses" ||
    cli::die 1 "The verl of ${CODE_ID} has no line in ${losses##"$dir"/} in which the fault could be planted."
  chmod -R u+w "$dir"
  sed -i '/loss_mask_flatten = torch.roll(/d' "$losses"
  printf 'cases:\n  sft: {workload: sft, steps: 4}\n' >"${dir}/suite.yaml"
  env::give CODE_A "$CODE_ID" CODE_B "path:${dir}" SUITE "${dir}/suite.yaml" BUDGET 3 DETERMINISTIC 1 REPLAY '' ALLOW '' ONLY '' SESSION '' JSON ''
  deps::ensure_judge
  verify::begin
  verify::run
}

# acceptance::report: prints the report, and ends the script with its status.
acceptance::report() {
  local -
  set +x
  { printf '%s\n' "$ACCEPTANCE_CANARY" && tar -C "$ACCEPTANCE_FILES" -c .; } |
    log::while 'searching for secrets' -- helper::run_in head acceptance report "--name=${ACCEPTANCE_NAME}" \
      "--profile=${PROFILE_TITLE}" "--cluster=${CLUSTER_NAME}"
}
