# cluster_knobs: the knobs that the running cluster was made with. They are often given on one command line and not on the next, so they are
# kept under ${WORKDIR}/clusters/<cluster>/ until `make down`: "containers" for all containers, "ray" for the head's
# Ray, "worker-0" for that worker's. A value there is one line: a newline in it is a space.
# shellcheck shell=bash

# cluster_knobs::keep WHAT KNOB...: records the current values of the knobs.
cluster_knobs::keep() {
  local what=$1 directory="${WORKDIR}/clusters/${CLUSTER_NAME}" knob
  shift
  mkdir -p "$directory"
  for knob in "$@"; do printf '%s=%s\n' "$knob" "${!knob//$'\n'/ }"; done >"${directory}/.${what}.$$"
  mv -- "${directory}/.${what}.$$" "${directory}/${what}"
}

# cluster_knobs::forget: nothing is live any more.
cluster_knobs::forget() { rm -rf -- "${WORKDIR}/clusters/${CLUSTER_NAME}"; }

# cluster_knobs::changed WHAT [KNOB]: KNOB=VALUE of each knob (or of that one) that had another value when WHAT was made; prints nothing
# without a record.
cluster_knobs::changed() {
  local file="${WORKDIR}/clusters/${CLUSTER_NAME}/$1" only=${2-} line knob
  [[ -f $file ]] || return 0
  while IFS= read -r line; do
    [[ $line =~ ^[A-Z][A-Z0-9_]*= ]] || continue
    knob=${line%%=*}
    [[ $knob == "${only:-$knob}" ]] || continue
    [[ ! -v $knob || ${!knob//$'\n'/ } == "${line#*=}" ]] || printf '%s\n' "$line"
  done <"$file"
}

# cluster_knobs::describe KNOB=VALUE...: "SHM_SIZE was 3gb, is 2gb (from env/defaults.env)", joined by "; ".
cluster_knobs::describe() {
  local line knob value text=''
  for line in "$@"; do
    knob=${line%%=*} line=${line#*=}
    value=${!knob//$'\n'/ }
    text+="; ${knob} was $(cli::shown "${line:-empty}"), is $(cli::shown "${value:-empty}") (from ${ENV_ORIGIN[$knob]})"
  done
  printf '%s\n' "${text#; }"
}
