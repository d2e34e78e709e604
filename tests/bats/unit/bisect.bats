#!/usr/bin/env bats
# 62_bisect without training: real git walks a made history, this machine's own Python plays the head, and what the session of a commit says
# is read from its files.

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
      32) rm "${HISTORY}/verl/__init__.py" ;;
      33) printf 'broken\n' >"${HISTORY}/verl/loss.py" ;;
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

# With one date their ids are the same in each run, and so are the commits that git asks for next to one that was skipped.
commit() {
  history_git add .
  GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z \
    history_git commit --quiet --allow-empty --message "commit $1"
}

# library COMMAND...: in a shell with the libraries, whose head is this machine.
library() {
  # shellcheck disable=SC2016  # expanded by the shell that is started here
  run bash -c '
    source "$1/scripts/lib/regress.bash" && cli::begin && env::load
    ROOT=$2
    helper::run() { shift && "${REPO_DIR}/.venv/bin/python" "${REPO_DIR}/py/run.py" --shared-root "$ROOT" "$@"; }
    helper::run_in() { helper::run "$@"; }
    nodes::shown() { printf "%s\n" "$1"; }
    shift 2
    "$@"' scripts/any "${BATS_TEST_DIRNAME}/../../.." "${BATS_TEST_TMPDIR}" "$@"
}

setup() {
  export SUITE=rehearsal VERL_REPO="path:${HISTORY}" GOOD=good BAD=main STOP_AT='' JUDGED=1
  export UNWRITTEN=''
  export -f walk goes_on train session_of
}

teardown() { find "$BATS_TEST_TMPDIR" -type d -exec chmod u+w {} +; }

walk() {
  bisect::_script() { train "$@"; }
  bisect::begin
  bisect::run
}

goes_on() {
  bisect::_script() { train "$@"; }
  bisect::open
  bisect::run
}

