# verify: one regression session, run on this side; what to run and the verdict come from the head, which sees Ray, the files and the jobs.
# shellcheck shell=bash

readonly VERIFY_CANARY=VERL_REGRESS_CANARY # the secret of a session, with its name in py/verl_regress/store/sessions.py

# verify::check: what can be said of the knobs of a new session before there is a cluster. Sets VERIFY_SUITE, the suite's file.
verify::check() {
  verify::refuse_knobs 'put it into the suite, where A and B both get it' DRY_RUN OVERRIDES OVERRIDES_FILE TRAIN_SEED
  VERIFY_SUITE=$(verify::suite_file)
  job::need_small "SUITE '$(cli::shown "$SUITE")'" "$VERIFY_SUITE"
  snapshot::check CODE_A >/dev/null
  snapshot::check CODE_B >/dev/null
}

# verify::begin: creates a session. Sets VERIFY_SESSION, its directory, and VERIFY_CODE, the code ids
# of A and B.
verify::begin() {
  verify::check
  verify::_check_suite "$VERIFY_SUITE"
  declare -gA VERIFY_CODE=()
  VERIFY_CODE[A]=$(snapshot::resolve CODE_A)
  VERIFY_CODE[B]=$(snapshot::resolve CODE_B)
  [[ ${VERIFY_CODE[A]} != "${VERIFY_CODE[B]}" ]] ||
    log::info "A and B are the same code, ${VERIFY_CODE[A]}: this session measures how much A varies between runs"
  local args=("--name=${SUITE}" "--only=${ONLY}" --profile "$PROFILE_TITLE" --cluster "$CLUSTER_NAME"
    --code-a "${VERIFY_CODE[A]}" --code-b "${VERIFY_CODE[B]}")
  verify::_budget args
  VERIFY_SESSION=$(helper::run_in head verify begin "${args[@]}" <"$VERIFY_SUITE")
}

# verify::open: continues SESSION, with its recorded suite, A and B. Sets the same variables.
verify::open() {
  local words=()
  verify::refuse_knobs 'the session has its own' DRY_RUN OVERRIDES OVERRIDES_FILE TRAIN_SEED CODE_A CODE_B SUITE ONLY
  output::read_words words helper::run head verify open "--name=${SESSION}" --cluster "$CLUSTER_NAME"
  VERIFY_SESSION=${words[0]}
  declare -gA VERIFY_CODE=([A]=${words[1]} [B]=${words[2]})
}

# verify::hold: no other shell drives this session as long as this script lives; or ends it with one sentence.
verify::hold() {
  local file="${WORKDIR}/locks/session-${VERIFY_SESSION##*/}"
  owner::need_workdir
  mkdir -p "${file%/*}"
  exec {VERIFY_LOCK}>>"$file"
  flock --wait 5 "$VERIFY_LOCK" ||
    cli::die 2 "The session ${VERIFY_SESSION##*/} is driven by $(lock::holder "$file"): wait until that process ends, or stop it, then run this again."
  lock::sign "$file" "of user ${OWNER_USER}"
  cli::on_exit verify::_tell_open
}
VERIFY_IS_OPEN=1 # what ends this script leaves a session that can be continued

verify::_tell_open() { [[ -z $VERIFY_IS_OPEN ]] || log::info "the session can be continued: 'make verify SESSION=${VERIFY_SESSION##*/}'"; }

# verify::refuse_knobs WHY KNOB...: the user must not have set these.
verify::refuse_knobs() {
  local why=$1 knob
  shift
  for knob in "$@"; do
    [[ -z ${!knob} ]] || ! env::is_given "$knob" ||
      cli::die 2 "${knob}='$(cli::shown "${!knob}")' (from ${ENV_ORIGIN[$knob]}) is not for this session: ${why}; leave it out."
  done
}

