#!/usr/bin/env bats
# 31_snapshot_verl_code from a git checkout: what goes into the stream; this machine's own Python plays the head.

# bats file_tags=slow

setup() {
  bats_require_minimum_version 1.5.0
  command -v git >/dev/null || skip 'this machine has no git'
  REPO=$(cd "${BATS_TEST_DIRNAME}/../../.." && pwd)
  ROOT="${BATS_TEST_TMPDIR}/shared root" TREE="${BATS_TEST_TMPDIR}/my verl" WORK="${BATS_TEST_TMPDIR}/work"
  export REPO ROOT WORK PYTHONDONTWRITEBYTECODE=1 HOME="$BATS_TEST_TMPDIR"
  mkdir -p "${TREE}/verl"
  printf 'one = 1\n' | tee "${TREE}/verl/__init__.py" >"${TREE}/verl/gone.py"
  my_git init --quiet
  my_git add .
  my_git -c user.name=me -c user.email=me@example.org commit --quiet --message first
}

teardown() { find "$ROOT" -type d -exec chmod u+w {} + 2>/dev/null || true; }

my_git() { git -C "$TREE" "$@"; }

# snap CODE_ID: as the script does it, but without a node.
snap() {
  try "$1"
  [[ $status == 0 ]] || { printf '%s\n' "$stderr" >&2 && false; }
}

refused() {
  try codeA
  [[ $status == 2 && -z $output ]] || { printf '%s: %s\n' "$status" "$stderr" >&2 && false; }
  grep -qxF -- "error   $1" <<<"$stderr" || { printf 'no line: %s\n%s\n' "$1" "$stderr" >&2 && false; }
}

# try CODE_ID [SOURCE]: the same, also if it fails. FIRST is run before, COPY is another checkout.
try() {
  # shellcheck disable=SC2016  # expanded by the shell that is started here
  run --separate-stderr bash -c '
    source "$1/scripts/lib/regress.bash" && cli::begin
    helper::run() { shift && "${REPO}/.venv/bin/python" "${REPO}/py/run.py" --shared-root "$ROOT" "$@"; }
    helper::run_in() { helper::run "$@"; }
    eval "$4"
    WORKDIR=$WORK && snapshot::ensure "$2" "$3"' scripts/any "${COPY-$REPO}" "$1" "${2-path:${TREE}}" "${FIRST-}"
  RECORD="${ROOT}/common/code/verl/$1/snapshot.json"
}

# recorded FILTER: of the newest snapshot.
recorded() { jq -r "$1" "$RECORD"; }

from_git() { try "$1" "git:$2"; }

# with_submodule: recipe/ is a submodule, which has one of its own, recipe/deep. Their URLs are relative.
with_submodule() {
  local name
  for name in deep recipe; do
    git init --quiet "${BATS_TEST_TMPDIR}/${name}"
    printf '%s = 1\n' "$name" >"${BATS_TEST_TMPDIR}/${name}/file.py"
    if [[ $name == recipe ]]; then
      git -C "${BATS_TEST_TMPDIR}/recipe" -c protocol.file.allow=always submodule --quiet add ../deep deep 2>/dev/null
    fi
    git -C "${BATS_TEST_TMPDIR}/${name}" add .
    git -C "${BATS_TEST_TMPDIR}/${name}" -c user.name=me -c user.email=me@example.org commit --quiet --message "$name"
  done
  my_git -c protocol.file.allow=always submodule --quiet add ../recipe recipe 2>/dev/null
  my_git -c protocol.file.allow=always submodule --quiet update --init --recursive
  commit submodule
}

# same_as_commit: the checkout and its commit give the same files, and both records say that they are the commit's.
same_as_commit() {
  local tree
  snap codeA
  tree=$(recorded .tree_sha256)
  [[ $(recorded .dirty) == false ]] || { printf '%s\n' "$stderr" >&2 && false; }
  from_git codeB "${TREE}@HEAD"
  [[ $status == 0 && $(recorded '[.dirty, .tree_sha256] | join(" ")') == "false ${tree}" ]] || { printf '%s\n' "$stderr" >&2 && false; }
}

