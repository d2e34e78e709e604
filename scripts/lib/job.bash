# job: handing a JobSpec to the helper in the head, and asking about jobs.
# shellcheck shell=bash

# job::spec_of WORKLOAD: the JobSpec file that this distribution ships for a workload.
job::spec_of() {
  printf 'jobspecs/%s.yaml\n' "$1"
}

# job::submit SPEC [VIA]: sends the JobSpec file SPEC and the Ray base config to the head, which submits through VIA: sdk
# (Ray's Python SDK) or cli (`ray job submit`). The submission id on stdout.
job::submit() {
  local spec=$1 via=${2:-sdk} stream args=() members=(job_spec ray_config)
  cli::temp_dir stream
  job::_take "$spec" 'the JobSpec' "${stream}/job_spec"
  job::_take "$RAY_BASE_CONFIG" 'RAY_BASE_CONFIG' "${stream}/ray_config"
  # Each value is one word with its option: one that begins with a dash is a value all the same.
  args=("--spec-name=${spec}" "--base-name=${RAY_BASE_CONFIG}" "--profile=${PROFILE}" "--cluster=${CLUSTER_NAME}" "--via=${via}")
  args+=("--default-model=${MODEL}" "--default-dataset=${DATASET}" "--default-code-id=${CODE_ID}")
  ((${#_SECRETS_PLANTED[@]} == 0)) || args+=("${_SECRETS_PLANTED[@]/#/--secret=}")
  [[ -z $MAX_RUNNING ]] || args+=("--max-running=${MAX_RUNNING}")
  ! env::is_given CODE_ID || args+=("--code-id=${CODE_ID}")
  ! env::is_given SUBMISSION_ID || args+=("--submission-id=${SUBMISSION_ID}")
  [[ $DRY_RUN == 1 ]] || ! grep -q secrets "${stream}/job_spec" ||
    secret::read_all "$spec" --spec-name "$spec" <"${stream}/job_spec"
  job::_overrides args members "$stream"
  job::_begin "$stream" members submit "${args[@]}"
}

# job::again resume|retry: a further attempt of JOB, in which OVERRIDES and OVERRIDES_FILE come on top. Its id on stdout.
job::again() {
  local stream args=("$JOB")
  # shellcheck disable=SC2034  # job::_overrides and job::_begin take it by its name
  local members=()
  cli::temp_dir stream
  [[ $DRY_RUN == 1 ]] || secret::read_all "the JobSpec of ${JOB}" --job "$JOB" </dev/null
  job::_overrides args members "$stream"
  job::_begin "$stream" members "$1" "${args[@]}"
}

# job::_overrides ARGS MEMBERS DIR: OVERRIDES as a word of the array ARGS; OVERRIDES_FILE in DIR, and named in both arrays.
job::_overrides() {
  local -n _args=$1 _members=$2
  _args+=("--overrides=${OVERRIDES}")
  [[ -n $OVERRIDES_FILE ]] || return 0
  job::_take "$OVERRIDES_FILE" 'OVERRIDES_FILE' "$3/overrides"
  _args+=("--overrides-name=${OVERRIDES_FILE}") _members+=(overrides)
}

# job::_begin DIR MEMBERS SUBCOMMAND ARGS...: the helper in the head gets the files of the array MEMBERS in DIR on stdin, behind
# the secrets that were read. What it submitted is followed where WAIT says so.
job::_begin() {
  local stream=$1 id secrets=()
  local -n _files=$2
  shift 2
  ! secret::are_any || secrets=(--secrets)
  if [[ $DRY_RUN == 1 ]]; then
    tar -C "$stream" -c --files-from=/dev/null -- "${_files[@]}" | log::while 'composing the config' -- helper::run_in head "$@" --dry-run
    return
  fi
  id=$({ secret::print_all && tar -C "$stream" -c --files-from=/dev/null -- "${_files[@]}"; } |
    log::while 'submitting the job' -- helper::run_in head "$@" "${secrets[@]}")
  printf '%s\n' "$id"
  [[ $WAIT != 1 ]] || job::follow "$id"
}

# job::follow JOB: a line a step, and how the job ended as exit status; from any terminal, as often as one likes. A head that
# restarts cuts us off, which is no answer: when it is back we go on.
job::follow() {
  local job dir open status began cut=$SECONDS answer
  job=$(helper::run head where --id "$1")
  cli::on_interrupt log::info "${job} goes on without us: 'make wait JOB=${job}' follows it again"
  # A pipe that stays open as long as we live: by its end the helper knows that nobody listens any more.
  cli::temp_dir dir
  mkfifo "${dir}/open"
  exec {open}<>"${dir}/open"
  while true; do
    began=$SECONDS status=0
    answer=$(helper::run_in head wait "$job" --attached "$(job::_deadlines)" <&"$open") || status=$?
    # An engine may say on stdout, too, that the container went away under it.
    [[ ! $answer =~ ^[0-9]$ ]] || return "$answer"
    job::_is_cut "$status" || return "$status"
    ((SECONDS - began < 10)) || cut=$SECONDS
    log::info "cut off from the head: '${job}' is followed again when it is back"
    { log::while 'waiting for the head' -- wait::until "$UNREACHABLE_TIMEOUT" - job::_is_head_back && ((SECONDS - cut <= UNREACHABLE_TIMEOUT)); } ||
      cli::die 8 "The head has not been there for ${UNREACHABLE_TIMEOUT} s (UNREACHABLE_TIMEOUT): '${job}' may run on; bring the cluster up with 'make up', then 'make wait JOB=${job}'."
  done
}

# job::_is_cut STATUS: what was asked in the head did not come to its own end: it was killed, or the way to it was lost.
job::_is_cut() { (($1 == 8 || $1 >= 125)) || ! node::is_alive head; }

# A container that is just starting is running and takes no command yet.
job::_is_head_back() { node::is_alive head && (node::exec head true) >/dev/null 2>&1; }

# job::end_leftovers JOB: on every node, ends the processes that are left of it.
job::end_leftovers() {
  local dir node count looked=0 total=0 silent=()
  dir=$(helper::run head where "$1")
  for node in $(node::list); do
    if ! node::is_alive "$node"; then
      silent+=("$node")
      continue
    fi
    count=$(log::while "${node}: looking for what is left of $1" -- helper::run "$node" leftovers "$dir")
    ((count == 0)) || log::changed "${node}: ended ${count} processes that were left of $1"
    looked=$((looked + 1)) total=$((total + count))
  done
  log::ok "nothing is left of $1: ${looked} nodes looked at, ${total} processes found and ended"
  ((${#silent[@]} == 0)) ||
    cli::die 8 "What is left of $1 on ${silent[*]} is not known, for they cannot be reached: run this again when 'make up' has brought them back."
}

job::_deadlines() { printf -- '--deadlines=%s,%s,%s\n' "$PENDING_TIMEOUT" "$STALL_TIMEOUT" "$UNREACHABLE_TIMEOUT"; }

job::_take() {
  local file=${1/#\~\//${HOME}/}
  [[ $file == /* || -e $file ]] || file="${REPO_DIR}/${file}"
  [[ -f $file && -r $file ]] || cli::die 2 "$2 '$(cli::shown "$1")' is not a readable file: name one that is."
  cp -- "$file" "$3"
}