# verify::suite_file: the file of SUITE.
verify::suite_file() {
  local file=${SUITE/#\~\//${HOME}/} known=() nearest
  [[ ! -f $file ]] || { printf '%s\n' "$file" && return; }
  [[ ! -f ${REPO_DIR}/suites/${file}.yaml ]] || { printf '%s\n' "${REPO_DIR}/suites/${file}.yaml" && return; }
  known=("${REPO_DIR}"/suites/*.yaml)
  known=("${known[@]##*/}")
  nearest=$(spelling::nearest "$file" "${known[@]%.yaml}")
  cli::die 2 "SUITE='$(cli::shown "$SUITE")' (from ${ENV_ORIGIN[SUITE]}) is neither a file nor a suite: ${nearest:+did you mean ${nearest}? }Name a file, or one of ${known[*]%.yaml}."
}

# verify::_check_suite FILE: the suite can be used, and its JobSpecs exist. Nothing is created before.
verify::_check_suite() {
  local specs=() spec file
  output::read_words specs helper::run_in head verify suite "--name=${SUITE}" "--only=${ONLY}" <"$1"
  for spec in "${specs[@]}"; do
    file=${spec/#\~\//${HOME}/}
    [[ -f $file ]] ||
      cli::die 2 "The suite $(cli::shown "$SUITE") (from ${ENV_ORIGIN[SUITE]}) names the JobSpec '$(cli::shown "$spec")', which is not a file: name one."
  done
}

# verify::_budget ARRAY: adds BUDGET to it.
verify::_budget() {
  local -n _args=$1
  [[ -z $BUDGET ]] || _args+=("--budget=${BUDGET}")
}

# verify::plant: every job gets the session's secret.
verify::plant() { secret::plant "$VERIFY_CANARY" helper::run head verify canary --session "$VERIFY_SESSION"; }

# verify::run_jobs: one after the other, as long as the verdict lacks something; each is followed to its end and recorded, however it
# ended.
verify::run_jobs() {
  # shellcheck disable=SC2034  # verify::_next fills it by its name
  local next=()
  cli::on_interrupt log::info 'the job that runs keeps running'
  while verify::_next next; do verify::_run "${next[@]}"; done
}

# verify::_run NAME submit|follow SPEC SIDE ID SEED PERTURBED OVERRIDES...
verify::_run() {
  local name=$1 how=$2 spec=$3 side=$4 id=$5 seed=$6 perturbed=$7 status=0
  shift 7
  log::step "verify: ${name} (${spec} with ${side}, ${VERIFY_CODE[$side]}, seed ${seed})"
  if [[ $how == follow ]]; then
    (job::follow "$id") || status=$?
  else
    id=$(verify::_submit "$spec" "$side" "$seed" "$*" PERTURBED "$perturbed" WAIT 1 SUBMISSION_ID "$id") || status=$?
  fi
  if [[ -z $id ]]; then
    ((status == 2)) && [[ $side == B ]] && verify::_is_refused_by_b "$name" "$spec" "$seed" "$*" && return
    cli::die 1 "The job ${name} of this session was not submitted: the reason is above; fix it, then continue the session."
  fi
  case $status in
    0 | 3 | 4 | 7) ;;
    5 | 6) job::stop "$id" ;; # it would keep its devices from the next job
    *) cli::die "$status" "It is unknown how the job ${id} of ${name} ended (the reason is above): fix that, then continue the session." ;;
  esac
  verify::_record "$name" "$id" "$status"
  ((status != 5)) || cli::die 5 "The job ${id} of ${name} could not be scheduled: continue the session when its devices are free."
  # A job that is stopped while we follow it ends the session here; one that was stopped before we came is run again.
  [[ $how == follow ]] || ((status != 4)) || cli::die 4 "The job ${id} of ${name} was stopped: continue the session; it submits another job for this run, twice at most."
}

# verify::_submit SPEC SIDE SEED OVERRIDES [KNOB VALUE]...: with the code of that side.
verify::_submit() {
  env::give CODE_ID "${VERIFY_CODE[$2]}" TRAIN_SEED "$3" OVERRIDES "$4" "${@:5}"
  job::submit "$1"
}

# verify::_is_refused_by_b NAME SPEC SEED OVERRIDES: A takes this job, so that B refuses it is B's failure; records why.
verify::_is_refused_by_b() {
  local said status=0
  cli::temp_dir said
  (verify::_submit "$2" A "$3" "$4" DRY_RUN 1) >/dev/null 2>&1 || return 1
  (verify::_submit "$2" B "$3" "$4" DRY_RUN 1) >/dev/null 2>"${said}/why" || status=$?
  ((status == 2)) || return 1 # a head that went away meanwhile refuses nothing
  sed -n 's/^error *//p' "${said}/why" | tail -n 1 | helper::run_in head verify refused --session "$VERIFY_SESSION" --name "$1" || return 1
  log::info "$1: B's config refuses a job that A's accepts, which decides this case"
}

# verify::_record NAME ID STATUS
verify::_record() {
  local image
  image=$(node::image head)
  log::while "recording the job $1" -- \
    helper::run head verify record --session "$VERIFY_SESSION" --name "$1" --job "$2" --outcome "$3" "--image=${image}"
}

# verify::search: after the jobs, searches the shared root, Ray's answers and every node for the session's secret and Ray's token.
verify::search() {
  local dir
  cli::temp_dir dir
  log::while 'searching the shared root for secrets' -- helper::run head verify search --session "$VERIFY_SESSION"
  log::while 'searching the nodes for secrets' -- node::ask_all "$dir" verify::_search_node
}

# verify::_search_node NODE
verify::_search_node() { helper::run "$1" verify search-node --session "$VERIFY_SESSION" --node "$1"; }

# verify::judge: prints the checks and the verdicts, writes the reports, and exits with the session's status.
verify::judge() {
  local args=(--session "$VERIFY_SESSION" "--allow=${ALLOW}")
  verify::_budget args
  [[ $JSON != 1 ]] || args+=(--json)
  VERIFY_IS_OPEN='' # from here on the helper knows
  log::while 'comparing the runs of A and B' -- helper::run head verify judge "${args[@]}"
}

# verify::_next NAME: puts the next run's words into the array NAME; false if none is left.
verify::_next() {
  local -n _words=$1
  local args=(--session "$VERIFY_SESSION")
  transport::load # the head may be another one than before
  verify::_budget args
  output::read_words _words helper::run head verify next "${args[@]}" || exit "$?" # errexit is off behind `while`
  ((${#_words[@]} > 0))
}