# changed NAMES: the checkout's snapshot is not that of its commit, and names these files.
changed() {
  snap "code$((++CHANGED))"
  [[ $(recorded .dirty) == true ]]
  grep -qxF "        not as in the commit: $1" <<<"$stderr" || { printf '%s\n' "$stderr" >&2 && false; }
}

@test "a path may begin with ~, which the shell leaves as it is behind path:" {
  # shellcheck disable=SC2088  # as a user types it
  TREE='~/my verl' snap codeA
  [[ $(recorded .source) == "path:${TREE}" ]]
}

@test "another user's checkout is refused, and nothing that it names is run" {
  ((EUID == 0)) || skip 'only root can give a file to another user'
  printf '[safe]\n\tdirectory = *\n' >"${HOME}/.gitconfig"
  my_git config core.fsmonitor "touch '${BATS_TEST_TMPDIR}/ran'; false"
  my_git config filter.x.clean "touch '${BATS_TEST_TMPDIR}/ran'; cat"
  printf '*.py filter=x\n' >"${TREE}/.gitattributes"
  touch -d yesterday "${TREE}/verl/__init__.py"
  chown -R 4242 "$TREE"
  refused "${TREE} (from VERL_SOURCE=path:${TREE}) is another user's git checkout, whose configuration git would run as you: copy it without its .git, or name the repository that it comes from as git:URL@REF."
  [[ ! -e ${BATS_TEST_TMPDIR}/ran && ! -e ${ROOT}/common ]]
  rm -rf "${TREE}/.git"
  snap codeA
  [[ $(recorded .revision) == '' && ! -e ${BATS_TEST_TMPDIR}/ran ]]
}

@test "git says that a checkout is another user's, also before git 2.35.3" {
  local said
  for said in 'detected dubious ownership in repository at' 'unsafe repository'; do
    FIRST="git() { [[ \$* != *--git-dir* ]] || { echo 'fatal: ${said}' >&2 && return 128; } && command git \"\$@\"; }" \
      refused "${TREE} (from VERL_SOURCE=path:${TREE}) is another user's git checkout, whose configuration git would run as you: copy it without its .git, or name the repository that it comes from as git:URL@REF."
  done
}

@test "a clean checkout: its commit, not dirty" {
  snap codeA
  [[ $(recorded .revision) == "$(my_git rev-parse HEAD)" ]]
  [[ $(recorded .dirty) == false ]]
}

@test "a folder without verl's code is refused" {
  mv "${TREE}/verl/__init__.py" "${TREE}/verl/other.py"
  refused "${TREE} (from VERL_SOURCE=path:${TREE}) has no verl/__init__.py that can be read: name the folder that contains the folder 'verl'."
}

@test "a dirty checkout is recorded as dirty with its working tree; again is skipped" {
  printf 'one = 2\n' >"${TREE}/verl/__init__.py"
  rm "${TREE}/verl/gone.py"
  printf 'two = 2\n' | tee "${TREE}/verl/new one.py" >"${TREE}/ignored.log"
  printf '*.log\n' >"${TREE}/.git/info/exclude"
  snap codeA
  [[ $(recorded '[.dirty, .changed > 0] | all') == true ]]
  snap codeA
  [[ $stderr == *"skip    snapshot codeA at ${ROOT}/common/code/verl/codeA (exists, same source)"* ]]
  [[ $(cd "${ROOT}/common/code/verl/codeA" && find . -type f ! -name '*.pyc' | sort) == $'./mvp_marker.py\n./snapshot.json\n./verl/__init__.py\n./verl/new one.py' ]]
}

@test "a release: its requirements are in the record, pip's own files are not kept" {
  mkdir -p "${BATS_TEST_TMPDIR}/work/cache/verl/pypi-1.2.3/"{verl,bin,verl-1.2.3.dist-info,other-1.dist-info}
  cd "${BATS_TEST_TMPDIR}/work/cache/verl/pypi-1.2.3"
  touch verl/__init__.py bin/tool verl/METADATA other-1.dist-info/METADATA
  printf 'Metadata-Version: 2.4\nName: verl\nRequires-Dist: numpy<2.0.0\n' >verl-1.2.3.dist-info/METADATA
  try codeA pypi:1.2.3
  [[ $status == 0 ]] || { printf '%s\n' "$stderr" >&2 && false; }
  [[ $(recorded '.requirements.requires[]') == 'numpy<2.0.0' ]]
  [[ $(cd "${ROOT}/common/code/verl/codeA" && find . -type f ! -name '*.pyc' | sort) == $'./mvp_marker.py\n./snapshot.json\n./verl/METADATA\n./verl/__init__.py' ]]
}

