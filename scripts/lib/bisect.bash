# bisect: the search for the commit that changed training. git chooses the commits, in a clone of our own; what each commit said is kept
# in the head. A search that was interrupted begins again with git, and commits that were tried are answered at once.
# shellcheck shell=bash

# bisect::check: the knobs of a new search can be used: GOOD comes before BAD, and something in between changes verl/. Needs no cluster.
# Sets BISECT_SUITE, the suite's file, and what bisect::_clone sets.
bisect::check() {
  local knob base from to
  for knob in VERL_REPO GOOD BAD; do
    [[ -n ${!knob} ]] || cli::die 2 "${knob} is empty: a search needs VERL_REPO, GOOD and BAD, for example 'make bisect VERL_REPO=path:~/verl GOOD=b9873ee9 BAD=HEAD'."
  done
  BISECT_SUITE=$(verify::suite_file)
  bisect::_clone "$VERL_REPO" "$GOOD" "$BAD"
  from="GOOD='$(cli::shown "$GOOD")'" to="BAD='$(cli::shown "$BAD")'"
  base=$(bisect::_git merge-base "$BISECT_GOOD" "$BISECT_BAD") || base=''
  case $base in
    "$BISECT_GOOD") (($(bisect::_count) > 0)) || cli::die 2 "No commit from ${from} to ${to} changes verl/ in ${BISECT_REPO}: name another range." ;;
    "$BISECT_BAD") cli::die 2 "${from} comes after ${to} in ${BISECT_REPO}: swap them; the same search also finds a commit that repairs something." ;;
    *) cli::die 2 "There is no path from ${from} to ${to} in ${BISECT_REPO}: ${base:+both come from ${base::12}, so try GOOD=${base::12}, or }name commits of one branch." ;;
  esac
}

# bisect::check_early: the same, and the suite, before a cluster is brought up.
bisect::check_early() {
  # shellcheck disable=SC2034  # knob::as_json reads them
  local BUDGET='' REPLAY='' ALLOW='' ONLY='' JSON='' # what only a session is asked for
  bisect::check
  verify::check_suite "$BISECT_SUITE"
}

# bisect::begin: creates a search. Sets also BISECT_SEARCH, its directory.
bisect::begin() {
  local number steps=0
  bisect::check
  BISECT_SEARCH=$(helper::run_in head bisect begin "--name=${SUITE}" "--suite-file=${BISECT_SUITE}" "--case=${CASE}" \
    --cluster "$CLUSTER_NAME" "--repo=${VERL_REPO}" --good "$BISECT_GOOD" --bad "$BISECT_BAD" <"$BISECT_SUITE")
  number=$(bisect::_count)
  while ((1 << steps < number)); do steps=$((steps + 1)); done
  log::info "${number} commits change verl/: 2 runs for both ends (and one more to see whether GOOD repeats itself), about ${steps} to find the commit, and 2 to confirm it; more where a case is not exact"
}

# bisect::open: continues BISECT, with its recorded repository and ends. Sets the same variables.
bisect::open() {
  local words=()
  output::read_words words helper::run head bisect open "--name=${BISECT}" --cluster "$CLUSTER_NAME"
  BISECT_SEARCH=${words[0]}
  bisect::_clone "${words[@]:1}"
}

# bisect::_clone REPO GOOD BAD: a clone without files that shares the objects of REPO, which is not changed. Sets BISECT_REPO, BISECT_GOOD
# and BISECT_BAD, both commits, BISECT_CLONE, BISECT_ORIGIN (the URL to which those of submodules are relative), and BISECT_TEMP.
bisect::_clone() {
  local source=${WORKDIR}/verl
  # shellcheck disable=SC2034  # snapshot's messages
  BISECT_REPO=$1 SNAPSHOT_KNOB=VERL_REPO
  snapshot::refuse_password "${1#git:}"
  snapshot::need_git "VERL_REPO=$1 names a git repository"
  if [[ $1 == path:* ]]; then
    source=${1#path:}
    git -C "$source" rev-parse --git-dir >/dev/null || cli::die 2 "${source} (from VERL_REPO=$1) is not a git repository that git can read (the reason is above): name one."
    BISECT_ORIGIN=$(git -C "$source" config --get remote.origin.url) || BISECT_ORIGIN=$(realpath -- "$source") # as git-submodule(1) does
  else
    snapshot::ensure_clone "$source" "${1#git:}" "$1"
    BISECT_ORIGIN=${1#git:}
  fi
  BISECT_GOOD=$(bisect::_commit "$source" GOOD "$2")
  BISECT_BAD=$(bisect::_commit "$source" BAD "$3")
  cli::temp_dir BISECT_TEMP
  BISECT_CLONE=${BISECT_TEMP}/verl.git
  log::while 'cloning the history' -- git clone --quiet --bare --shared -- "$source" "$BISECT_CLONE"
}

# bisect::_commit SOURCE KNOB NAME: prints the commit.
bisect::_commit() {
  local commit=''
  case $BISECT_REPO in
    path:*) commit=$(git -C "$1" rev-parse --quiet --verify --end-of-options "$3^{commit}") || true ;;
    git:*) commit=$(snapshot::commit "$1" "${BISECT_REPO#git:}" "$3") ;;
  esac
  [[ -n $commit ]] || cli::die 2 "$2='$(cli::shown "$3")' is not a commit, branch or tag of ${BISECT_REPO}: check the name, or fetch it there."
  printf '%s\n' "$commit"
}

