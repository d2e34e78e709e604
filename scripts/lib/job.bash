# job: sending a JobSpec to the helper in the head, and asking about jobs.
# shellcheck shell=bash

PERTURBED='' # 1: the job changes the last bit of each gradient; what the environment has is not meant for us

# job::spec_of WORKLOAD: the JobSpec file that this distribution ships for a workload.
job::spec_of() { printf 'jobspecs/%s.yaml\n' "$1"; }

# job::submit_shipped WORKLOAD: submits that file.
job::submit_shipped() {
  helper::ensure
  job::submit "$(job::spec_of "$1")"
}

# job::submit SPEC [VIA]: sends the JobSpec file SPEC and the Ray base config to the head, which submits it through VIA: sdk (Ray's
# Python SDK) or cli (`ray job submit`). The submission id is on stdout.
job::submit() {
  local spec=$1 stream args=("--via=${2:-sdk}") members=()
  cli::temp_dir stream
  job::make_code
  job::request args members "$stream" "$spec"
  job::_debugger args
  [[ $DRY_RUN == 1 ]] || secret::read_of "$spec" "${stream}/job_spec"
  [[ $DRY_RUN == 1 || $REWARD_CHECK != 1 ]] || job::_check_reward "$stream" members "${args[@]}"
  job::_begin "$stream" members submit "${args[@]}"
}

# job::export SPEC: prints a file that runs the JobSpec file SPEC in the place that TO names. Secrets are not read.
job::export() {
  local stream args=("--to=${TO}") members=()
  cli::temp_dir stream
  job::make_code
  job::request args members "$stream" "$1"
  compose::export_words args "$TO"
  tar -C "$stream" -c --files-from=/dev/null -- "${members[@]}" |
    log::while 'composing the config' -- helper::run_in head export "${args[@]}"
}

# job::make_code: with CODE_ID=auto, CODE_ID becomes the snapshot of VERL_SOURCE, which is made if there is none.
job::make_code() {
  local made
  [[ $CODE_ID == auto ]] || return 0
  made=$(snapshot::resolve VERL_SOURCE) # not an argument, because its status would be lost
  env::give CODE_ID "$made"
}

# job::request ARGS MEMBERS DIR SPEC: what `make submit` asks for, as words of the array ARGS; its files in DIR, named in MEMBERS.
job::request() {
  # shellcheck disable=SC2178  # namerefs to arrays
  local -n _args=$1 _members=$2
  job::take "$4" 'the JobSpec' "$3/job_spec"
  _args+=("--spec-name=$4") _members+=(job_spec)
  job::knobs "$1" "$2" "$3"
  job::_overrides_file "$2" "$3"
}

# job::knobs ARGS MEMBERS DIR: the same without JobSpec and OVERRIDES_FILE.
job::knobs() {
  # shellcheck disable=SC2178  # namerefs to arrays
  local -n _words=$1 _names=$2
  local stream=$3
  env::tell_unused
  _names+=(ray_config)
  job::take "$RAY_BASE_CONFIG" 'RAY_BASE_CONFIG' "${stream}/ray_config"
  _words+=("--knobs=$(knob::as_json)")
  [[ $PERTURBED != 1 ]] || _words+=(--perturbed)
}

# job::again resume|retry: a further attempt of JOB, with OVERRIDES and OVERRIDES_FILE added. Its id is on stdout.
job::again() {
  local stream args=("$JOB" "--knobs=$(knob::as_json)")
  # shellcheck disable=SC2034  # job::_overrides_file and job::_begin take it by its name
  local members=()
  cli::temp_dir stream
  [[ $DRY_RUN == 1 ]] || secret::read_all "the JobSpec of ${JOB}" helper::run_in head secrets --job "$JOB" </dev/null
  job::_overrides_file members "$stream"
  job::_debugger args
  job::_begin "$stream" members "$1" "${args[@]}"
}

# job::_debugger ARGS: with DEBUGGER, adds where debugpy listens.
job::_debugger() {
  local -n _given=$1
  local host
  [[ -n $DEBUGGER && $DEBUGGER != 0 ]] || return 0
  host=$(nodes::debugger_host)
  [[ -z $host ]] || _given+=("--debugger-host=${host}")
}

