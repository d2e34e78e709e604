#!/usr/bin/env bats
# The git half of 62_bisect: real git walks a made history; this machine's own Python plays the head, and what a commit says is read from
# its files.

# bats file_tags=slow

setup_file() {
  command -v git >/dev/null || skip 'this machine has no git'
  export HISTORY="${BATS_FILE_TMPDIR}/history" HOME="$BATS_FILE_TMPDIR" GIT_CONFIG_NOSYSTEM=1
  mkdir -p "${HISTORY}/verl" "${BATS_FILE_TMPDIR}/bin"
  printf '#!/bin/sh\nexit 1\n' >"${BATS_FILE_TMPDIR}/bin/docker" # there is no engine
  chmod +x "${BATS_FILE_TMPDIR}/bin/docker"
  export PATH="${BATS_FILE_TMPDIR}/bin:${PATH}"
  history_git init --quiet --initial-branch main
  printf 'good\n' | tee "${HISTORY}/verl/loss.py" >"${HISTORY}/verl/__init__.py"
  commit 0
  history_git tag good
  for number in {1..64}; do
    printf '# %s\n' "$number" >>"${HISTORY}/verl/__init__.py"
    case $number in
      32 | 33) printf 'broken\n' >"${HISTORY}/verl/loss.py" ;;
      34) printf 'good\n' >"${HISTORY}/verl/loss.py" ;;
      41) printf 'bad\n' >"${HISTORY}/verl/loss.py" ;;
      50) history_git checkout --quiet HEAD~1 -- verl/__init__.py ;;
    esac
    commit "$number"
  done
  history_git checkout --quiet -b aside good
  printf '# aside\n' >>"${HISTORY}/verl/__init__.py"
  commit aside
  printf 'words\n' >"${HISTORY}/README"
  commit words
  history_git checkout --quiet main
}

history_git() { git -C "$HISTORY" -c user.name=me -c user.email=me@example.org "$@"; }

commit() { history_git add . && history_git commit --quiet --allow-empty --message "commit $1"; }

# library COMMAND...: in a shell with the libraries, whose head is this machine.
library() {
  # shellcheck disable=SC2016  # expanded by the shell that is started here
  run bash -c '
    source "$1/scripts/lib/regress.bash" && cli::begin && env::load
    ROOT=$2
    helper::run() { shift && "${REPO_DIR}/.venv/bin/python" "${REPO_DIR}/py/run.py" --shared-root "$ROOT" "$@"; }
    helper::run_in() { helper::run "$@"; }
    nodes::shown() { printf "%s\n" "$1"; }
    # Nothing is trained: a commit says what its file says.
    bisect::_try() {
      local commit=$1 word
      printf "%s\n" "$commit" >>"${ROOT}/runs"
      word=$(bisect::_git show "${commit}:verl/loss.py")
      [[ $word != broken ]] || word=skip
      printf "{\"word\": \"%s\", \"time\": \"%s\"}\n" "$word" "$(date +%s.%N)" >"${BISECT_SEARCH}/commit-${commit}.json"
      printf "%s\n" "$word"
    }
    shift 2
    "$@"' scripts/any "${BATS_TEST_DIRNAME}/../../.." "${BATS_TEST_TMPDIR}" "$@"
}

setup() {
  export SUITE=rehearsal VERL_REPO="path:${HISTORY}" GOOD=good BAD=main
  export -f walk goes_on first_bad
}

walk() {
  bisect::begin
  printf '{"case": "ppo", "why": "its file"}\n' >"${BISECT_SEARCH}/signature.json" # what its ends said
  bisect::walk
  first_bad
}

goes_on() {
  bisect::open
  bisect::walk
  first_bad
}

first_bad() { printf 'first bad: %s\n' "$(bisect::_git log -1 --format=%s "$(bisect::_first_bad)")"; }

@test "64 commits, two that cannot be judged: the right one in at most 8 tries" {
  before=$(history_git for-each-ref && history_git status --porcelain && ls "${HISTORY}/.git")
  library walk
  printf '%s\n' "$output"
  ((status == 0))
  [[ $output == *'64 commits change verl/: 2 runs for both ends (and one more to see whether GOOD repeats itself), about 6 to find the commit, and 2 to confirm it'* ]]
  [[ ${lines[-2]} == 'first bad: commit 41' ]]
  (($(wc -l <"${BATS_TEST_TMPDIR}/runs") <= 8))
  [[ $(history_git for-each-ref && history_git status --porcelain && ls "${HISTORY}/.git") == "$before" ]]
}