# train 60_verify.sh SUITE=… CODE_A=… CODE_B=…: a session that is over at once, and says of B what its file says; STOP_AT interrupts the one
# of that number. Without JUDGED it says nothing of commits; with UNWRITTEN no report is written.
train() {
  local word=regressed session role
  if [[ $2 == -u ]]; then
    session="${ROOT}/verify/${4#SESSION=}"
  else
    role=$(sed -nE 's/.*"title": "bisect [^ ]+: ([^"]*)".*/\1/p' "${2#SUITE=}")
    printf '%s\n' "$role" >>"${ROOT}/runs"
    session="${ROOT}/verify/$(wc -l <"${ROOT}/runs")"
    mkdir -p "${session}/evidence"
    printf '{"suite": {"content": %s}}' "$(<"${2#SUITE=}")" >"${session}/evidence/begin.json"
    printf '%s%s' "$role" "$(<"${ROOT}/common/code/verl/${4#CODE_B=}/verl/loss.py")" >"${session}/trained"
    [[ ${session##*/} != "$STOP_AT" ]] || return 130
  fi
  [[ -z $UNWRITTEN ]] || return 9
  case $(<"${session}/trained") in
    commit-*good) word=identical ;;
    commit-*broken) word=inconclusive ;;
  esac
  [[ -n $JUDGED || $(<"${session}/trained") != commit-* ]] || word=inconclusive
  session_of "$session" "$word"
  [[ $word != regressed ]] || return 9
}

# session_of DIRECTORY WORD: its report.
session_of() {
  printf '{"cases": [{"case": "ppo", "word": "%s", "reason": "its file"}], "jobs": {"ppo_b": {"steps": 1, "reason": null}}}' "$2" >"$1/report.json"
}

found='the first bad commit is [0-9a-f]{12} \(commit 41\); fresh runs of it and of its parent confirm it'

@test "64 commits, two that cannot be judged: the right one in at most 8 tries" {
  before=$(history_git for-each-ref && history_git status --porcelain && ls "${HISTORY}/.git")
  library walk
  printf '%s\n' "$output"
  ((status == 0))
  [[ $output == *'64 commits change verl/: 2 runs for both ends (and one more to see whether GOOD repeats itself), about 6 to find the commit, and 2 to confirm it'* ]]
  [[ $output =~ $found && $output == *" is skipped: it has no verl/__init__.py"* ]]
  (($(wc -l <"${BATS_TEST_TMPDIR}/runs") <= 10)) # with both ends, and the confirmation
  [[ $(history_git for-each-ref && history_git status --porcelain && ls "${HISTORY}/.git") == "$before" ]]
}

@test "a search that goes on continues its session, and makes none twice" {
  STOP_AT=4 library walk
  printf '%s\n' "$output"
  ((status == 130))
  search=$(find "${BATS_TEST_TMPDIR}/bisect" -mindepth 1 -maxdepth 1 -printf '%f\n')
  [[ $output == *"The session of commit-"*" ended early (the reason is above): fix that, then continue with 'make bisect BISECT=${search}'."* ]]
  unset SUITE VERL_REPO GOOD BAD
  BISECT=latest library goes_on
  printf '%s\n' "$output"
  ((status == 0))
  [[ $output =~ $found ]]
  [[ -z $(sort "${BATS_TEST_TMPDIR}/runs" | uniq --repeated) ]]
  (($(wc -l <"${BATS_TEST_TMPDIR}/runs") <= 10))
}

@test "a session whose report cannot be written ends the search" {
  # shellcheck disable=SC2030  # for this test alone
  UNWRITTEN=1 library walk
  printf '%s\n' "$output"
  ((status == 1))
  [[ $output == *"The session 1 of ends ended with status 9, and its report could not be written (the reason is above): fix that, then continue with 'make bisect BISECT="* ]]
  [[ $(<"${BATS_TEST_TMPDIR}/runs") == ends ]]
}

@test "the sessions of a search find the JobSpecs beside its suite" {
  mkdir "${BATS_TEST_TMPDIR}/mine"
  # shellcheck disable=SC2030  # for this test alone
  export SUITE="${BATS_TEST_TMPDIR}/mine/suite.yaml"
  echo 'cases: {ppo: {jobspec: ppo.yaml}}' >"$SUITE"
  STOP_AT=1 library walk
  printf '%s\n' "$output"
  ((status == 130))
  [[ $(<"${BATS_TEST_TMPDIR}/verify/1/evidence/begin.json") == *"\"jobspec\": \"${BATS_TEST_TMPDIR}/mine/ppo.yaml\""* ]]
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
  export GOOD=main~25 BAD=main~21 JUDGED='' # 39 to 43
  library walk
  printf '%s\n' "$output"
  ((status == 11))
  [[ $output == *'not found: it is one of 4 commits, of which those in between could not be judged: '* ]]
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
VERL_REPO=git:https://me:pw@example.org/verl|The URL in VERL_REPO holds a user name or a password, which would be recorded with the snapshot: leave it out and *
VERL_REPO=path:/nowhere|/nowhere (from VERL_REPO=path:/nowhere) is not a git repository that git can read (the reason is above): name one.
GOOD=nope|GOOD='nope' is not a commit, branch or tag of path:*: check the name, or fetch it there.
BAD=-x|BAD='-x' is not a commit, branch or tag of path:*: check the name, or fetch it there.
GOOD=main BAD=good|GOOD='main' comes after BAD='good' in path:*: swap them; the same search also finds a commit that repairs something.
GOOD=aside|There is no path from GOOD='aside' to BAD='main' in path:*: both come from *, so try GOOD=*, or name commits of one branch.
BAD=good|No commit from GOOD='good' to BAD='good' changes verl/ in path:*: name another range.
GOOD=aside~1 BAD=aside|No commit from GOOD='aside~1' to BAD='aside' changes verl/ in path:*: name another range.
CASE=pppo|CASE=pppo is not a case of the suite rehearsal: use one of ppo, grpo, sft, resume, or leave it empty for the first one that differs.
SUITE=rehersal|SUITE='rehersal' (from the command line or environment) is neither a file nor a suite: did you mean rehearsal? *
EOF
  ((count == 11))
}