# job::_overrides_file MEMBERS DIR: OVERRIDES_FILE in DIR, and named in the array MEMBERS.
job::_overrides_file() {
  local -n _named=$1
  [[ -n $OVERRIDES_FILE ]] || return 0
  job::take "$OVERRIDES_FILE" 'OVERRIDES_FILE' "$2/overrides"
  _named+=(overrides)
}

# job::_begin DIR MEMBERS SUBCOMMAND ARGS...: on stdin the helper in the head gets the secrets that were read, then the files of the
# array MEMBERS in DIR. With WAIT=1 it then follows the job that was submitted.
job::_begin() {
  local stream=$1 id secrets=()
  local -n _files=$2
  shift 2
  ! secret::are_any || secrets=(--secrets)
  if [[ $DRY_RUN == 1 ]]; then
    tar -C "$stream" -c --files-from=/dev/null -- "${_files[@]}" | log::while 'composing the config' -- helper::run_in head "$@"
    return
  fi
  doctor::gate --running
  # A separate process group: Ctrl-C does not reach it, because a request to Ray cannot be called back.
  : >"${stream}/said"
  cli::on_interrupt job::_tell_interrupted "${stream}/said"
  set -m
  { secret::print_all && tar -C "$stream" -c --files-from=/dev/null -- "${_files[@]}"; } |
    helper::run_in head "$@" "${secrets[@]}" --announce >"${stream}/said" &
  JOB_SENDER=$!
  set +m
  log::while 'submitting the job' -- wait "$JOB_SENDER" || return "$?"
  cli::on_interrupt true
  id=$(tail -n 1 "${stream}/said")
  printf '%s\n' "$id"
  [[ $WAIT != 1 ]] || job::follow "$id"
}

# job::_check_reward DIR MEMBERS ARGS...: calls the job's reward function on a worker; what the helper in the head gets for a submission goes
# there, too.
job::_check_reward() {
  local secrets=()
  # shellcheck disable=SC2178  # a nameref to an array
  local -n _sent=$2
  ! secret::are_any || secrets=(--secrets)
  { secret::print_all && tar -C "$1" -c --files-from=/dev/null -- "${_sent[@]}"; } |
    log::while 'trying the reward function on worker-0, for at most 60 s' -- helper::run_in worker-0 reward-check "${@:3}" "${secrets[@]}"
}

# job::_tell_interrupted FILE: waits for the end of an interrupted submission, and says which job comes of it. The helper writes the id into
# FILE before Ray gets the job, and again when Ray has it.
job::_tell_interrupted() {
  local id=''
  log::info 'interrupted while the job was being submitted: waiting for its id'
  wait::until 60 - job::_is_sent
  read -r id <"$1"
  if [[ -z $id ]]; then
    log::info 'nothing was submitted'
  else
    log::info "${id} was being submitted: 'make wait JOB=${id}' follows it, 'make stop JOB=${id}' ends it"
  fi
}

JOB_SENDER='' # the process that submits

job::_is_sent() { ! kill -0 "${JOB_SENDER:-$!}" 2>/dev/null; }