# of_release [LINES]: the snapshot codeA of release 9.9.9 in a copy of the checkout, whose stub of pip makes what it downloads.
of_release() {
  COPY="${BATS_TEST_TMPDIR}/copy"
  [[ -e $COPY ]] || { mkdir -p "${COPY}/.venv/bin" && cp -r "${REPO}"/{scripts,env} "$COPY"; }
  FIRST="venv::ensure() { echo 'venv is there' >&2; }; ${1-}" try codeA pypi:9.9.9
}

@test "a release is downloaded once, for everybody; a failed download leaves nothing" {
  local cache="${BATS_TEST_TMPDIR}/work/cache/verl" copy="${BATS_TEST_TMPDIR}/copy" pip
  of_release 'helper::run() { return 8; }' # makes the copy
  pip="${copy}/.venv/bin/python"
  printf '#!/bin/sh\necho no such version >&2\nexit 1\n' >"$pip"
  chmod +x "$pip"
  of_release
  [[ $status == 2 && -z $(ls -A "$cache") && $stderr == *'no such version'* ]]
  grep -qxF 'error   verl==9.9.9 (from VERL_SOURCE=pypi:9.9.9) could not be fetched by pip, which says why above: check the version, or the package index of this host.' <<<"$stderr"
  # shellcheck disable=SC2016  # expanded by the stub
  printf '#!/bin/bash\n%s\n' 'to=${*: -1}; echo "$*" >"${0%/*}/asked"; mkdir "${to}/verl" && echo ours >"${to}/verl/__init__.py"; echo pip says' >"$pip"
  of_release
  [[ $status == 0 && $output == codeA && $(text_of codeA) == ours && $(stat -c %a "${cache}/pypi-9.9.9") == 755 ]]
  [[ $(<"${copy}/.venv/bin/asked") == "-m pip install -qq --disable-pip-version-check --no-deps --no-compile verl==9.9.9 --target ${cache}/pypi-9.9.9."??????.tmp ]]
  [[ $stderr == *'venv is there'* && $stderr == *"changed fetched verl 9.9.9 into ${cache}/pypi-9.9.9"* && $(recorded .source) == pypi:9.9.9 ]]
  rm "$pip"
  of_release
  [[ $status == 0 && $output == codeA && $stderr == *'skip    snapshot codeA'* ]]
}

@test "a head that does not answer about the snapshot ends the script with its status" {
  of_release 'helper::run() { return 8; }'
  [[ $status == 8 && ! -e ${BATS_TEST_TMPDIR}/work ]]
}

@test "a code id is kept; a source becomes the snapshot of its files" {
  # shellcheck disable=SC2016  # expanded by the shell that is started here
  FIRST='CODE_A=codeB; CODE_B=pypi:1.2.3; snapshot::resolve CODE_A
    snapshot::ensure() { [[ $1 == verl-{tree} ]] && echo "made of $2 for ${SNAPSHOT_KNOB}"; }; snapshot::resolve CODE_B' try codeA
  [[ $output == $'codeB\nmade of pypi:1.2.3 for CODE_B'* ]] || { printf '%s\n' "$output" "$stderr" >&2 && false; }
}

@test "without git, a git checkout and a git URL are refused, any other folder is taken" {
  bare="${BATS_TEST_TMPDIR}/bin"
  mkdir "$bare"
  for directory in /usr/local/bin /usr/bin /bin; do
    find "${directory}/" -maxdepth 1 ! -name 'git*' -type f,l -exec ln -sf -t "$bare" {} +
  done
  PATH="$bare" try codeA
  [[ $status == 1 && $stderr == "error   ${TREE} (from VERL_SOURCE=path:${TREE}) is a git checkout, and this machine has no git: install git, then run this again."* ]]
  PATH="$bare" try codeA git:https://example.org/verl@main
  [[ $status == 1 && $stderr == 'error   VERL_SOURCE=git:https://example.org/verl@main names a git repository, and this machine has no git: install git, then run this again.'* ]]
  rm -rf "${TREE}/.git"
  mkdir "${TREE}/verl/__pycache__"
  touch "${TREE}/verl/old.pyc" "${TREE}/verl/__pycache__/stale"
  PATH="$bare" snap codeB
  [[ ! -e ${ROOT}/common/code/verl/codeB/verl/old.pyc && ! -e ${ROOT}/common/code/verl/codeB/verl/__pycache__/stale ]]
  [[ -z $(recorded '.revision // empty') ]]
}

