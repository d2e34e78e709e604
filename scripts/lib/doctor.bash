# doctor: whether the nodes can train together (py/verl_regress/doctor). It needs neither Ray nor the shared root: each node gets the checks
# on the stdin of its own Python.
# shellcheck shell=bash

# Seconds in which a node says its address, tries all that it can, and judges what all nodes said.
DOCTOR_REACHES=15 DOCTOR_TRIES=55 DOCTOR_JUDGES=20

# doctor::run [--quick] [--gate] [--running]: asks all nodes at once, and prints what their answers mean. Returns 9 if there is an alarm.
doctor::run() {
  local node dir answer nodes=() judge=''
  cli::temp_dir dir
  cli::on_exit doctor::_end_asked
  set -- "$@" --run="$(date +%s)-$$"
  doctor::_ask "$dir" address "$DOCTOR_REACHES" "$(node::list)" node::address
  for node in $(node::list); do
    [[ ! -s ${dir}/${node}.address ]] || nodes+=("${node}=$(<"${dir}/${node}.address")")
  done
  doctor::_ask "$dir" json "$DOCTOR_TRIES" "${nodes[*]%%=*}" doctor::_python /dev/null probe "$@" "${nodes[@]}"
  for node in $(node::list); do
    answer=$(cat -- "${dir}/${node}.json" 2>/dev/null) || true
    [[ $answer != '{'* ]] || judge=${judge:-$node}
    [[ $answer == '{'* ]] || answer=$(tail -n 1 "${dir}/${node}.said")
    printf '%s\t%s\n' "$node" "${answer:-no answer in time}"
  done >"${dir}/answers"
  [[ -n $judge ]] || cli::die 8 "No node of ${CLUSTER_NAME} runs the doctor ($(sed -n 's/\t/: /;1p' "${dir}/answers")): bring the cluster up with 'make up'."
  doctor::_ask "$dir" judged "$DOCTOR_JUDGES" "$judge" doctor::_python "${dir}/answers" judge "$@" "${nodes[@]}"
  cat -- "${dir}/${judge}.judged"
  cat -- "${dir}/${judge}.said" >&2
  return "$DOCTOR_STATUS"
}

# doctor::_ask DIR KIND SECONDS NODES COMMAND ARG...: runs COMMAND NODE ARG... for each word of NODES, all at once. What each prints is in
# DIR/NODE.KIND, what it says on stderr in DIR/NODE.said, and DOCTOR_STATUS is the last one's. One that is late is ended, with its children.
doctor::_ask() {
  local dir=$1 kind=$2 longest=$3 asked=$4 node pids=()
  shift 4
  DOCTOR_STATUS=0
  [[ -n $asked ]] || return 0 # `wait` without a process would wait for all, also for the pulse of log::while
  set -m                      # a process group each
  for node in $asked; do
    ("$1" "$node" "${@:2}") </dev/null >"${dir}/${node}.${kind}" 2>"${dir}/${node}.said" &
    pids+=("$!")
  done
  set +m
  wait::until "$longest" - doctor::_have_ended "${pids[@]}" || doctor::_end_asked
  wait "${pids[@]}" 2>/dev/null || DOCTOR_STATUS=$?
}

# doctor::_end_asked: kills what still runs for a node; Ctrl-C does not reach those process groups. A signal may come between the start of
# one and the line that notes its id, so Bash's own list counts; and a process that is being started may lose a SIGTERM.
doctor::_end_asked() {
  local pids
  pids=$(jobs -p)
  # shellcheck disable=SC2086  # ids, one word each
  [[ -z $pids ]] || kill -KILL -- -${pids//$'\n'/ -} 2>/dev/null || true
}

doctor::_have_ended() { ! kill -0 "$@" 2>/dev/null; } # true if none of them takes a signal

# doctor::_python NODE LINES ARG...: runs the doctor there, with the file LINES.
doctor::_python() {
  local node=$1 lines=$2 knobs boot
  shift 2
  knobs=$(knob::as_json)
  boot=$(<"${REPO_DIR}/py/verl_regress/doctor/boot.py")
  { cat -- "$lines" && printf '\n' && tar -C "${REPO_DIR}/py" --exclude=__pycache__ -c verl_regress/{__init__.py,base,cluster,doctor}; } 2>/dev/null | # its reader may be gone
    node::exec_in "$node" python3 -c "$boot" "$1" --node="$node" --knobs="$knobs" "${@:2}"
}

# doctor::gate [--running]: the quick checks of the nodes that answer; ends the script with 9 if there is an alarm.
doctor::gate() {
  local JSON='' # the command that calls this has its own
  log::while 'checking what the nodes can do together' -- doctor::run --quick --gate "$@"
}

# doctor::of_job JOB: prints what is wrong with the nodes now, and leaves it in the job's bundles.
doctor::of_job() {
  # shellcheck disable=SC2034  # knob::as_json reads it
  local JSON=1 found where
  found=$(doctor::run --quick --running) || [[ $? == 9 ]] || return
  jq -r '.checks[] | select(.status == "alarm") | "\(.where): \(.seen), so \(.means): \(.cure) (\(.code), make doctor)"' <<<"$found" |
    while IFS= read -r; do log::warn "$REPLY"; done
  where=$(helper::run head where "$1") || return # errexit is off before `||`
  # shellcheck disable=SC2016  # expanded on the node
  node::exec_in head sh -c 'mkdir -p "$1" && cat >"$1/doctor.json"' doctor "${where#* }/debug/$(date -u +%Y%m%dT%H%M%SZ)-doctor" <<<"$found"
}
