# verify: one regression session. `verify run` in the head does it from begin to end; this side sends what it needs, and acts where every
# node must.
# shellcheck shell=bash

# verify::check: what can be said of the knobs of a new session before there is a cluster. Sets VERIFY_SUITE, the suite's file.
verify::check() {
  VERIFY_SUITE=$(verify::suite_file)
  job::need_small "SUITE '$(cli::shown "$SUITE")'" "$VERIFY_SUITE"
  snapshot::check CODE_A >/dev/null
  snapshot::check CODE_B >/dev/null
}

# verify::check_early: the same, and what the suite or SESSION says, before a cluster is brought up. What neither this host nor a head that
# runs can tell is checked when the cluster is there.
verify::check_early() {
  if [[ -n $SESSION ]]; then
    verify::_ask_early open "--name=${SESSION}" --cluster "$CLUSTER_NAME" </dev/null >/dev/null
  else
    verify::check
    verify::check_suite "$VERIFY_SUITE"
  fi
}

# verify::check_suite FILE: the suite and the JobSpecs that it names can be read.
verify::check_suite() {
  local specs=() files spec
  output::read_words specs verify::_ask_early suite "--knobs=$(knob::as_json)" "--suite-file=$1" <"$1"
  ((${#specs[@]})) || return 0
  cli::temp_dir files
  for spec in "${specs[@]}"; do job::take "$spec" "The suite's JobSpec" "${files}/job_spec"; done
  log::ok "suite ${SUITE}: it and its JobSpecs (${#specs[@]}) can be read"
}

# verify::_ask_early ARG...: a step of the helper's `verify` that needs no Ray: with a Python of this host that has what it needs, or else on
# a head that runs. Prints nothing where neither is.
verify::_ask_early() {
  local root python pythons=("${VENV_DIR}/bin/python" python3)
  root=$(nodes::shared_root_here)
  [[ -n $root ]] || pythons=()
  for python in "${pythons[@]}"; do
    "$python" -c 'import hydra, jsonschema, yaml' 2>/dev/null </dev/null || continue
    "$python" -B "${REPO_DIR}/py/run.py" --shared-root "$root" "${OWNER_WORDS[@]}" --no-ray verify "$@"
    return
  done
  if [[ -z $(owner::other head) ]] && node::is_alive head && helper::is_put; then helper::run_in head verify "$@"; fi
}

# verify::begin: what a new session needs. Sets VERIFY_ARGS, words of `verify run`.
verify::begin() {
  local specs=() code_a code_b
  verify::check
  output::read_words specs helper::run_in head verify suite "--knobs=$(knob::as_json)" "--suite-file=${VERIFY_SUITE}" <"$VERIFY_SUITE"
  verify::_collect "${specs[@]}"
  cp -- "$VERIFY_SUITE" "${VERIFY_FILES}/suite"
  VERIFY_MEMBERS+=(suite)
  code_a=$(snapshot::resolve CODE_A)
  code_b=$(snapshot::resolve CODE_B)
  [[ $code_a != "$code_b" ]] ||
    log::info "A and B are the same code, ${code_a}: this session measures how much A varies between runs"
  VERIFY_ARGS+=("--profile-title=${PROFILE_TITLE}" "--code-a=${code_a}" "--code-b=${code_b}" "--suite-file=${VERIFY_SUITE}")
}

# verify::open: the same of SESSION, which goes on with its recorded suite, A and B.
verify::open() {
  local words=()
  output::read_words words helper::run head verify open "--name=${SESSION}" --cluster "$CLUSTER_NAME"
  verify::_collect "${words[@]:1}"
  VERIFY_ARGS+=("--session=${words[0]}")
}

# verify::_collect SPEC...: what every session needs of this machine: VERIFY_ARGS, words with the knobs; VERIFY_MEMBERS, files in
# VERIFY_FILES; and VERIFY_SECRETS, those of each JobSpec, in base64 because NUL bytes end them.
verify::_collect() {
  local spec image
  image=$(node::image head)
  VERIFY_ARGS=(--attached "$(job::deadlines)" "--image=${image}"
  "--caller=${CLI_NAME%.sh} of user ${OWNER_USER} (pid $$ on ${HOSTNAME})")
  [[ $TRANSPORT == container ]] && ! hosts::are_several || VERIFY_ARGS+=(--far)
  VERIFY_MEMBERS=() VERIFY_SECRETS=()
  cli::temp_dir VERIFY_FILES
  job::knobs VERIFY_ARGS VERIFY_MEMBERS "$VERIFY_FILES"
  for spec in "$@"; do verify::_collect_spec "$spec"; done
}

verify::_collect_spec() {
  local - member="job_spec${#VERIFY_SECRETS[@]}"
  set +x
  job::take "$1" "The suite's JobSpec" "${VERIFY_FILES}/${member}"
  secret::read_of "$1" "${VERIFY_FILES}/${member}"
  VERIFY_SECRETS+=("$(secret::print_all | base64 -w0)")
  VERIFY_MEMBERS+=("$member")
  VERIFY_ARGS+=("--spec-name=$1")
}

# verify::_feed: the stream of `verify run`.
verify::_feed() {
  local - secrets
  set +x
  for secrets in "${VERIFY_SECRETS[@]}"; do
    [[ -n $secrets ]] || printf '\0'
    printf '%s' "$secrets" | base64 -d
  done
  tar -C "$VERIFY_FILES" -c -- "${VERIFY_MEMBERS[@]}"
}

# verify::suite_file: the file of SUITE, as a whole path.
verify::suite_file() {
  local file=${SUITE/#\~\//${HOME}/} known=() nearest
  [[ ! -f $file ]] || { env::path "$file" && return; }
  [[ ! -f ${REPO_DIR}/suites/${file}.yaml ]] || { printf '%s\n' "${REPO_DIR}/suites/${file}.yaml" && return; }
  known=("${REPO_DIR}"/suites/*.yaml)
  known=("${known[@]##*/}")
  nearest=$(spelling::nearest "$file" "${known[@]%.yaml}")
  cli::die 2 "SUITE='$(cli::shown "$SUITE")' (from ${ENV_ORIGIN[SUITE]}) is neither a file nor a suite: ${nearest:+did you mean ${nearest}? }name a file, or one of ${known[*]%.yaml}."
}

# verify::run: does the session, and ends the script with its status. What every node must do is done here, then the helper is called again.
verify::run() {
  local word job directory
  attached::begin
  cli::on_exit verify::_tell_open
  cli::on_interrupt log::info 'the job that runs keeps running'
  while true; do
    attached::run verify::_feed verify run "${VERIFY_ARGS[@]}"
    VERIFY_SESSION=$(verify::_session) # further calls of the helper continue it
    [[ -z $VERIFY_SESSION || " ${VERIFY_ARGS[*]} " == *' --again '* ]] || VERIFY_ARGS+=("--session=${VERIFY_SESSION}" --again)
    word='' job='' directory=''
    read -r word job directory <<<"$(tail -n 1 "$ATTACHED_SAID")"
    case $word in
      end)
        VERIFY_IS_OPEN=''            # the helper has said how it goes on, if it does
        sed '1d;$d' "$ATTACHED_SAID" # what it said between its first and its last line
        exit "$job"
        ;;
      stop) job::end_leftovers "$job" "$directory" ;;
      *) attached::await_head 'continuing the session' 'its job' "make verify SESSION=${VERIFY_SESSION:-latest}" ;;
    esac
  done
}
VERIFY_IS_OPEN=1 # what ends this script leaves a session that can be continued

# verify::_session: the name of the session, if the helper has said it.
verify::_session() { sed -n '1s/^session //p' "$ATTACHED_SAID"; }

verify::_tell_open() {
  local name
  name=$(verify::_session)
  [[ -z $VERIFY_IS_OPEN || -z $name ]] || log::info "the session can be continued: 'make verify SESSION=${name}'"
}
