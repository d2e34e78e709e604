# bisect: the search for the commit that changed training. git chooses the commits, in a clone of our own; what each commit said is kept
# in the head, so a search that was interrupted goes on by telling git the same again.
# shellcheck shell=bash

# bisect::check: the knobs of a new search can be used; needs no cluster. Sets BISECT_SUITE, its file, BISECT_GOOD and BISECT_BAD, both
# commits, and BISECT_CLONE.
bisect::check() {
  verify::refuse_knobs 'both ends and every commit run the case as the suite has it' DRY_RUN OVERRIDES OVERRIDES_FILE TRAIN_SEED CODE_A CODE_B SESSION ONLY BUDGET ALLOW JSON
  bisect::_need VERL_REPO GOOD BAD
  BISECT_SUITE=$(verify::suite_file)
  bisect::_clone "$VERL_REPO" "$GOOD" "$BAD"
  bisect::_check_range
}

# bisect::begin: creates a search. Sets also BISECT_SEARCH, its directory.
bisect::begin() {
  local args
  bisect::check
  args=("--name=${SUITE}" "--case=${CASE}" --cluster "$CLUSTER_NAME" "--repo=${VERL_REPO}" --good "$BISECT_GOOD" --bad "$BISECT_BAD")
  BISECT_SEARCH=$(helper::run_in head bisect begin "${args[@]}" <"$BISECT_SUITE")
  bisect::_tell_cost
}

# bisect::open: continues BISECT, with its recorded repository and ends. Sets the same variables.
bisect::open() {
  local words=()
  verify::refuse_knobs 'the search has its own' VERL_REPO GOOD BAD SUITE CASE DRY_RUN OVERRIDES OVERRIDES_FILE TRAIN_SEED CODE_A CODE_B SESSION ONLY BUDGET ALLOW JSON
  output::read_words words helper::run head bisect open "--name=${BISECT}" --cluster "$CLUSTER_NAME"
  BISECT_SEARCH=${words[0]}
  bisect::_clone "${words[@]:1}"
}

# bisect::_need KNOB...: a search needs these.
bisect::_need() {
  local knob
  for knob in "$@"; do
    [[ -n ${!knob} ]] || cli::die 2 "${knob} is empty: a search needs VERL_REPO, GOOD and BAD, for example 'make bisect VERL_REPO=path:~/verl GOOD=b9873ee9 BAD=HEAD'."
  done
}

# bisect::_clone REPO GOOD BAD: a clone without files that shares the objects of REPO, which is not changed. Sets BISECT_REPO,
# BISECT_TEMP, and the commits.
bisect::_clone() {
  local source
  # shellcheck disable=SC2034  # snapshot's messages
  SNAPSHOT_KNOB=VERL_REPO
  snapshot::need_git "VERL_REPO=$1 names a git repository"
  source=$(bisect::_source "$1")
  BISECT_REPO=$1
  BISECT_GOOD=$(bisect::_commit "$1" "$source" GOOD "$2")
  BISECT_BAD=$(bisect::_commit "$1" "$source" BAD "$3")
  cli::temp_dir BISECT_TEMP
  BISECT_CLONE=${BISECT_TEMP}/verl.git
  log::while 'cloning the history' -- git clone --quiet --bare --shared -- "$source" "$BISECT_CLONE"
}

# bisect::_source REPO: the folder that has its objects.
bisect::_source() {
  local dir
  case $1 in
    path:*)
      dir=$(env::path "${1#path:}")
      git -C "$dir" rev-parse --git-dir >/dev/null || cli::die 2 "${dir} (from VERL_REPO=$1) is not a git repository that git can read (the reason is above): name one."
      ;;
    git:*)
      dir=${WORKDIR}/verl
      snapshot::ensure_clone "$dir" "${1#git:}" "$1"
      ;;
  esac
  printf '%s\n' "$dir"
}

# bisect::_commit REPO SOURCE KNOB NAME: prints the commit.
bisect::_commit() {
  local commit=''
  [[ $4 != -* ]] || cli::die 2 "$3='$(cli::shown "$4")' is not the name of a commit: use a commit, a branch or a tag."
  case $1 in
    path:*) commit=$(git -C "$2" rev-parse --quiet --verify "$4^{commit}") || true ;;
    git:*) commit=$(snapshot::commit "$2" "${1#git:}" "$4") ;;
  esac
  [[ -n $commit ]] || cli::die 2 "$3='$(cli::shown "$4")' is not a commit, branch or tag of $1: check the name, or fetch it there."
  printf '%s\n' "$commit"
}

# bisect::_check_range: GOOD comes before BAD, and something in between changes verl/.
bisect::_check_range() {
  local base
  [[ $BISECT_GOOD != "$BISECT_BAD" ]] || cli::die 2 "GOOD and BAD are the same commit, ${BISECT_GOOD::12}: name two."
  if ! bisect::_git merge-base --is-ancestor "$BISECT_GOOD" "$BISECT_BAD"; then
    ! bisect::_git merge-base --is-ancestor "$BISECT_BAD" "$BISECT_GOOD" ||
      cli::die 2 "GOOD='$(cli::shown "$GOOD")' comes after BAD='$(cli::shown "$BAD")' in ${BISECT_REPO}: swap them; the same search also finds a commit that repairs something."
    base=$(bisect::_git merge-base "$BISECT_GOOD" "$BISECT_BAD") || base=''
    cli::die 2 "There is no path from GOOD='$(cli::shown "$GOOD")' to BAD='$(cli::shown "$BAD")' in ${BISECT_REPO}: ${base:+both come from ${base::12}, so try GOOD=${base::12}, or }name commits of one branch."
  fi
  [[ -n $(bisect::_list) ]] ||
    cli::die 2 "No commit from GOOD='$(cli::shown "$GOOD")' to BAD='$(cli::shown "$BAD")' changes verl/ in ${BISECT_REPO}: name another range."
}