text_of() { cat "${ROOT}/common/code/verl/$1/verl/__init__.py"; }
commit() { my_git -c user.name=me -c user.email=me@example.org commit --quiet --all --message "$1"; }

@test "a git URL: the files of the branch, tag or commit that it names" {
  local first second branch
  first=$(my_git rev-parse HEAD) branch=$(my_git branch --show-current)
  my_git tag v1
  printf 'one = 2\n' >"${TREE}/verl/__init__.py"
  commit second
  second=$(my_git rev-parse HEAD)
  printf 'one = 3\n' >"${TREE}/verl/__init__.py"
  touch "${TREE}/verl/untracked.py"
  from_git codeA "${TREE}@${branch}"
  [[ $status == 0 && $output == codeA && $(text_of codeA) == 'one = 2' && ! -e ${ROOT}/common/code/verl/codeA/verl/untracked.py ]]
  [[ $(recorded '[.source, .revision, .dirty] | join(" ")') == "git:${TREE}@${branch} ${second} false" ]]
  [[ $stderr == *"changed fetched ${TREE} into ${BATS_TEST_TMPDIR}/work/verl"* ]]
  from_git codeB "${TREE}@v1"
  [[ $status == 0 && $(text_of codeB) == 'one = 1' && $(recorded .revision) == "$first" && $stderr != *changed\ fetched* ]]
  from_git codeC "${TREE}@${first:0:12}"
  [[ $status == 0 && $(text_of codeC) == 'one = 1' && $(recorded .revision) == "$first" ]]
  commit third
  from_git codeD "${TREE}@${branch}"
  [[ $status == 0 && $(text_of codeD) == 'one = 3' && $(recorded .revision) == "$(my_git rev-parse HEAD)" ]]
  [[ -z $(git -C "${BATS_TEST_TMPDIR}/work/verl" for-each-ref refs/verl-regress) ]]
}

@test "a commit is its files as committed, with those of submodules" {
  with_submodule
  printf '%s\n' '/verl/gone.py export-ignore' '*.py export-subst ident' '*.md text eol=crlf' 'file.py filter=lost working-tree-encoding=UTF-16' >"${TREE}/.gitattributes"
  printf '%s\n' "\$Format:%H\$" "\$Id\$" >"${TREE}/verl/subst.py"
  printf 'words\n' >"${TREE}/README.md"
  ln -s verl/gone.py "${TREE}/link"
  printf 'true\n' >"${TREE}/run.sh"
  chmod +x "${TREE}/run.sh"
  my_git add .
  commit attributes
  same_as_commit
  [[ $(<"${ROOT}/common/code/verl/codeB/recipe/deep/file.py") == 'deep = 1' && -e ${ROOT}/common/code/verl/codeB/verl/gone.py ]]
}

@test "a checkout with submodules, in a worktree or of SHA-256 is its commit" {
  with_submodule
  same_as_commit
  my_git worktree add --quiet --detach "${BATS_TEST_TMPDIR}/worktree"
  git -C "${BATS_TEST_TMPDIR}/worktree" -c protocol.file.allow=always submodule --quiet update --init --recursive
  try codeC "path:${BATS_TEST_TMPDIR}/worktree"
  [[ $status == 0 && $(recorded .dirty) == false ]] || { printf '%s\n' "$stderr" >&2 && false; }
  rm -rf "${TREE}/.git" "${TREE}/.gitmodules" "${WORK}" "${ROOT}/common"
  my_git init --quiet --object-format=sha256
  my_git add .
  commit sha256
  same_as_commit
}

