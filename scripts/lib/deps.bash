# deps: the Python packages that a node needs, in two sets: `helper` (py/requirements.txt) on every node, and `judge`
# (py/requirements-judge.txt) on the head. py/deps.py installs them there.
# shellcheck shell=bash

# deps::ensure: every node's Python has the helper's, either its own or those next to the helper on the shared root.
deps::ensure() {
  local node missing lacking
  cli::temp_dir lacking
  node::ask_all "$lacking" deps::missing helper
  for node in $(node::list); do
    missing=$(<"${lacking}/${node}")
    # What was installed for an earlier node is on the shared root, where this one sees it too.
    [[ -z $missing ]] || missing=$(deps::missing "$node" helper)
    deps::_ensure_on "$node" helper "$missing"
  done
}

# deps::ensure_bytecode: the large packages of each node have bytecode. Where they came without (uv writes none), each process of a job
# would compile them again, because jobs write none.
deps::ensure_bytecode() {
  local answers node folder names
  cli::temp_dir answers
  log::while "compiling the nodes' packages" -- node::ask_all "$answers" cluster::ask_host compile
  for node in $(node::list); do
    while IFS=$'\t' read -r folder names; do
      if [[ -z $names ]]; then
        log::changed "${node}: compiled the packages in ${folder}, which had no bytecode"
      else
        log::warn "${node}: there is no bytecode of ${names} in ${folder}, so each process of a job compiles them again: type 'python3 -m compileall -qq -j 0 ${folder}' there as a user who can write that folder."
      fi
    done <"${answers}/${node}"
  done
}

# deps::ensure_judge: the same for the judge's, on the head alone.
deps::ensure_judge() {
  local missing
  missing=$(deps::missing head judge)
  deps::_ensure_on head judge "$missing"
}

# deps::_ensure_on NODE SET MISSING
deps::_ensure_on() {
  local node=$1 set=$2 missing=$3
  if [[ -z $missing ]]; then
    log::skip "${node}: the ${set}'s packages (all there)"
    return
  fi
  log::while "${node}: fetching the ${set}'s packages" -- deps::_install "$node" "$set" ||
    cli::die 1 "${node} lacks ${missing} and its pip could not install them (the reason is above): set WHEELHOUSE to a folder on this host with their wheels."
  log::changed "${node}: installed the ${set}'s packages next to $(nodes::shown "$(helper::dir)")"
}

# deps::missing NODE SET: prints what is missing there, on stdout.
deps::missing() { node::exec "$1" python3 "$(helper::dir)/py/deps.py" missing "$2"; }

# deps::_install NODE SET: sends only the needed wheels from WHEELHOUSE: it may contain gigabytes of others.
deps::_install() {
  local node=$1 set=$2 wheels=() file name list=py/requirements.txt
  [[ $set != judge ]] || list=py/requirements-judge.txt
  if [[ -z $WHEELHOUSE ]]; then
    node::exec "$node" python3 "$(helper::dir)/py/deps.py" install "$set"
    return
  fi
  [[ -d $WHEELHOUSE && -r $WHEELHOUSE ]] ||
    cli::die 2 "WHEELHOUSE=${WHEELHOUSE} (from ${ENV_ORIGIN[WHEELHOUSE]}) is not a directory that can be read: name one, or leave it empty."
  for file in "$WHEELHOUSE"/*.whl; do
    name=$(basename -- "$file")
    ! grep -qiE "^$(sed 's/-.*//; s/_/[-_.]/g' <<<"$name")([=>]|\$)" "${REPO_DIR}/${list}" || wheels+=("$name")
  done
  ((${#wheels[@]})) || cli::die 2 "WHEELHOUSE=${WHEELHOUSE} (from ${ENV_ORIGIN[WHEELHOUSE]}) has none of the wheels of ${list}: put them there ('pip wheel -r ${list}')."
  # shellcheck disable=SC2016  # expanded on the node
  tar -C "$WHEELHOUSE" -c -- "${wheels[@]}" | node::exec_in "$node" sh -c '
    dir=$(mktemp -d) && trap "rm -rf \"$dir\"" EXIT && tar -C "$dir" --no-same-owner -x && python3 "$1/deps.py" install "$2" "$dir"' \
    install "$(helper::dir)" "$set"
}