@test "a search that goes on tries no commit twice" {
  library walk
  sed -i '$d' "${BATS_TEST_TMPDIR}/runs" # as if it was interrupted during the last one
  last=$(find "${BATS_TEST_TMPDIR}/bisect" -name 'commit-*' -printf '%T@ %p\n' | sort -n | tail -n 1)
  rm "${last#* }"
  unset SUITE VERL_REPO GOOD BAD
  BISECT=latest library goes_on
  printf '%s\n' "$output"
  [[ ${lines[-2]} == 'first bad: commit 41' ]]
  [[ -z $(sort "${BATS_TEST_TMPDIR}/runs" | uniq --repeated) ]]
}

@test "another script gets the user's knobs and ours, and no default" {
  shows() {
    printf '#!/bin/sh\nenv\n' >"${ROOT}/show" && chmod +x "${ROOT}/show"
    BISECT=latest SUITE=mine bisect::_script "../../../../../../../../..${ROOT}/show" -u SUITE SESSION=1 | grep -E '^(SUITE|CODE_A|SESSION|GOOD|STEP)='
  }
  export -f shows
  library shows
  printf '%s\n' "$output"
  [[ $output == *'GOOD=good'* && $output == *'SESSION=1'* ]]
  [[ $output != *SUITE=* && $output != *CODE_A=* && $output != *STEP=* ]]
}

@test "only commits that cannot be judged are left: each of them is possible" {
  # shellcheck disable=SC2030  # for this test alone
  export GOOD=main~34 BAD=main~30 # 30 to 34, of which 32 and 33 are broken
  history_git checkout --quiet main
  only_skipped() {
    bisect::begin
    printf '{"case": "ppo", "why": "its file"}\n' >"${BISECT_SEARCH}/signature.json"
    # shellcheck disable=SC2329  # bisect::walk calls it
    bisect::_try() { printf '%s\n' skip; }
    bisect::walk
    printf 'possible: %d\n' "$(bisect::_possible | wc -l)"
  }
  export -f only_skipped
  library only_skipped
  printf '%s\n' "$output"
  [[ ${lines[-2]} == 'possible: 4' ]]
}

@test "a search that cannot be begun: one sentence, exit 2, nothing is created" {
  count=0
  while IFS='|' read -r knobs sentence; do
    read -r -a words <<<"$knobs"
    export "${words[@]}"
    library walk
    printf '%s\n' "$output"
    ((status == 2))
    # shellcheck disable=SC2053  # a pattern
    [[ ${lines[-2]} == "error   "$sentence ]]
    [[ ! -e ${BATS_TEST_TMPDIR}/bisect ]]
    # shellcheck disable=SC2031  # the same
    export SUITE=rehearsal VERL_REPO="path:${HISTORY}" GOOD=good BAD=main CASE='' OVERRIDES=''
    count=$((count + 1))
  done <<EOF
GOOD=|GOOD is empty: a search needs VERL_REPO, GOOD and BAD, for example *
VERL_REPO=path:/nowhere|/nowhere (from VERL_REPO=path:/nowhere) is not a git repository that git can read (the reason is above): name one.
GOOD=nope|GOOD='nope' is not a commit, branch or tag of path:*: check the name, or fetch it there.
BAD=-x|BAD='-x' is not the name of a commit: use a commit, a branch or a tag.
GOOD=main BAD=good|GOOD='main' comes after BAD='good' in path:*: swap them; the same search also finds a commit that repairs something.
GOOD=aside|There is no path from GOOD='aside' to BAD='main' in path:*: both come from *, so try GOOD=*, or name commits of one branch.
BAD=good|GOOD and BAD are the same commit, *: name two.
GOOD=aside~1 BAD=aside|No commit from GOOD='aside~1' to BAD='aside' changes verl/ in path:*: name another range.
CASE=pppo|CASE=pppo is not a case of the suite rehearsal: use one of ppo, grpo, sft, resume, or leave it empty for the first one that differs.
SUITE=rehersal|SUITE='rehersal' (from the command line or environment) is neither a file nor a suite: did you mean rehearsal? *
OVERRIDES=a=b|OVERRIDES='a=b' (from the command line or environment) is not for this session: both ends and every commit run the case as the suite has it; leave it out.
EOF
  ((count == 11))
}