@test "a change that git is set not to see is a change" {
  CHANGED=0
  with_submodule
  my_git config status.showUntrackedFiles no
  touch "${TREE}/verl/new.py"
  changed 'verl/new.py (1 in all)'
  rm "${TREE}/verl/new.py"
  my_git update-index --assume-unchanged verl/gone.py
  printf 'one = 2\n' >"${TREE}/verl/gone.py"
  changed 'verl/gone.py (1 in all)'
  my_git update-index --no-assume-unchanged verl/gone.py
  my_git checkout --quiet verl/gone.py
  my_git config submodule.recipe.ignore all
  printf 'recipe = 2\n' >"${TREE}/recipe/file.py"
  touch "${TREE}/recipe/new.py"
  changed 'recipe/file.py, recipe/new.py (2 in all)'
  my_git submodule --quiet deinit --force recipe
  changed 'recipe (1 in all)'
  my_git config filter.lower.clean 'tr A-Z a-z'
  printf '*.py filter=lower\n' >"${TREE}/.git/info/attributes"
  printf 'ONE = 1\n' >"${TREE}/verl/gone.py"
  my_git add verl/gone.py
  my_git diff --quiet HEAD -- verl/gone.py
  changed 'recipe, verl/gone.py (2 in all)'
  my_git sparse-checkout set --no-cone /verl/__init__.py
  changed '.gitmodules, recipe, verl/gone.py (3 in all)'
}

@test "a commit that git replace hides is the one that its id says" {
  local first
  first=$(my_git rev-parse HEAD)
  printf 'one = 2\n' >"${TREE}/verl/__init__.py"
  commit second
  my_git replace "$first" HEAD
  from_git codeA "${TREE}@${first}"
  [[ $status == 0 && $(text_of codeA) == 'one = 1' ]]
  my_git checkout --quiet "$first"
  [[ -z $(my_git status --porcelain) ]]
  snap codeB
  [[ $(recorded '[.revision, .dirty] | join(" ")') == "${first} true" && $(text_of codeB) == 'one = 2' ]]
}

@test "a submodule whose files cannot be had is named" {
  local head
  with_submodule
  head=$(my_git rev-parse HEAD)
  mv "${BATS_TEST_TMPDIR}/deep" "${BATS_TEST_TMPDIR}/moved"
  from_git codeA "${TREE}@HEAD"
  [[ $status == 2 && ! -e ${ROOT}/common/code/verl/codeA ]]
  grep -qx "error   The submodule recipe/deep of the commit [0-9a-f]\{12\} (from VERL_SOURCE) needs the commit [0-9a-f]\{12\} of ${BATS_TEST_TMPDIR}/deep, which could not be fetched, as git says above: check that this host can read ${BATS_TEST_TMPDIR}/deep, or name a checkout as path:DIR." <<<"$stderr"
  my_git rm --quiet --cached .gitmodules
  my_git update-index --add --cacheinfo "160000,${head},stray"
  my_git -c user.name=me -c user.email=me@example.org commit --quiet --message stray
  from_git codeA "${TREE}@HEAD"
  [[ $status == 2 ]]
  grep -qxF "error   The submodule recipe of the commit $(my_git rev-parse --short=12 HEAD) (from VERL_SOURCE) has no URL in .gitmodules, so its files are not known: remove it from the repository, or name a checkout as path:DIR." <<<"$stderr"
}

@test "the URL of a submodule may be relative, and of a folder only in a local one" {
  local base url expected
  git init --quiet "${BATS_TEST_TMPDIR}/inner"
  while read -r base url expected; do
    printf '[submodule "a"]\n\tpath = sub\n\turl = %s\n' "$url" >"${TREE}/.gitmodules"
    my_git add .gitmodules
    my_git -c user.name=me -c user.email=me@example.org commit --quiet --allow-empty --message "$url"
    # shellcheck disable=SC2016  # expanded by the shell that `try` starts
    FIRST='snapshot::_submodule_url '"'${TREE}' '${base}'"' HEAD sub; exit' try codeA
    [[ $status == 0 && ${output} == "$expected" ]] || { printf '%s %s: %s\n%s\n' "$base" "$url" "$output" "$stderr" >&2 && false; }
  done <<'EOT'
https://example.org/me/verl.git ../recipe.git https://example.org/me/recipe.git
https://example.org/me/verl/ ../../you/recipe https://example.org/you/recipe
git@example.org:verl.git ../recipe.git git@example.org:recipe.git
/srv/verl ./recipe /srv/verl/recipe
/srv/verl https://example.org/recipe https://example.org/recipe
EOT
  FIRST="snapshot::_submodule_commit '${TREE}' https://example.org/verl '${BATS_TEST_TMPDIR}/inner' HEAD; exit" try codeA
  [[ $status == 0 && -z $output && $stderr == *"transport 'file' not allowed"* ]] || { printf '%s\n' "$stderr" >&2 && false; }
}

