# look: what the first script of one `make up` saw, handed on, so that five scripts do not ask five times for the same things.
#
# What was seen counts for a few seconds, for scripts of the same make process, and only while nothing has changed: no script has
# changed anything, and no other command has held the cluster's lock. It only saves questions whose answer was "as it should be":
# a script that sees anything else in it asks again itself. A script that runs alone asks for all it needs.
# shellcheck shell=bash

readonly LOOK_SECONDS=10 # how long it counts

declare -gA LOOK=()       # what was seen, by name
declare -gA _LOOK_PIDS=() # of the nodes that are being asked
LOOK_DIR=''               # of their answers
LOOK_FILE=''              # where it is handed on; empty: this script runs alone

# look::load: what an earlier script of this make process has seen; the Makefile sets REGRESS_LOOK. Before the first `make up`
# there is nothing to see.
look::load() {
  local directory="${WORKDIR}/clusters/${CLUSTER_NAME}" said=() i
  [[ ${REGRESS_LOOK:-} == 1 && -d $directory ]] || return 0
  LOOK_FILE="${directory}/.look"
  [[ ! -f $LOOK_FILE ]] || mapfile -d '' -t said <"$LOOK_FILE"
  look::_is_ours "${said[@]::2}" || said=()
  for ((i = 2; i + 1 < ${#said[@]}; i += 2)); do LOOK[${said[i]}]=${said[i + 1]}; done
  cli::on_exit look::_hand_on
}

# look::_is_ours MAKER SECONDS
look::_is_ours() {
  [[ ${1:-} == "$(look::_maker)" && ${2:-} =~ ^[0-9]{1,12}$ ]] && ((EPOCHSECONDS - $2 <= LOOK_SECONDS))
}

# look::_maker: the make process, by its id and when it started.
look::_maker() {
  local line words
  line=$(<"/proc/${PPID}/stat") # PID (NAME) STATE …; a name may contain spaces
  read -r -a words <<<"${line##*) }"
  printf '%s %s' "$PPID" "${words[19]}"
}

# look::knows NAME: it was seen, and nothing has changed since; ${LOOK[NAME]} has it.
look::knows() { ((LOG_CHANGES == 0)) && [[ -v LOOK[$1] ]]; }

# look::knows_of_all NAME: it was seen of every node.
look::knows_of_all() {
  local node
  for node in $(node::list); do look::knows "${node}:$1" || return 1; done
}

# look::keep NAME VALUE: for the scripts after this one.
look::keep() { [[ -z $LOOK_FILE ]] || LOOK[$1]=$2; }

# look::see NAME COMMAND...: keeps what COMMAND prints, if the nodes were asked (look::take).
look::see() { [[ ! -v LOOK[since] ]] || look::knows "$1" || LOOK[$1]=$("${@:2}"); }

# look::forget: something may have changed.
look::forget() { LOOK=(); }

# look::check_lock FILE: the lock was just taken. Whoever holds it writes into its file, so a file that is newer than what was seen
# was written by another command, which may have changed anything.
look::check_lock() {
  ((${#LOOK[@]} > 0)) && [[ $1 -nt $LOOK_FILE ]] || return 0
  look::forget
  transport::load
}

# look::take: starts to ask every node for all that `make up` wants to know, all at once; look::await_nodes has the answers. Only
# in a cluster that is ours, runs, and is not being changed.
look::take() {
  local node
  [[ -n $LOOK_FILE ]] && look::_is_lock_free && [[ -z $(owner::other) ]] || return 0
  for node in $(node::list); do transport::is_listed "$node" || return 0; done
  : >"$LOOK_FILE" # whoever takes the lock from now on writes into a file that is newer
  LOOK[since]=$EPOCHSECONDS
  cli::temp_dir LOOK_DIR
  for node in $(node::list); do
    look::_ask "$node" >"${LOOK_DIR}/${node}" 2>/dev/null &
    _LOOK_PIDS[$node]=$!
  done
}

# look::_ask NODE: what it knows about itself, and how far its clock is ahead of ours. A node without this version of the helper
# knows nothing.
look::_ask() {
  local name value gpus=()
  cluster::expected_gpus gpus
  while read -r name value; do
    [[ $name != clock ]] || value=$((value - EPOCHSECONDS))
    printf '%s %s\n' "$name" "$value"
  done < <(helper::run "$1" look --node "$1" --log-dir "${SHARED_ROOT}/ray/${CLUSTER_NAME}" --gcs-port "$GCS_PORT" "${gpus[@]}")
}

# look::await_nodes: puts the answers of the nodes into LOOK, as NODE:NAME.
look::await_nodes() {
  local node name value
  for node in "${!_LOOK_PIDS[@]}"; do
    wait "${_LOOK_PIDS[$node]}" || true
    while read -r name value; do LOOK["${node}:${name}"]=$value; done <"${LOOK_DIR}/${node}"
  done
  _LOOK_PIDS=()
}

look::_is_lock_free() {
  local file="${WORKDIR}/locks/${CLUSTER_NAME}" lock status=0
  [[ -e $file ]] || return 0
  exec {lock}<"$file"
  flock --nonblock "$lock" || status=1
  exec {lock}<&-
  return "$status"
}

# Without the lock (the checks before anything is touched), another command may have taken it meanwhile.
look::_hand_on() {
  local name
  if ((LOG_CHANGES > 0)) || [[ ! -v LOOK[since] || (! -v CLUSTER_LOCK && ${WORKDIR}/locks/${CLUSTER_NAME} -nt $LOOK_FILE) ]]; then
    [[ ! -e $LOOK_FILE ]] || rm -- "$LOOK_FILE"
    return
  fi
  {
    printf '%s\0' "$(look::_maker)" "${LOOK[since]}"
    for name in "${!LOOK[@]}"; do printf '%s\0' "$name" "${LOOK[$name]}"; done
  } >"${LOOK_FILE}.$$" && mv -- "${LOOK_FILE}.$$" "$LOOK_FILE"
}