# job::need_idle DOING CURE: no job of this cluster runs, waits or is being submitted; or FORCE=1 ends the live ones.
job::need_idle() {
  local live=() shown
  output::read_lines live job::list_live || {
    [[ $FORCE == 1 ]] ||
      cli::die 1 "Nothing says which jobs are live on ${CLUSTER_NAME} (the reason is above): fix that, or set FORCE=1."
    log::warn "nothing says which jobs are live on ${CLUSTER_NAME}, and FORCE=1 goes on"
    return
  }
  ((${#live[@]} > 0)) || return 0
  shown=$(printf '%s\n' "${live[@]}" | sed 's/^\([^ ]*\) \(.*\)$/\1 (\2)/' | paste -sd, | sed 's/,/, /g')
  [[ $FORCE == 1 ]] || cli::die 2 "$1 would end ${shown}: $2, or end them with FORCE=1."
  log::warn "$1 ends ${shown}: FORCE=1"
}

# job::list_live: "ID STATUS" of each live job, from the first node that answers; prints nothing if no node runs.
job::list_live() {
  local node
  for node in $(node::list); do
    node::is_alive "$node" || continue
    helper::run_once "$node" live "--cluster=${CLUSTER_NAME}"
    return
  done
}

# job::follow JOB: prints one line for each step, and ends with the job's status; from any terminal, as often as you like. If the head
# restarts, our command is killed; that is not an answer, and we continue when the head is back.
job::follow() {
  local job=$1 said
  attached::begin
  cli::on_interrupt job::_tell_left
  while true; do
    attached::run true wait "$job" --attached "$(job::deadlines)"
    # The helper says which job it follows (JOB=latest may soon be another one), then how that ended. An engine may also report on
    # stdout that the container is gone.
    mapfile -t said <"$ATTACHED_SAID"
    if [[ ${said[1]-} =~ ^[0-9]$ ]]; then
      # Stalled, or a node was lost.
      [[ ${said[1]} != [67] ]] || (doctor::of_job "${said[0]#job }") || true
      return "${said[1]}"
    fi
    [[ ${said[0]-} != 'job '* ]] || job=${said[0]#job }
    attached::await_head "following '${job}' again" "'${job}'" "make wait JOB=${job}"
  done
}

# job::_tell_left: reports that the followed job keeps running, if the helper has said which one that is.
job::_tell_left() {
  local job
  job=$(sed -n '1s/^job //p' "$ATTACHED_SAID")
  [[ -z $job ]] || log::info "${job} keeps running: 'make wait JOB=${job}' follows it again"
}

# job::stop JOB: stops it, waits until it is over, and ends what is left of it.
job::stop() {
  local id_and_directory
  output::read_lines id_and_directory helper::run head stop "$1" "--cluster=${CLUSTER_NAME}" --deadline=60
  job::end_leftovers "${id_and_directory[@]}"
}

# job::end_leftovers ID JOB_DIR: on every node, ends the processes that are left of the job; all nodes are asked at once.
job::end_leftovers() {
  local answers node count looked=0 total=0 silent=()
  cli::temp_dir answers
  log::while "looking on every node for what is left of $1" -- node::ask_all "$answers" job::_end_leftovers_on "$2"
  for node in $(node::list); do
    count=$(<"${answers}/${node}")
    if [[ -z $count ]]; then
      silent+=("$node")
      continue
    fi
    ((count == 0)) || log::changed "${node}: ended ${count} leftover processes of $1"
    looked=$((looked + 1)) total=$((total + count))
  done
  log::ok "nothing is left of $1: ${looked} nodes checked, ${total} processes found and ended"
  ((${#silent[@]} == 0)) ||
    cli::die 8 "What is left of $1 on ${silent[*]} is unknown, because they cannot be reached: run this again after 'make up' has restored them."
}

# job::_end_leftovers_on NODE JOB_DIR: prints how many there were; nothing for a node that cannot be reached.
job::_end_leftovers_on() { ! node::is_alive "$1" || helper::run "$1" leftovers "$2" --node "$1"; }

# job::deadlines: the four limits of a wait, as a word for the helper.
job::deadlines() { printf -- '--deadlines=%s,%s,%s,%s\n' "$PENDING_TIMEOUT" "$START_TIMEOUT" "$STALL_TIMEOUT" "$UNREACHABLE_TIMEOUT"; }

# job::need_small WHAT FILE: a megabyte of YAML takes 20 seconds to read, and what a user writes has a few kilobytes.
job::need_small() {
  local size
  size=$(stat -Lc %s -- "$2")
  ((size <= 262144)) || cli::die 2 "$1 has ${size} bytes, and at most 262144 are read: is it the right file?"
}

# job::take FILE WHAT COPY: copies a file that the user wrote, and knows as WHAT.
job::take() {
  local file=${1/#\~\//${HOME}/} # a suite may name it so
  [[ -f $file && -r $file ]] || cli::die 2 "$2 '$(cli::shown "$1")' is not a readable file: name one that is."
  job::need_small "$2 '$(cli::shown "$1")'" "$file"
  cp -- "$file" "$3"
}