bisect::_git() { git -C "$BISECT_CLONE" "$@"; }

# bisect::_list: the commits that change verl/, the newest first, one a line with its subject.
bisect::_list() { bisect::_git log --no-color --format='%h %s' "${BISECT_GOOD}..${BISECT_BAD}" -- verl; }

# bisect::_tell_cost: the commits, and how many runs it takes at most if each of them can be judged.
bisect::_tell_cost() {
  local commits=() steps=0 line
  output::read_lines commits bisect::_list
  while ((1 << steps < ${#commits[@]})); do steps=$((steps + 1)); done
  for line in "${commits[@]::20}"; do log::info "$line"; done
  ((${#commits[@]} <= 20)) || log::info "and $((${#commits[@]} - 20)) more"
  log::info "${#commits[@]} commits change verl/: 2 runs for both ends (and one more to see whether GOOD repeats itself), about ${steps} to find the commit, and 2 to confirm it; more where a case is not exact"
}

# bisect::try_ends: GOOD and BAD as A and B of a regression session.
bisect::try_ends() {
  cli::on_interrupt log::info "the search can be continued: 'make bisect BISECT=${BISECT_SEARCH##*/}'"
  bisect::_session ends "$BISECT_GOOD" "$BISECT_BAD"
}

bisect::_helper() { helper::run head bisect "$1" --search "$BISECT_SEARCH" "${@:2}"; }

# bisect::_session ROLE COMMIT_A COMMIT_B: a regression session, made, continued, or over already. Its verdict is not our exit status.
bisect::_session() {
  local state=() code_a code_b status=0 environment=() file
  output::read_words state bisect::_helper session --role "$1"
  case ${state[0]} in
    over) return ;;
    open) environment=(-u SUITE "SESSION=${state[1]}") ;;
    new)
      code_a=$(bisect::_snapshot "$2")
      code_b=$(bisect::_snapshot "$3")
      file="${BISECT_TEMP}/${1::12}.yaml"
      printf '%s\n' "${state[1]}" >"$file"
      environment=("SUITE=${file}" "CODE_A=${code_a}" "CODE_B=${code_b}")
      ;;
  esac
  bisect::_script 60_verify.sh "${environment[@]}" >&2 || status=$?
  case $status in
    0 | 9 | 10 | 11 | 12) ;;
    *) cli::die "$status" "The session of $1 ended early (the reason is above): fix that, then continue with 'make bisect BISECT=${BISECT_SEARCH##*/}'." ;;
  esac
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

bisect::_snapshot() { snapshot::of_commit 'verl-{tree}' "git:${BISECT_REPO#*:}@$1" "$BISECT_CLONE" "$1"; }

# bisect::walk: tries the commits that git bisect names, until it knows the first bad one, or only skipped ones are left.
bisect::walk() {
  local word commit
  bisect::_git bisect start --no-checkout "$BISECT_BAD" "$BISECT_GOOD" -- verl >/dev/null
  bisect::_helper replay | while read -r word commit; do bisect::_mark "$word" "$commit"; done
  while ! bisect::_is_over; do
    commit=$(bisect::_git rev-parse --verify BISECT_HEAD)
    word=$(bisect::_try "$commit")
    bisect::_mark "$word" "$commit"
  done
}

# git exits with 2 if only skipped commits are left, which its log says too.
bisect::_mark() { bisect::_git bisect "$1" "$2" >/dev/null || (($? == 2)); }

# bisect::_is_over: git knows the first bad commit, or that it cannot.
bisect::_is_over() { [[ -n $(bisect::_first_bad) || -n $(bisect::_possible) ]]; }

bisect::_first_bad() { bisect::_git bisect log | sed -n 's/^# first bad commit: \[\([0-9a-f]*\)\].*/\1/p'; }

bisect::_possible() { bisect::_git bisect log | sed -n 's/^# possible first bad commit: \[\([0-9a-f]*\)\].*/\1/p'; }

# bisect::_try COMMIT: as B of a session against GOOD; prints good, bad or skip.
bisect::_try() {
  local subject
  subject=$(bisect::_git show --no-patch --format=%s "$1")
  log::step "bisect: ${1::12} ${subject}"
  if bisect::_git cat-file -e "${1}:verl/__init__.py" 2>/dev/null; then
    bisect::_session "$1" "$BISECT_GOOD" "$1"
    bisect::_helper decide --commit "$1" "--subject=${subject}"
  else
    bisect::_helper decide --commit "$1" "--subject=${subject}" --refused 'it has no verl/__init__.py'
  fi
}

# bisect::finish: trains the commit and its parent again, and writes the report; its exit status is ours.
bisect::finish() {
  local commit parent about possible=()
  commit=$(bisect::_first_bad)
  if [[ -z $commit ]]; then
    output::read_lines possible bisect::_possible
    bisect::_helper finish "--possible=${possible[*]}" </dev/null
    return
  fi
  parent=$(bisect::_git rev-parse --verify "${commit}^")
  log::step "bisect: ${commit::12} is the first bad commit; it and its parent are trained again"
  bisect::_session confirm "$parent" "$commit"
  about=$(bisect::_git show --no-patch --no-color --format='%s%n%an <%ae>%n%ad' --date=iso-strict "$commit")
  bisect::_git show --no-color --no-ext-diff --no-textconv --format= "$commit" -- verl |
    helper::run_in head bisect finish --search "$BISECT_SEARCH" --commit "$commit" "--parent=${parent}" "--about=${about}"
}