bisect::_git() { git -C "$BISECT_CLONE" "$@"; }

# bisect::_count: how many commits change verl/.
bisect::_count() { bisect::_git rev-list --count "${BISECT_GOOD}..${BISECT_BAD}" -- verl; }

# bisect::run: tries GOOD and BAD, then the commits that git bisect names, until git knows the first bad one or only skipped ones are left.
# A loop and not `git bisect run`: a step of ours can stop that with 128 or more, but then it ends with 120 whatever our status was (git 2.39),
# and each step would be a process that reads the knobs and asks for the cluster again.
bisect::run() {
  local commit word found=()
  cli::on_interrupt log::info "the search can be continued: 'make bisect BISECT=${BISECT_SEARCH##*/}'"
  log::step "search $(nodes::shown "$BISECT_SEARCH"): GOOD is ${BISECT_GOOD::12}, BAD is ${BISECT_BAD::12}"
  bisect::_ask ends "$BISECT_GOOD" "$BISECT_BAD" >/dev/null
  bisect::_git bisect start --no-checkout "$BISECT_BAD" "$BISECT_GOOD" -- verl >/dev/null
  output::read_lines found bisect::_found
  while ((${#found[@]} == 0)); do
    commit=$(bisect::_git rev-parse --verify BISECT_HEAD)
    log::step "bisect: ${commit::12} $(bisect::_git show --no-patch --format=%s "$commit")"
    word=$(bisect::_ask "commit-${commit}" "$BISECT_GOOD" "$commit")
    bisect::_git bisect "$word" "$commit" >/dev/null || (($? == 2)) # only skipped commits are left
    output::read_lines found bisect::_found
  done
  bisect::_finish "${found[@]}"
}

# bisect::_found: the first bad commit, or those that may be it; nothing before git has ended.
bisect::_found() { bisect::_git bisect log | sed -nE 's/^# (possible )?first bad commit: \[([0-9a-f]+)\].*/\2/p'; }

# bisect::_ask ROLE COMMIT_A COMMIT_B: what a regression session says of COMMIT_B: good, bad or skip. It is made or continued if it is not
# over.
bisect::_ask() {
  local said=() code_a code_b status='' environment refused='' file=${BISECT_TEMP}/suite.yaml
  [[ $1 != commit-* ]] || bisect::_git cat-file -e "$3:verl/__init__.py" 2>/dev/null || refused='it has no verl/__init__.py'
  while true; do
    output::read_words said helper::run head bisect ask --search "$BISECT_SEARCH" --role "$1" "--refused=${refused}" \
      "--subject=$(bisect::_git show --no-patch --format=%s "$3")"
    case ${said[0]} in
      new)
        code_a=$(bisect::_snapshot "$2")
        code_b=$(bisect::_snapshot "$3")
        printf '%s\n' "${said[1]}" >"$file"
        # What a search is not asked for; REPLAY, because GOOD's runs are taken over.
        environment=("SUITE=${file}" "CODE_A=${code_a}" "CODE_B=${code_b}" REPLAY= SESSION= ONLY= BUDGET= ALLOW= JSON=)
        ;;
      open)
        [[ -z $status ]] || cli::die 1 "The session ${said[1]} of $1 ended with status ${status}, and its report could not be written (the reason is above): fix that, then continue with 'make bisect BISECT=${BISECT_SEARCH##*/}'."
        environment=(-u SUITE "SESSION=${said[1]}" BUDGET= ALLOW= JSON=)
        ;;
      *) printf '%s\n' "${said[0]}" && return ;;
    esac
    status=0
    bisect::_script 60_verify.sh "${environment[@]}" >&2 || status=$?
    [[ $status =~ ^(0|9|10|11|12)$ ]] || cli::die "$status" "The session of $1 ended early (the reason is above): fix that, then continue with 'make bisect BISECT=${BISECT_SEARCH##*/}'."
  done
}

# bisect::_script FILE [-u KNOB]... [KNOB=VALUE]...: another script with the user's knobs and these. What this script has exported are all
# knobs, also those that the user did not set.
bisect::_script() {
  local knob forget=()
  for knob in "${KNOB_NAMES[@]}"; do
    env::is_given "$knob" || forget+=(-u "$knob")
  done
  env "${forget[@]}" "${@:2}" "${REPO_DIR}/scripts/$1"
}

bisect::_snapshot() { snapshot::of_commit 'verl-{tree}' "git:${BISECT_REPO#*:}@$1" "$BISECT_CLONE" "$1" "$BISECT_ORIGIN"; }

# bisect::_finish COMMIT...: trains the commit and its parent again, and writes the report; its exit status is ours. Of several it is one.
bisect::_finish() {
  local parent='' about=''
  if (($# == 1)); then
    parent=$(bisect::_git rev-parse --verify "$1^")
    log::step "bisect: ${1::12} is the first bad commit; it and its parent are trained again"
    bisect::_ask confirm "$parent" "$1" >/dev/null
    about=$(bisect::_git show --no-patch --no-color --format='%s%n%an <%ae>%n%ad' --date=iso-strict "$1")
  fi
  { (($# > 1)) || bisect::_git show --no-color --no-ext-diff --no-textconv --format= "$1" -- verl; } |
    helper::run_in head bisect finish --search "$BISECT_SEARCH" "--parent=${parent}" "--about=${about}" "$@"
}
