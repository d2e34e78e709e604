# doctor: whether the nodes can train together (py/verl_regress/doctor). It needs neither Ray nor the shared root: each node gets the checks
# on the stdin of its own Python.
# shellcheck shell=bash

readonly DOCTOR_LONGEST=55 # seconds that a node has for its answer

# doctor::run [--quick] [--gate] [--running]: asks all nodes at once, and prints what their answers mean. Returns 9 if there is an alarm.
doctor::run() {
  local node dir answer nodes=() pids=() judge=''
  cli::temp_dir dir
  node::ask_all "$dir" doctor::_address "$dir"
  set -- "$@" --run="$(date +%s)-$$"
  for node in $(node::list); do
    [[ ! -s ${dir}/${node} ]] || nodes+=("${node}=$(<"${dir}/${node}")")
  done
  for node in "${nodes[@]%%=*}"; do
    doctor::_python "$node" probe --node="$node" "$@" "${nodes[@]}" </dev/null >"${dir}/${node}.json" 2>"${dir}/${node}.said" &
    pids+=("$!")
  done
  wait::until "$DOCTOR_LONGEST" - doctor::_has_ended "${pids[@]}" || kill "${pids[@]}" 2>/dev/null || true
  for node in $(node::list); do
    answer=$(cat -- "${dir}/${node}.json" 2>/dev/null) || true
    [[ $answer != '{'* ]] || judge=${judge:-$node}
    [[ $answer == '{'* ]] || answer=$(tail -n 1 "${dir}/${node}.said")
    printf '%s\t%s\n' "$node" "${answer:-no answer in ${DOCTOR_LONGEST} s}"
  done >"${dir}/answers"
  [[ -n $judge ]] || cli::die 8 "No node of ${CLUSTER_NAME} runs the doctor ($(sed -n 's/\t/: /;1p' "${dir}/answers")): bring the cluster up with 'make up'."
  doctor::_python "$judge" judge "$@" "${nodes[@]}" <"${dir}/answers"
}

# doctor::_address NODE DIR: prints nothing for a node that cannot be reached, and leaves the reason in DIR/NODE.said.
doctor::_address() { (node::address "$1") 2>"$2/$1.said" || true; }

doctor::_has_ended() {
  local pid
  for pid; do ! kill -0 "$pid" 2>/dev/null || return 1; done
}

# doctor::_python NODE ARG...: runs the doctor there, with our stdin as its lines.
doctor::_python() {
  local node=$1 knobs boot
  shift
  knobs=$(knob::as_json)
  boot=$(<"${REPO_DIR}/py/verl_regress/doctor/boot.py")
  { cat && printf '\n' && tar -C "${REPO_DIR}/py" --exclude=__pycache__ -c verl_regress/{__init__.py,base,cluster,doctor}; } 2>/dev/null | # its reader may be gone
    node::exec_in "$node" python3 -c "$boot" "$1" --shared-root="$SHARED_ROOT" --knobs="$knobs" "${@:2}"
}

# doctor::gate [--running]: the quick checks of the nodes that answer; ends the script with 9 if there is an alarm.
doctor::gate() { log::while 'checking what the nodes can do together' -- doctor::run --quick --gate "$@"; }

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
