# verify: one regression session, run on this side; what to run and the verdict come from the head, which sees Ray, the files and the jobs.
# shellcheck shell=bash

readonly VERIFY_CANARY=VERL_REGRESS_CANARY # the secret of a session, with its name in py/verl_regress/store/sessions.py

# verify::begin: creates a session and records what existed before it. Sets VERIFY_SESSION, its directory, and VERIFY_CODE, the code ids
# of A and B.
verify::begin() {
  local identity address file
  file=$(verify::_suite)
  verify::_check_suite "$file"
  declare -gA VERIFY_CODE=()
  VERIFY_CODE[A]=$(snapshot::resolve "$CODE_A")
  VERIFY_CODE[B]=$(snapshot::resolve "$CODE_B")
  [[ ${VERIFY_CODE[A]} != "${VERIFY_CODE[B]}" ]] ||
    log::info "A and B are the same code, ${VERIFY_CODE[A]}: this session shows how far A differs from itself"
  identity=$(node::identity head)
  address=$(node::address head)
  VERIFY_SESSION=$(log::while 'recording what there is' -- helper::run_in head verify begin "--name=${SUITE}" "--only=${ONLY}" --profile "$PROFILE_TITLE" \
    --cluster "$CLUSTER_NAME" --code-a "${VERIFY_CODE[A]}" --code-b "${VERIFY_CODE[B]}" --head-identity "$identity" --head-address "$address" <"$file")
}

# verify::open: goes on with SESSION, whose suite, A and B are recorded. Sets the same variables.
verify::open() {
  local words=()
  mapfile -d '' -t words < <(helper::run head verify open "--name=${SESSION}" --cluster "$CLUSTER_NAME")
  wait "$!"
  VERIFY_SESSION=${words[0]}
  declare -gA VERIFY_CODE=([A]=${words[1]} [B]=${words[2]})
}

# verify::_suite: the file of SUITE.
verify::_suite() {
  local file=${SUITE/#\~\//${HOME}/} known=() nearest
  [[ ! -f $file ]] || { printf '%s\n' "$file" && return; }
  [[ ! -f ${REPO_DIR}/suites/${file}.yaml ]] || { printf '%s\n' "${REPO_DIR}/suites/${file}.yaml" && return; }
  known=("${REPO_DIR}"/suites/*.yaml)
  known=("${known[@]##*/}")
  nearest=$(word::nearest "$file" "${known[@]%.yaml}")
  cli::die 2 "SUITE='$(cli::shown "$SUITE")' (from ${ENV_ORIGIN[SUITE]}) is neither a file nor a suite: ${nearest:+did you mean ${nearest}? }Name a file, or one of ${known[*]%.yaml}."
}

# verify::_check_suite FILE: the suite can be used, and its JobSpecs exist. Nothing is created before.
verify::_check_suite() {
  local specs=() spec file
  mapfile -d '' -t specs < <(helper::run_in head verify suite "--name=${SUITE}" "--only=${ONLY}" <"$1")
  wait "$!"
  for spec in "${specs[@]}"; do
    file=${spec/#\~\//${HOME}/}
    [[ -f $file || -f ${REPO_DIR}/${file} ]] ||
      cli::die 2 "The suite $(cli::shown "$SUITE") (from ${ENV_ORIGIN[SUITE]}) names the JobSpec '$(cli::shown "$spec")', which is not a file: name one."
  done
}

verify::tell_cost() { helper::run head verify cost --session "$VERIFY_SESSION"; }

# verify::prepare_again: everything is prepared already; the output and the files of a second run are evidence.
verify::prepare_again() {
  local log
  cli::temp_dir log
  (
    artefact::ensure_data
    artefact::ensure_model
  ) 2> >(tee "${log}/said" >&2)
  log::while 'recording what was prepared' -- helper::run_in head verify prepared --session "$VERIFY_SESSION" <"${log}/said"
}

# verify::run_jobs: one after the other, as long as the verdict lacks something; each is followed to its end and recorded, however it
# ended.
verify::run_jobs() {
  # shellcheck disable=SC2034  # verify::_next fills it by its name
  local next=()
  cli::on_interrupt log::info "the session can be continued: 'make verify SESSION=${VERIFY_SESSION##*/}'. The job that runs keeps running"
  while verify::_next next; do verify::_run "${next[@]}"; done
}

# verify::_run NAME submit|follow SPEC SIDE ID SEED OVERRIDES...
verify::_run() {
  local name=$1 how=$2 spec=$3 side=$4 id=$5 seed=$6 status=0 image
  shift 6
  log::step "verify: ${name} (${spec} with ${side}, ${VERIFY_CODE[$side]}, seed ${seed})"
  if [[ $how == follow ]]; then
    (job::follow "$id") || status=$?
  else
    id=$(
      env::give WAIT 1 SUBMISSION_ID "$id" CODE_ID "${VERIFY_CODE[$side]}" TRAIN_SEED "$seed" OVERRIDES "$*"
      job::submit "$spec"
    ) || status=$?
  fi
  [[ -n $id ]] || cli::die 1 "The job ${name} of this session was not submitted: the reason is above; fix it, then 'make verify SESSION=${VERIFY_SESSION##*/}' goes on."
  ((status != 8)) || cli::die 8 "The cluster cannot be reached: bring it up with 'make up', then 'make verify SESSION=${VERIFY_SESSION##*/}' goes on."
  # A job that stalls or waits keeps its devices from the next one.
  ((status != 5 && status != 6)) || job::stop "$id"
  ((status != 5)) || cli::die 5 "The job ${name} of this session could not be scheduled: when its devices are free, 'make verify SESSION=${VERIFY_SESSION##*/}' goes on."
  image=$(node::image head)
  log::while "recording the job ${name}" -- helper::run head verify record --session "$VERIFY_SESSION" --name "$name" --job "$id" --outcome "$status" "--image=${image}"
  ((status != 4)) || cli::die 4 "The job ${name} of this session was stopped: 'make verify SESSION=${VERIFY_SESSION##*/}' runs it again and goes on."
}

# verify::search: after the jobs, searches the shared root, Ray's answers and every node for the session's secret. Its value goes there
# on stdin.
verify::search() {
  local node
  secret::print "$VERIFY_CANARY" | log::while "searching the shared root for the session's secret" -- helper::run_in head verify search --session "$VERIFY_SESSION"
  for node in $(node::list); do
    secret::print "$VERIFY_CANARY" | log::while "searching ${node} for the session's secret" -- helper::run_in "$node" verify search-node --session "$VERIFY_SESSION" --node "$node"
  done
}

# verify::judge: prints the checks and the verdicts, writes the reports, and exits with the session's status.
verify::judge() {
  local args=(--session "$VERIFY_SESSION" "--allow=${ALLOW}")
  [[ -z $BUDGET ]] || args+=("--budget=${BUDGET}")
  [[ $JSON != 1 ]] || args+=(--json)
  log::while 'comparing the runs of A and B' -- helper::run head verify judge "${args[@]}"
}

# verify::_next NAME: puts the next run's words into the array NAME; false if none is left.
verify::_next() {
  local -n _words=$1
  local args=(--session "$VERIFY_SESSION")
  [[ -z $BUDGET ]] || args+=("--budget=${BUDGET}")
  mapfile -d '' -t _words < <(helper::run head verify next "${args[@]}")
  wait "$!"
  ((${#_words[@]} > 0))
}
