# helper: our Python on the nodes. It is copied to the shared root once for each version, under the hash of its content: a running
# job keeps the version that it started with.
# shellcheck shell=bash

# What a node runs of the helper follows the rule of base/trust.py, because it gets the secrets of jobs. The rule is here again because that
# module is part of what it checks; tests/base/test_trust.py compares the two. A plain sh there gets the helper's directory, whom we trust,
# and the command that it becomes; it exits with 77 if another user can change the directory. The command finds whom we trust in its
# environment.
readonly HELPER_FOREIGN=77
# shellcheck disable=SC2016  # expanded on the node
readonly HELPER_GUARD='
  umask g-w,o-w
  refuse() { printf "error   %s %s, and what is there would run as you: %s, or use another SHARED_ROOT.\n" "$@" >&2; exit 77; }
  stat -c "%u %g %A %a %n" "$0" "${0%/*}" "${0%/*}"/packages-* 2>/dev/null | while read -r uid gid letters mode path; do
    is_ours() { case " 0 $(id -u) $2 " in *" $1 "* | *" :$gid "*) ;; *) false ;; esac }
    is_ours "$uid" "$1" || refuse "$path" "belongs to user $uid" "set TRUSTED_UIDS=$uid if you trust that user"
    case $letters in
      l* | *[tT] | ?????[!w]??[!w]?) continue ;; # a link, a sticky directory, or only its owner writes
      ????????[!w]?) if is_ours "$gid" "$1"; then continue; fi ;;
    esac
    refuse "$path" "can be changed by others (group $gid, mode 0$mode)" "type \"chmod -R go-w ${0%/*}\""
  done || exit
  touch -c "$0" 2>/dev/null # for make gc: when it was last used
  VERL_REGRESS_TRUSTED_UIDS=$1; export VERL_REGRESS_TRUSTED_UIDS
  shift; exec "$@"'

# helper::_exec VERB NODE COMMAND...: runs the command there by node::VERB, unless the helper's directory is another user's.
helper::_exec() { "node::$1" "$2" sh -c "$HELPER_GUARD" "$(helper::dir)" "$(helper::_trusted)" "${@:3}"; }

# helper::_trusted: TRUSTED_UIDS as base/trust.py reads it: `group` is a colon and SHARED_GROUP, as the nodes know it.
helper::_trusted() {
  local group=''
  [[ $TRUSTED_UIDS != *group* ]] || group=:$(nodes::shared_group)
  printf '%s\n' "${TRUSTED_UIDS/group/$group}"
}

# What the nodes get of this checkout: the helper, with the hooks of job processes, the judge, and the rehearsal.
readonly HELPER_PARTS=(py judge/verl_verdict rehearsal/verl_rehearsal)

# helper::fix_version: reads our Python once, so that a script uses one version even if you edit files meanwhile.
helper::fix_version() {
  local files
  files=$(cd "$REPO_DIR" && find -H "${HELPER_PARTS[@]}" -type f -not -path '*/__pycache__/*' -not -path '*/.*_cache/*' | LC_ALL=C sort)
  HELPER_HASH=$(cd "$REPO_DIR" && tr '\n' '\0' <<<"$files" | xargs -0 sha256sum | sha256sum | cut -c1-12)
  HELPER_FILES=$(wc -l <<<"$files")
}

# helper::dir: the directory of this version, as the nodes see it. With SHARED_GROUP each checkout has copies of its own, because what
# another user put there is not run.
helper::dir() { printf '%s/common/code/verl_regress%s/%s\n' "$SHARED_ROOT" "${SHARED_GROUP:+/${OWNER_ID}}" "$HELPER_HASH"; }

# helper::read SUBCOMMAND ARGS...: answers that need only the shared root, from the first node that can be reached, the head first.
# If no node can be reached, from this host, if the shared root is on it. Standard library only. If the cluster belongs to another
# checkout, neither its shared root nor its Ray is asked, and we read our own files.
helper::read() {
  local node other root
  other=$(owner::other head)
  root=$(nodes::shared_root_here)
  if [[ -n $other ]]; then
    log::info "$(owner::describe "$other"), so its Ray is not asked: these are this checkout's own jobs."
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
  # The containers run as RUN_AS or the owner of WORKDIR, so the jobs are that user's, also if root asks.
  VERL_REGRESS_TRUSTED_UIDS="$(helper::_trusted) ${RUN_AS%%:*} $(stat -c %u -- "$WORKDIR" 2>/dev/null || true)" \
    python3 -B "${REPO_DIR}/py/run.py" --shared-root "$root" "${OWNER_WORDS[@]}" --no-ray "$@"
}

