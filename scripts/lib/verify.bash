# verify: one regression session, run on this side and checked in the head with what Ray, the files and the engine report.
# shellcheck shell=bash

readonly VERIFY_CANARY=VERL_REGRESS_CANARY # the secret of a session, with its name in py/verl_regress/store/sessions.py

# verify::begin A B: creates a session and records what existed before it; prints its directory on stdout.
verify::begin() {
  local identity address
  identity=$(node::identity head)
  address=$(node::address head)
  log::while 'recording what there is' -- helper::run head verify begin --profile "$PROFILE_TITLE" --cluster "$CLUSTER_NAME" "--only=${ONLY}" --code-a "$1" --code-b "$2" \
    --head-identity "$identity" --head-address "$address"
}

# verify::prepare_again SESSION: everything is prepared already; the output and the files of a second run are evidence.
verify::prepare_again() {
  local log
  cli::temp_dir log
  (
    artefact::ensure_data
    artefact::ensure_model
  ) 2> >(tee "${log}/said" >&2)
  log::while 'recording what was prepared' -- helper::run_in head verify prepared --session "$1" <"${log}/said"
}

# verify::run_jobs SESSION A B: one after the other; each is followed to its end and recorded, however it ended.
verify::run_jobs() {
  local session=$1 next=() id
  declare -A code=([A]=$2 [B]=$3)
  while verify::_next "$session" next; do
    log::step "verify: ${next[0]} (${next[1]} with ${next[2]}, ${code[${next[2]}]})"
    id=$(WAIT=1 CODE_ID="${code[${next[2]}]}" OVERRIDES="${next[*]:3}" job::submit "$(job::spec_of "${next[1]}")") || true
    [[ -n $id ]] || cli::die 1 "The job ${next[0]} of this session was not submitted: the reason is above; fix it and run 'make verify' again."
    log::while "recording the job ${next[0]}" -- helper::run head verify record --session "$session" --name "${next[0]}" --job "$id"
  done
}

# verify::search SESSION: after the jobs, searches the shared root, Ray's answers and every node for the session's secret. Its value
# goes there on stdin.
verify::search() {
  local node
  secret::print "$VERIFY_CANARY" | log::while "searching the shared root for the session's secret" -- helper::run_in head verify search --session "$1"
  for node in $(node::list); do
    secret::print "$VERIFY_CANARY" | log::while "searching ${node} for the session's secret" -- helper::run_in "$node" verify search-node --session "$1" --node "$node"
  done
}

# verify::judge SESSION: prints the table, writes the reports; exit status 9 if any check failed.
verify::judge() {
  local args=(--session "$1")
  [[ $JSON != 1 ]] || args+=(--json)
  log::while 'checking every line of acceptance' -- helper::run head verify judge "${args[@]}"
}

# verify::_next SESSION NAME: puts the next job's words into the array NAME; false if none is left.
verify::_next() {
  local -n _words=$2
  mapfile -d '' -t _words < <(helper::run head verify next --session "$1")
  wait "$!"
  ((${#_words[@]} > 0))
}
