# snapshot: verl's source as an immutable tree on the shared root. Downloaded on this host, streamed to the head.
# shellcheck shell=bash

# The file in a release's stream that lists its requirements; the same name as in py/verl_regress/store/snapshot.py.
readonly SNAPSHOT_METADATA=.verl-regress.metadata

SNAPSHOT_KNOB=VERL_SOURCE # the knob that has the source, for messages

# snapshot::resolve KNOB: a code id unchanged; a source becomes the snapshot verl-<tree hash>. Prints the code id on stdout.
snapshot::resolve() {
  SNAPSHOT_KNOB=$1
  if [[ ${!1} == *:* ]]; then
    snapshot::ensure 'verl-{tree}' "${!1}"
  else
    printf '%s\n' "${!1}"
  fi
}

# snapshot::check KNOB: what can be said of it before there is a cluster. A code id is on the shared root, which may be on the nodes only.
snapshot::check() {
  local code=${!1} root
  SNAPSHOT_KNOB=$1
  case $code in
    path:*) snapshot::_need_tree "$code" ;;
    *:*) ;;
    *)
      root=$(nodes::shared_root_here)
      [[ -z $root || -d ${root}/common/code/verl/${code} ]] ||
        cli::die 2 "$1=${code} (from ${ENV_ORIGIN[$1]}) is no snapshot in ${root}/common/code/verl: make it with 'make snapshot CODE_ID=${code}', or name a source (pypi:VERSION, git:URL@REF, path:DIR)."
      ;;
  esac
}

# snapshot::_need_tree path:DIR: prints the folder, which has a verl.
snapshot::_need_tree() {
  local dir
  dir=$(env::path "${1#path:}")
  [[ -r $dir/verl/__init__.py ]] ||
    cli::die 2 "${dir} (from ${SNAPSHOT_KNOB}=$1) has no verl/__init__.py that can be read: name the folder that contains the folder 'verl'."
  printf '%s\n' "$dir"
}

# snapshot::ensure CODE_ID SOURCE: pypi:VERSION, git:URL@REF or path:DIR (scripts/lib/knob.bash has checked its form). Prints the
# code id on stdout: {tree} in it is replaced by the first digits of the tree's hash.
snapshot::ensure() {
  case $2 in
    pypi:?*) snapshot::_from_pypi "$@" "${2#pypi:}" ;;
    git:?*@?*) snapshot::_from_git "$@" "${2#git:}" ;;
    path:?*) snapshot::_from_path "$@" ;;
  esac
}

# snapshot::is_same CODE_ID SOURCE REVISION: the head has exactly this snapshot, complete; checked before anything is downloaded.
# Then prints its code id on stdout.
snapshot::is_same() {
  local code_id
  code_id=$(helper::run head snapshot find --code-id "$1" --source "$2" --revision "$3") || exit "$?"
  [[ -n $code_id ]] && printf '%s\n' "$code_id"
}

# snapshot::_create CODE_ID SOURCE REVISION [--dirty]: from the tar on stdin.
snapshot::_create() {
  log::while 'storing the snapshot' -- helper::run_in head snapshot create --code-id "$1" --source "$2" --revision "$3" "${@:4}"
}

# snapshot::pypi_cache VERSION: where pip's download is kept.
snapshot::pypi_cache() { printf '%s/cache/verl/pypi-%s\n' "$WORKDIR" "$1"; }

# snapshot::ensure_fetched VERSION: pip's download of that release is in its cache.
snapshot::ensure_fetched() {
  local cache
  cache=$(snapshot::pypi_cache "$1")
  [[ ! -d $cache ]] || return 0
  venv::ensure
  snapshot::_fetch "verl $1" "$cache" \
    "verl==$1 (from ${SNAPSHOT_KNOB}=pypi:$1) could not be fetched by pip, which says why above: check the version, or the package index of this host." \
    "${VENV_DIR}/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --no-compile "verl==$1" --target
}

# snapshot::_fetch WHAT PLACE SENTENCE COMMAND...: COMMAND fetches it into the directory that is its last word, which becomes PLACE once it
# is complete. If it fails, the script ends with SENTENCE.
snapshot::_fetch() {
  local temporary
  mkdir -p "${2%/*}"
  temporary=$(mktemp -d "$2.XXXXXX.tmp")
  cli::on_exit rm -rf -- "$temporary"
  log::while "fetching $1" log::size "$temporary" -- "${@:4}" "$temporary" >&2 || cli::die 2 "$3"
  chmod 755 "$temporary"
  mv -T -- "$temporary" "$2" 2>/dev/null || [[ -d $2 ]] # another run may have been faster
  log::changed "fetched $1 into $2"
}

snapshot::_from_pypi() {
  local code_id=$1 source=$2 version=$3 cache info metadata=()
  if snapshot::is_same "$code_id" "$source" "$version"; then return; fi
  snapshot::ensure_fetched "$version"
  cache=$(snapshot::pypi_cache "$version")
  for info in "$cache"/verl-*.dist-info; do
    [[ ! -f $info/METADATA ]] || metadata=(-C "$info" --transform "s,^METADATA\$,${SNAPSHOT_METADATA}," METADATA)
  done
  # pip's additions make it an installation; a snapshot is a source tree.
  tar -C "$cache" --exclude='*.dist-info' --exclude=./bin -c . "${metadata[@]}" | snapshot::_create "$code_id" "$source" "$version"
}