@test "a git URL: the same commit again is skipped, another one under that id refused" {
  local branch
  branch=$(my_git branch --show-current)
  from_git codeA "${TREE}@${branch}"
  from_git codeA "${TREE}@${branch}"
  [[ $status == 0 && $stderr == *"skip    snapshot codeA at ${ROOT}/common/code/verl/codeA (exists, same source)"* ]]
  printf 'one = 2\n' >"${TREE}/verl/__init__.py"
  commit second
  from_git codeA "${TREE}@${branch}"
  [[ $status == 2 && $(text_of codeA) == 'one = 1' ]]
}

@test "a git URL: a fork's commits are fetched into the clone that is there" {
  local fork="${BATS_TEST_TMPDIR}/fork"
  from_git codeA "${TREE}@HEAD"
  git clone --quiet "$TREE" "$fork"
  printf 'one = "fork"\n' >"${fork}/verl/__init__.py"
  git -C "$fork" -c user.name=me -c user.email=me@example.org commit --quiet --all --message fork
  from_git codeB "${fork}@HEAD"
  [[ $status == 0 && $(text_of codeB) == 'one = "fork"' && $stderr != *changed\ fetched* ]]
}

@test "git asks for no password; a clone is for everybody; a path may be relative" {
  cd "$BATS_TEST_TMPDIR"
  # shellcheck disable=SC2016  # expanded by the shell that `try` starts
  FIRST='git() { echo "$1 $2 ${GIT_TERMINAL_PROMPT-}" >>"${WORK}.prompts"; command git "$@"; }' from_git codeA 'my verl@HEAD'
  [[ $status == 0 && $(stat -c %a work/verl) == 755 ]] || { printf '%s\n' "$stderr" >&2 && false; }
  [[ $(grep -cxF 'clone --quiet 0' work.prompts) == 1 && $(grep -c '^-C .* 0$' work.prompts) == 1 ]] || { cat work.prompts >&2 && false; }
}

@test "a git URL that fails, an unknown name and a password leave nothing behind" {
  # said SENTENCE: refused with it, in the last line of ours.
  said() { [[ $status == 2 && -z $output && ! -e ${ROOT}/common/code/verl/codeA ]] && grep -qxF -- "error   $1" <<<"$stderr"; }
  from_git codeA "${BATS_TEST_TMPDIR}/nowhere@main"
  said "${BATS_TEST_TMPDIR}/nowhere (from VERL_SOURCE=git:${BATS_TEST_TMPDIR}/nowhere@main) could not be cloned, as git says above: check the URL, or this host's network."
  [[ -z $(ls "${BATS_TEST_TMPDIR}/work") ]]
  # The name of a login is no secret.
  mkdir "${BATS_TEST_TMPDIR}/bin"
  printf '#!/bin/sh\nexit 1\n' >"${BATS_TEST_TMPDIR}/bin/ssh"
  chmod +x "${BATS_TEST_TMPDIR}/bin/ssh"
  PATH="${BATS_TEST_TMPDIR}/bin:${PATH}" from_git codeA ssh://me@127.0.0.1:1/verl.git@main
  said 'ssh://me@127.0.0.1:1/verl.git (from VERL_SOURCE=git:ssh://me@127.0.0.1:1/verl.git@main) could not be cloned, as git says above: check the URL, or this host'"'s network."
  from_git codeA "${TREE}@nope"
  said "'nope' (from VERL_SOURCE=git:${TREE}@nope) is not a branch, tag or commit that ${TREE} gives, as git says above: check the name, and give a commit in full."
  from_git codeA 'https://me:pw@example.org/verl@main'
  said 'The URL in VERL_SOURCE holds a user name or a password, which would be recorded with the snapshot: leave it out and use a git credential helper.'
}
