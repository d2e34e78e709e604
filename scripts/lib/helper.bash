# helper: our Python on the nodes. It is put on the shared root once per version, under the hash of what it holds: a
# running job keeps the version that it began with.
# shellcheck shell=bash

# helper::fix_version: looks at py/ once, so that a script stays with one version while somebody edits.
helper::fix_version() {
  HELPER_HASH=$(cd "${REPO_DIR}/py" &&
    find . -type f -not -path '*/__pycache__/*' -not -path '*/.*_cache/*' -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-12)
}

# helper::dir: where this version lives, as the nodes see it.
helper::dir() { printf '%s/common/code/verl_regress/%s\n' "$SHARED_ROOT" "$HELPER_HASH"; }

# helper::read SUBCOMMAND ARGS...: what the shared root alone can answer, in the first node that can be reached, the head
# before all; where none can, on this host, if the shared root is on it. Standard library only. A cluster of another checkout
# is not asked, neither its shared root nor its Ray: then our own files are read.
helper::read() {
  local node other root
  other=$(owner::other head)
  root=$(nodes::shared_root_here)
  if [[ -n $other ]]; then
    log::info "$(owner::told "$other"), which is not asked: these are our own jobs."
    set -- --no-ray "$@"
  fi
  if [[ -z $other || -z $root ]]; then
    for node in $(node::list); do
      node::is_alive "$node" || continue
      helper::is_put "$node" || continue
      helper::run "$node" "$@"
      return
    done
    nodes::need_shared_root_here
  fi
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
    cli::die 1 "No node can be reached, and this host has no Python 3.10 or later to read ${root} with: install it, or bring the cluster up with 'make up'."
  python3 -B "${REPO_DIR}/py/run.py" --shared-root "$root" "${OWNER_WORDS[@]}" --no-ray "$@"
}

# helper::ensure: the cluster is ours, this version is there, and the directories of the shared root with it.
helper::ensure() {
  owner::need_own head
  if helper::is_put; then
    log::ok "helper is at $(nodes::shown "$(helper::dir)")"
    return
  fi
  helper::put
  helper::ensure_layout
}

# helper::ensure_layout: the shared root has its directories, and our examples once: what is there may be a user's by now.
helper::ensure_layout() {
  helper::run head layout
  node::exec head test -d "${SHARED_ROOT}/user/code/examples" ||
    node::put head "${REPO_DIR}/examples" "${SHARED_ROOT}/user/code/examples"
}

# helper::is_put [NODE]: this version is there, as that node sees it.
helper::is_put() { node::exec "${1:-head}" test -d "$(helper::dir)"; }

# helper::put: this version comes to lie there; it need not be able to run yet (deps::ensure).
helper::put() {
  log::while 'copying the helper to the shared root' -- node::put head "${REPO_DIR}/py" "$(helper::dir)" __pycache__ '.*_cache'
  log::changed "helper put at $(nodes::shown "$(helper::dir)")"
}

# helper::run NODE SUBCOMMAND ARGS...: the helper's front door on that node.
helper::run() {
  local node=$1 words
  shift
  helper::_words words
  node::exec "$node" python3 "$(helper::dir)/run.py" "${words[@]}" "$@"
}

# helper::run_in NODE SUBCOMMAND ARGS...: the same, with our stdin handed through.
helper::run_in() {
  local node=$1 words
  shift
  helper::_words words
  node::exec_in "$node" python3 "$(helper::dir)/run.py" "${words[@]}" "$@"
}

# helper::run_once NODE SUBCOMMAND ARGS...: the same where the helper may not be put, and nothing may be left: on a cluster that is
# about to go, whose SHARED_ROOT may be another than ours.
helper::run_once() {
  local node=$1
  shift
  # shellcheck disable=SC2016  # expanded on the node
  tar -C "${REPO_DIR}/py" --exclude=__pycache__ --exclude='.*_cache' -c . | node::exec_in "$node" sh -c '
    dir=$(mktemp -d) && trap "rm -rf \"$dir\"" EXIT && tar -C "$dir" --no-same-owner -x &&
      python3 -B "$dir/run.py" --shared-root "$SHARED_ROOT" "$@"' helper "$@"
}

# helper::_words ARRAY: what every subcommand is told: where the shared root is, for the nodes and for the user, and who asks.
helper::_words() {
  local -n _words=$1
  _words=(--shared-root "$SHARED_ROOT" "--shown-root=$(nodes::shown "$SHARED_ROOT")" "--terminal=$(log::columns)" "${OWNER_WORDS[@]}")
}
