#!/usr/bin/env bash
# 62_bisect: which commit changed training? Trains GOOD and BAD, finds what tells them apart, then walks between them with git bisect,
# one run a commit where runs repeat themselves. Fresh runs of the commit and of its parent confirm the answer. Exit status: 0 if they
# do, 2 if BAD trains as GOOD does, 11 if no commit is found for sure.
#
#   VERL_REPO=path:~/verl GOOD=b9873ee9 BAD=HEAD scripts/62_bisect.sh
#   BISECT=latest scripts/62_bisect.sh       continues a search that was interrupted
#   scripts/62_bisect.sh --check             only looks whether VERL_REPO, GOOD, BAD and SUITE are there; needs no cluster
#
# Commits that change nothing in verl/ are left out. SUITE and CASE choose what is trained; without CASE it is the first case that differs.
# Each commit is B of a regression session, whose A is GOOD. One that cannot be judged (it does not run at all, or a node was lost) is
# skipped, with the reason. The answer is stored in ${SHARED_ROOT}/bisect/<time>/: report.md, report.json.
#
# Knobs: VERL_REPO GOOD BAD SUITE CASE BISECT DETERMINISTIC ALLOW_MISMATCH ALLOW_PLAIN_SECRETS
source "$(dirname "$0")/lib/regress.bash"
cli::begin_with '--check' "$@"
env::load
if [[ ${1:-} == --check ]]; then
  [[ -n $BISECT ]] || bisect::check_early
  exit
fi
helper::ensure
deps::ensure_judge
if [[ -n $BISECT ]]; then
  bisect::open
else
  bisect::begin
fi
bisect::run
