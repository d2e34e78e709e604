# owner: who owns a cluster. What `make up` creates is labelled with the id of its WORKDIR, the real path of that directory and the
# user. Commands that would change, stop or remove another checkout's cluster are refused here.
# shellcheck shell=bash

# owner::load: who we are: OWNER_ID (empty until `make up` has created it) and OWNER_USER; OWNER_WORDS passes it to the helper.
owner::load() {
  # The user of a container platform may have no name: then `id` prints the number and fails.
  OWNER_USER=$(id -un 2>/dev/null) || OWNER_USER=$(id -u)
  OWNER_ID='' OWNER_WORDS=()
  [[ ! -e ${WORKDIR}/id ]] || owner::_read
  export OWNER_ID
}

# owner::ensure_id: WORKDIR has its id, created once even if several scripts do this at the same time.
owner::ensure_id() {
  local file="${WORKDIR}/id" young
  if [[ ! -e $file ]]; then
    young=$(mktemp "${file}.XXXXXX")
    head -c 8 /dev/urandom | od -An -vtx1 | tr -d ' \n' >"$young"
    chmod 644 "$young"
    [[ $(id -u) -ne 0 ]] || chown --reference="$WORKDIR" "$young"
    mv -n -T -- "$young" "$file" || [[ -e $file ]] # another script may have been faster
    rm -f -- "$young"
  fi
  owner::_read
}

# owner::need_workdir: this user can write what commands keep under WORKDIR.
owner::need_workdir() {
  local path=$WORKDIR name
  while [[ ! -e $path ]]; do path=${path%/*} path=${path:-/}; done # WORKDIR is made there
  for path in "$path" "${WORKDIR}"/{id,cache,clusters,locks,secrets,shared} "${WORKDIR}/locks/${CLUSTER_NAME}"; do
    [[ -e $path && ! -w $path ]] || continue
    name=$(stat -c %U -- "$path")
    cli::die 2 "${path} belongs to ${name}, and ${OWNER_USER} cannot write there (WORKDIR, from ${ENV_ORIGIN[WORKDIR]}): run this as ${name}, or in a checkout of your own with another CLUSTER_NAME and DASHBOARD_PORT."
  done
}

# owner::other [NODE...]: the first owner of this cluster's nodes that is not us, as ID|USER|WORKDIR. Prints nothing if no node is
# live or all of them are ours.
owner::other() { nodes::owners "$@" | owner::first_other; }

# owner::first_other: the same for the lines on stdin.
owner::first_other() {
  local id user path other=''
  while IFS='|' read -r id user path; do
    [[ -n $other || (-n $OWNER_ID && $id == "$OWNER_ID" && $path == "$WORKDIR") ]] || other="${id}|${user}|${path}"
  done
  printf '%s' "$other"
}

# owner::describe OTHER: the owner, in words.
owner::describe() {
  local id user path
  IFS='|' read -r id user path <<<"$1"
  if owner::_is_of_workdir "$1"; then
    printf 'The cluster %s was brought up from this WORKDIR under the id %s, which %s/id does not hold any more' "$CLUSTER_NAME" "$id" "$WORKDIR"
  elif [[ -z $id ]]; then
    printf 'The containers %s name no owner (an older version made them, or another tool)' "${path:-of ${CLUSTER_NAME}}"
  else
    printf 'The cluster %s belongs to another checkout: %s of user %s' "$CLUSTER_NAME" "$(cli::shown "$path")" "$(cli::shown "$user")"
  fi
}

# owner::need_own [NODE...]: no node of this cluster belongs to another checkout.
owner::need_own() {
  local other
  other=$(owner::other "$@")
  owner::refuse "$other"
}

# owner::refuse OTHER: the same for what owner::first_other printed.
owner::refuse() {
  [[ $1 != '|'* ]] || cli::die 2 "$(owner::describe "$1"): rename or remove them, or set another CLUSTER_NAME (and DASHBOARD_PORT)."
  ! owner::_is_of_workdir "$1" ||
    cli::die 2 "$(owner::describe "$1"): type 'echo ${1%%|*} >$(printf %q "$WORKDIR")/id' to have it back, or set another CLUSTER_NAME (and DASHBOARD_PORT) if that cluster is another machine's."
  [[ -z $1 ]] ||
    cli::die 2 "$(owner::describe "$1"): set another CLUSTER_NAME (and DASHBOARD_PORT), or run 'make down' in that checkout (docs/lifecycle.md says what to do if it was moved)."
}

# owner::_is_of_workdir OTHER: this WORKDIR made that cluster, and its id is lost.
owner::_is_of_workdir() {
  local id path
  IFS='|' read -r id _ path <<<"$1"
  [[ $id =~ ^[0-9a-f]{16}$ && $path == "$WORKDIR" ]]
}

owner::_read() {
  OWNER_ID=$(<"${WORKDIR}/id")
  [[ $OWNER_ID =~ ^[0-9a-f]{16}$ ]] ||
    cli::die 1 "${WORKDIR}/id does not hold the 16 hex digits that 'make up' wrote there: remove it; 'make up' then writes a new one, or says which one the cluster has."
  # shellcheck disable=SC2034  # helper::run takes them
  OWNER_WORDS=("--owner=${OWNER_USER}:${OWNER_ID}" "--owner-workdir=${WORKDIR}")
}
