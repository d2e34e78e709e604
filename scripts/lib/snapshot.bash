# snapshot: verl's source as an immutable tree on the shared root. Downloaded on this host, streamed to the head.
# shellcheck shell=bash

# Files in the stream that describe it: the requirements of a release, and the files of a commit as git lists them. The names are the same
# in py/verl_regress/store/snapshot.py.
readonly SNAPSHOT_METADATA=.verl-regress.metadata SNAPSHOT_COMMIT=.verl-regress.commit

export GIT_NO_REPLACE_OBJECTS=1 # a commit is what its id says, whatever `git replace` shows in its place

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
      [[ -z $root || -d ${root}/common/code/verl/${code} ]] || snapshot::_refuse_code "$1" "$root"
      ;;
  esac
}

# snapshot::need_on_head KNOB: the code id that it names is a snapshot.
snapshot::need_on_head() {
  node::exec head test -d "${SHARED_ROOT}/common/code/verl/${!1}" || snapshot::_refuse_code "$1" "$(nodes::shown "$SHARED_ROOT")"
}

snapshot::_refuse_code() {
  local cure=", or name a source (pypi:VERSION, git:URL@REF, path:DIR)"
  [[ $1 == CODE_[AB] ]] || cure=''
  cli::die 2 "$1=${!1} (from ${ENV_ORIGIN[$1]}) is no snapshot in $2/common/code/verl: make it with 'make snapshot CODE_ID=${!1}'${cure}."
}

# snapshot::is_named: the user gave CODE_ID without a VERL_SOURCE, so it is the name of a snapshot that exists already.
# shellcheck disable=SC2153  # the knob
snapshot::is_named() { [[ $CODE_ID != auto ]] && env::is_given CODE_ID && ! env::is_given VERL_SOURCE; }

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

# snapshot::_create CODE_ID SOURCE REVISION: from the tar on stdin.
snapshot::_create() {
  log::while 'storing the snapshot' -- helper::run_in head snapshot create --code-id "$1" --source "$2" --revision "$3"
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
  snapshot::of_commit "$code_id" "$source" "$clone" "$commit" "$url"
}

# snapshot::of_commit CODE_ID SOURCE CLONE COMMIT URL: the files of a commit that the clone has, and those of its submodules; relative URLs
# of submodules begin at URL. Prints the code id on stdout.
snapshot::of_commit() {
  local files tree blob
  if snapshot::is_same "$1" "$2" "$4"; then return; fi
  cli::temp_dir files
  snapshot::_borrow "$files" "$3" "$4"
  git -C "$files" read-tree "$4"
  snapshot::_add_submodules "$files" "$3" "$5" "$4" ''
  tree=$(git -C "$files" write-tree)
  blob=$(git -C "$files" ls-tree -r -z "$tree" | git -C "$files" hash-object -w --stdin)
  git -C "$files" update-index --add --cacheinfo "100644,${blob},${SNAPSHOT_COMMIT}"
  tree=$(git -C "$files" write-tree)
  git -C "$files" archive --format=tar "$tree" | snapshot::_create "$1" "$2" "$4"
}