snapshot::_from_git() {
  local code_id=$1 source=$2 url=${3%@*} ref=${3##*@} clone=${WORKDIR}/verl commit
  snapshot::refuse_password "$url"
  snapshot::need_git "${SNAPSHOT_KNOB}=${source} names a git repository"
  [[ $url == /* || ! -d ${CALLER_DIR}/${url} ]] || url=${CALLER_DIR}/${url} # a path is relative to where it was typed
  [[ ! -d $url ]] || url=$(realpath -- "$url")
  snapshot::ensure_clone "$clone" "$url" "$source"
  commit=$(snapshot::commit "$clone" "$url" "$ref")
  [[ -n $commit ]] || cli::die 2 "'${ref}' (from ${SNAPSHOT_KNOB}=${source}) is not a branch, tag or commit that ${url} gives, as git says above: check the name, and give a commit in full."
  snapshot::of_commit "$code_id" "$source" "$clone" "$commit"
}

# snapshot::of_commit CODE_ID SOURCE CLONE COMMIT: the files of a commit that the clone has. Prints the code id on stdout.
snapshot::of_commit() {
  if snapshot::is_same "$1" "$2" "$4"; then return; fi
  git -C "$3" archive --format=tar "$4" | snapshot::_create "$1" "$2" "$4"
}

# snapshot::refuse_password URL: it is recorded, and shown.
snapshot::refuse_password() {
  [[ $1 != *://*@* || $1 == ssh://* ]] ||
    cli::die 2 "The URL in ${SNAPSHOT_KNOB} holds a user name or a password, which would be recorded with the snapshot: leave it out and use a git credential helper."
}

# snapshot::need_git WHY: the project itself runs without git; only git repositories need it.
snapshot::need_git() { command -v git >/dev/null || cli::die 1 "$1, and this machine has no git: install git, then run this again."; }

# snapshot::ensure_clone CLONE URL SOURCE: one clone serves every URL: the commits of a fork are fetched into it.
snapshot::ensure_clone() {
  [[ -e $1 ]] || GIT_TERMINAL_PROMPT=0 snapshot::_fetch "$2" "$1" \
    "$2 (from ${SNAPSHOT_KNOB}=$3) could not be cloned, as git says above: check the URL, or this host's network." \
    git clone --quiet --mirror -- "$2"
}

# snapshot::commit CLONE URL REF: prints the commit on stdout, or nothing if there is none. Each call fetches into its own ref: two
# calls at once share no FETCH_HEAD, and a user's checkout at ${WORKDIR}/verl keeps its branches.
snapshot::commit() {
  local clone=$1 url=$2 ref=$3 own="refs/verl-regress/$$"
  if [[ $ref =~ ^[0-9a-f]{7,40}$ ]] && git -C "$clone" rev-parse --quiet --verify "${ref}^{commit}"; then return; fi
  GIT_TERMINAL_PROMPT=0 log::while "fetching ${ref} from ${url}" -- \
    git -C "$clone" fetch --quiet --no-tags --no-write-fetch-head -- "$url" "+${ref}:${own}" || return 0
  git -C "$clone" rev-parse --verify "${own}^{commit}"
  git -C "$clone" update-ref -d "$own"
}

# From a git checkout we take what git would: everything except ignored files (environments, outputs, earlier checkpoints).
snapshot::_from_path() {
  local code_id=$1 dir git safe='' commit='' argv=() list=(printf '.\0')
  dir=$(snapshot::_need_tree "$2")
  [[ ! -e ${dir}/.git ]] || snapshot::need_git "${dir} (from ${SNAPSHOT_KNOB}=$2) is a git checkout"
  # Git runs what a checkout's configuration says (core.fsmonitor, filters, hooks), so it reads only our own and root's, whatever
  # safe.directory the user has set for other purposes.
  [[ ! -d ${dir}/.git || $(stat -c '%u' -- "$dir" "${dir}/.git" | sort -u) != 0 ]] || safe=$dir
  git=(git -c "safe.directory=${safe}" -c core.fsmonitor=false -c core.hooksPath=/dev/null -C "$dir")
  [[ ! -e ${dir}/.git ]] || snapshot::_need_own "$dir" "$2" "${git[@]}"
  if [[ $("${git[@]}" rev-parse --show-toplevel 2>/dev/null) == "$dir" ]]; then
    commit=$("${git[@]}" rev-parse --quiet --verify HEAD) || commit=''
    [[ -z $("${git[@]}" status --porcelain) ]] || argv=(--dirty)
    list=(snapshot::_list_checkout "$dir" "${git[@]}")
  fi
  "${list[@]}" | tar -C "$dir" --hard-dereference --exclude=.git --exclude=__pycache__ --exclude='*.pyc' --null --files-from=- -c |
    snapshot::_create "$code_id" "path:${dir}" "$commit" "${argv[@]}"
}

# snapshot::_need_own DIR SOURCE GIT...: git itself says whether a checkout belongs to another user (2.35.2 and later).
snapshot::_need_own() {
  local said
  said=$(LC_ALL=C "${@:3}" rev-parse --git-dir 2>&1) || true
  [[ $said != *'dubious ownership'* && $said != *'unsafe repository'* ]] ||
    cli::die 2 "$1 (from ${SNAPSHOT_KNOB}=$2) is another user's git checkout, whose configuration git would run as you: copy it without its .git, or name the repository that it comes from as git:URL@REF."
}

# The files of the working tree, each ended by a NUL; git still lists deleted files.
snapshot::_list_checkout() {
  local dir=$1 file
  shift
  "$@" ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do
      if [[ -e $dir/$file || -L $dir/$file ]]; then printf './%s\0' "$file"; fi
    done
}
