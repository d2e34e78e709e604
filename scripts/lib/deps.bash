# deps: the Python packages that the helper needs on the nodes. py/requirements.txt lists them, py/deps.py installs them there.
# shellcheck shell=bash

# deps::ensure: every node's Python has them, either its own or those next to the helper on the shared root.
deps::ensure() {
  local node missing lacking
  cli::temp_dir lacking
  deps::_look "$lacking"
  for node in $(node::list); do
    missing=$(<"${lacking}/${node}")
    # A package that an earlier node installed is on the shared root, where this node sees it too.
    [[ -z $missing ]] || missing=$(deps::missing "$node")
    if [[ -z $missing ]]; then
      log::skip "${node}: the helper's packages (all there)"
      continue
    fi
    log::while "${node}: fetching the helper's packages" -- deps::_install "$node" ||
      cli::die 1 "${node} lacks ${missing} and its pip could not install them, as it says above: set WHEELHOUSE to a folder on this host with their wheels."
    missing=$(deps::missing "$node")
    [[ -z $missing ]] || cli::die 1 "${node} still lacks ${missing} after pip had installed them: see $(nodes::shown "${SHARED_ROOT}/common/code/verl_regress")/packages-*."
    log::changed "${node}: installed the helper's packages next to $(nodes::shown "$(helper::dir)")"
  done
}

# deps::_look DIR: writes what each node lacks to DIR/<node>; all nodes are asked at once.
deps::_look() {
  local node pids=() pid
  for node in $(node::list); do
    if look::knows "${node}:missing" && [[ -z ${LOOK["${node}:missing"]} ]]; then
      : >"$1/${node}"
      continue
    fi
    deps::missing "$node" >"$1/${node}" &
    pids+=("$!")
  done
  for pid in "${pids[@]}"; do wait "$pid"; done
}

# deps::missing NODE: prints what is missing there, on stdout.
deps::missing() { node::exec "$1" python3 "$(helper::dir)/deps.py" missing; }

# Send only the needed wheels from WHEELHOUSE: it may contain gigabytes of others.
deps::_install() {
  local node=$1 wheels=() file name
  if [[ -z $WHEELHOUSE ]]; then
    node::exec "$node" python3 "$(helper::dir)/deps.py" install
    return
  fi
  [[ -d $WHEELHOUSE && -r $WHEELHOUSE ]] ||
    cli::die 2 "WHEELHOUSE=${WHEELHOUSE} (from ${ENV_ORIGIN[WHEELHOUSE]}) is not a directory that can be read: name one, or leave it empty."
  for file in "$WHEELHOUSE"/*.whl; do
    name=$(basename -- "$file")
    ! grep -qiE "^$(sed 's/-.*//; s/_/[-_.]/g' <<<"$name")([=>]|\$)" "${REPO_DIR}/py/requirements.txt" || wheels+=("$name")
  done
  ((${#wheels[@]})) || cli::die 2 "WHEELHOUSE=${WHEELHOUSE} (from ${ENV_ORIGIN[WHEELHOUSE]}) has none of the wheels of py/requirements.txt: put them there ('pip wheel -r py/requirements.txt')."
  # shellcheck disable=SC2016  # expanded on the node
  tar -C "$WHEELHOUSE" -c -- "${wheels[@]}" | node::exec_in "$node" sh -c '
    dir=$(mktemp -d) && trap "rm -rf \"$dir\"" EXIT && tar -C "$dir" --no-same-owner -x && python3 "$1/deps.py" install "$dir"' \
    install "$(helper::dir)"
}