# snapshot::_borrow REPOSITORY CLONE COMMIT: a repository of our own that reads the clone's objects. Its attributes come before those of the
# tree: `git archive` then leaves no file out (export-ignore) and changes none (export-subst, line ends, filters).
snapshot::_borrow() {
  local objects format=()
  ((${#3} == 40)) || format=(--object-format=sha256)
  git init --quiet --bare --template= "${format[@]}" "$1"
  objects=$(git -C "$2" rev-parse --git-path objects)
  [[ $objects == /* ]] || objects=$2/$objects
  mkdir -p "$1/info"
  realpath -- "$objects" >"$1/objects/info/alternates"
  printf '* -export-ignore -export-subst -text -ident -filter !working-tree-encoding\n' >"$1/info/attributes"
}

# snapshot::_add_submodules REPOSITORY CLONE URL COMMIT PREFIX: replaces the commit's submodules in the index by their files, as a checkout
# with --recurse-submodules does. PREFIX is where the commit itself is in the index.
snapshot::_add_submodules() {
  local entry links=() path hash url
  output::read_words links git -C "$2" ls-tree -r -z "$4"
  for entry in "${links[@]}"; do
    [[ $entry == 160000\ * ]] || continue
    path=${entry#*$'\t'} hash=${entry%%$'\t'*}
    hash=${hash##* }
    url=$(snapshot::_submodule_url "$2" "$3" "$4" "$path")
    [[ -n $url ]] || cli::die 2 "The submodule $5${path} of the commit ${4::12} (from ${SNAPSHOT_KNOB}) has no URL in .gitmodules, so its files are not known: remove it from the repository, or name a checkout as path:DIR."
    [[ -n $(snapshot::_submodule_commit "$2" "$3" "$url" "$hash") ]] ||
      cli::die 2 "The submodule $5${path} of the commit ${4::12} (from ${SNAPSHOT_KNOB}) needs the commit ${hash::12} of ${url}, which could not be fetched, as git says above: check that this host can read ${url}, or name a checkout as path:DIR."
    printf '0 %s\t%s\0' "$hash" "$5${path}" | git -C "$1" update-index -z --index-info # removes it
    git -C "$1" read-tree -i --prefix="$5${path}/" "$hash"
    snapshot::_add_submodules "$1" "$2" "$url" "$hash" "$5${path}/"
  done
}

# snapshot::_submodule_commit CLONE PARENT_URL URL COMMIT: fetches it into the clone; prints it, or nothing. As git does by default, a
# repository from elsewhere may not name one on this machine.
snapshot::_submodule_commit() {
  local is_users=0
  [[ ! $2 =~ ^(/|file://) ]] || is_users=1
  GIT_PROTOCOL_FROM_USER=$is_users snapshot::commit "$1" "$3" "$4"
}

# snapshot::_submodule_url CLONE PARENT_URL COMMIT PATH: prints the URL that .gitmodules has for it, or nothing. One that begins with ./ or
# ../ is relative to the URL of the repository, as in git-submodule(1).
snapshot::_submodule_url() {
  local base=${2%/} separator=/ name='' url lines=() line
  output::read_words lines git -C "$1" config --blob "$3:.gitmodules" -z --get-regexp '^submodule\..*\.path$' 2>/dev/null || true
  for line in "${lines[@]}"; do
    [[ ${line#*$'\n'} != "$4" ]] || name=${line%%.path$'\n'*}
  done
  url=$(git -C "$1" config --blob "$3:.gitmodules" --get "${name}.url" 2>/dev/null) || return 0
  [[ $url == ./* || $url == ../* ]] || { printf '%s\n' "$url" && return; }
  while [[ $url == ./* || $url == ../* ]]; do
    case $url in
      ./*) ;;
      *) if [[ $base == */* ]]; then base=${base%/*}; else base=${base%:*} separator=:; fi ;;
    esac
    url=${url#*/}
  done
  printf '%s\n' "${base}${separator}${url}"
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
  local code_id=$1 dir commit='' lists also=(--exclude='*.pyc')
  dir=$(snapshot::_need_tree "$2")
  cli::temp_dir lists
  printf '.\0' >"${lists}/files"
  if snapshot::_is_checkout "$dir" "$2"; then
    snapshot::_list_checkout "$dir" "$2" '' >"${lists}/files"
    commit=$(snapshot::_git "$dir" rev-parse --quiet --verify HEAD) || commit=''
    snapshot::_list_commit "$dir" "$commit" '' >"${lists}/${SNAPSHOT_COMMIT}"
    also=(-C "$lists" "$SNAPSHOT_COMMIT")
  fi
  tar --hard-dereference --exclude=.git --exclude=__pycache__ -c "${also[@]}" -C "$dir" --null --files-from="${lists}/files" |
    snapshot::_create "$code_id" "path:${dir}" "$commit"
}

# snapshot::_is_checkout DIR SOURCE: it is the top of a git checkout, whose configuration may be run.
snapshot::_is_checkout() {
  [[ -e $1/.git ]] || return
  snapshot::need_git "$1 (from ${SNAPSHOT_KNOB}=$2) is a git checkout"
  snapshot::_need_own "$1" "$2"
  [[ $(snapshot::_git "$1" rev-parse --show-toplevel 2>/dev/null) == "$(realpath -- "$1")" ]]
}

# snapshot::_git CHECKOUT ARGUMENT...: git runs what a checkout's configuration says (core.fsmonitor, filters, hooks), so it reads only our
# own and root's, whatever safe.directory the user has set for other purposes.
snapshot::_git() {
  local safe='' link places=("$1" "$1/.git")
  if [[ -f $1/.git ]]; then # of a submodule, or of a worktree
    link=$(sed -n 's/^gitdir: //p' "$1/.git")
    [[ $link == /* ]] || link=$1/${link}
    places+=("$link")
  fi
  [[ $(stat -c '%u' -- "${places[@]}" 2>&1 | sort -u) != 0 ]] || safe=$1
  git -c "safe.directory=${safe}" -c core.fsmonitor=false -c core.hooksPath=/dev/null -C "$1" "${@:2}"
}

# snapshot::_need_own DIR SOURCE: git itself says whether a checkout belongs to another user (2.35.2 and later).
snapshot::_need_own() {
  local said
  said=$(snapshot::_git "$1" rev-parse --git-dir 2>&1) || true
  [[ $said != *'dubious ownership'* && $said != *'unsafe repository'* ]] ||
    cli::die 2 "$1 (from ${SNAPSHOT_KNOB}=$2) is another user's git checkout, whose configuration git would run as you: copy it without its .git, or name the repository that it comes from as git:URL@REF."
}

# snapshot::_list_checkout DIR SOURCE PREFIX: the files of the working tree, each ended by a NUL, and those of its submodules and of other
# repositories in it. Git still lists deleted files.
snapshot::_list_checkout() {
  local dir=$1 source=$2 prefix=$3 file
  snapshot::_git "$dir" ls-files -z --cached --others --exclude-standard | sort -zu |
    while IFS= read -r -d '' file; do
      file=${file%/}
      if snapshot::_is_repository "${dir}/${file}"; then
        snapshot::_need_own "${dir}/${file}" "$source"
        snapshot::_list_checkout "${dir}/${file}" "$source" "${prefix}${file}/"
      elif [[ -e $dir/$file || -L $dir/$file ]]; then
        printf './%s\0' "${prefix}${file}"
      fi
    done
}

# snapshot::_list_commit DIR COMMIT PREFIX: its files and those of its submodules, as `git ls-tree -r -z` lists them. A submodule that is not
# checked out here stays one entry, which equals no file; so do those that lack the commit.
snapshot::_list_commit() {
  local dir=$1 prefix=$3 entry name hash
  [[ -n $2 ]] || return 0
  snapshot::_git "$dir" ls-tree -r -z "$2" |
    while IFS= read -r -d '' entry; do
      name=${entry#*$'\t'} hash=${entry%%$'\t'*}
      hash=${hash##* }
      if [[ $entry == 160000\ * ]] && snapshot::_has_commit "${dir}/${name}" "$hash"; then
        snapshot::_list_commit "${dir}/${name}" "$hash" "${prefix}${name}/"
      else
        printf '%s\t%s\0' "${entry%%$'\t'*}" "${prefix}${name}"
      fi
    done
}

snapshot::_is_repository() { [[ -e $1/.git && ! -L $1 ]]; }

snapshot::_has_commit() { snapshot::_is_repository "$1" && snapshot::_git "$1" cat-file -e "$2^{commit}" 2>/dev/null; }