# helper::ensure: the cluster is ours, and this version and the directories of the shared root exist.
helper::ensure() {
  owner::need_own head
  if helper::is_put; then
    log::ok "helper is at $(nodes::shown "$(helper::dir)")"
    return
  fi
  helper::ensure_layout
  helper::put
}

# helper::ensure_layout: creates the directories of the shared root, and copies our examples once: a file there may be the user's now. The
# helper need not be there yet.
helper::ensure_layout() {
  local lacking
  lacking=$(helper::ask head layout "--cluster=${CLUSTER_NAME}")
  [[ $lacking != examples ]] || node::put head "${REPO_DIR}/examples" "${SHARED_ROOT}/user/code/examples"
}

# helper::is_put [NODE]: this version exists with all its files, as that node sees it.
helper::is_put() {
  local status=0
  # shellcheck disable=SC2016  # expanded on the node
  helper::_exec exec "${1:-head}" sh -c 'test -d "$1" && test "$(find "$1" -type f -not -path "*/__pycache__/*" | wc -l)" -ge "$2"' put \
    "$(helper::dir)" "$HELPER_FILES" || status=$?
  ((status != HELPER_FOREIGN)) || exit 1
  return "$status"
}

# helper::put: copies this version there, also over one that lacks a file; it may not be able to run yet (deps::ensure).
helper::put() {
  local dir
  dir=$(helper::dir)
  log::while 'copying the helper to the shared root' -- node::put head "$REPO_DIR" "${dir}.$$" "${HELPER_PARTS[@]}"
  # A copy that lacks a file is replaced: a job that runs from it finds the same files there.
  # shellcheck disable=SC2016  # expanded on the node
  node::exec head sh -c '[ ! -e "$1" ] || mv -T "$1" "$2.old"
    mv -T "$2" "$1" 2>/dev/null || test -d "$1" || exit
    rm -rf "$2" "$2.old"' put "$dir" "${dir}.$$"
  log::changed "helper put at $(nodes::shown "$(helper::dir)")"
}

# helper::run NODE SUBCOMMAND ARGS...: runs a subcommand of the helper on that node.
helper::run() { helper::_run exec "$@"; }

# helper::run_in NODE SUBCOMMAND ARGS...: the same, with our stdin.
helper::run_in() { helper::_run exec_in "$@"; }

helper::_run() {
  local words
  helper::_words words
  helper::_exec "$1" "$2" python3 "$(helper::dir)/py/run.py" "${words[@]}" "${@:3}"
}

# helper::run_once NODE SUBCOMMAND ARGS...: the same without installing the helper or leaving files: on a cluster that is about to
# be removed, whose SHARED_ROOT may differ from ours.
helper::run_once() {
  local node=$1
  shift
  # shellcheck disable=SC2016  # expanded on the node
  tar -C "$REPO_DIR" --exclude=__pycache__ --exclude='.*_cache' -c "${HELPER_PARTS[@]}" | node::exec_in "$node" sh -c '
    dir=$(mktemp -d) && trap "rm -rf \"$dir\"" EXIT && tar -C "$dir" --no-same-owner -x &&
      python3 -B "$dir/py/run.py" --shared-root "$SHARED_ROOT" "$@"' helper "$@"
}

# helper::ask NODE SUBCOMMAND ARGS...: like helper::run, for a question that leaves no file there: if this version is not put yet, a
# copy of it is run and removed.
helper::ask() {
  local node=$1 words
  shift
  if helper::is_put "$node"; then
    helper::run "$node" "$@"
  else
    helper::_words words
    helper::run_once "$node" "${words[@]}" "$@"
  fi
}

# helper::_words ARRAY: the arguments of every subcommand: where the shared root is, for the nodes and for the user, and who asks.
helper::_words() {
  local -n _words=$1
  _words=(--shared-root "$SHARED_ROOT" "--shown-root=$(nodes::shown "$SHARED_ROOT")" "--terminal=$(log::columns)" "${OWNER_WORDS[@]}")
  [[ -z $SHARED_GROUP ]] || _words+=("--shared-group=$(nodes::shared_group)")
}
