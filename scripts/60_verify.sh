#!/usr/bin/env bash
# 60_verify: one regression session on a cluster that is up and prepared: does B still train as A does? Trains every case of the suite
# with A and with B, compares the runs, and checks from the outside that each ran as it should. Exit status: 0 if B trains as A does
# (identical, same, improved), 9 if B regressed or a check failed, 10 changed, 11 inconclusive, 12 incomparable.
#
#   CODE_A=codeA CODE_B=git:URL@main scripts/60_verify.sh
#   SESSION=latest scripts/60_verify.sh      continues a session that was interrupted
#   scripts/60_verify.sh --check             only checks CODE_A, CODE_B, SUITE and SESSION, as far as that needs no cluster
#
# CODE_A and CODE_B are code ids, or sources of verl (pypi:VERSION, git:URL@REF, path:DIR): ids made from a source contain its tree
# hash. SUITE is a name of suites/ or a file. Runs of A that an earlier session made under equal conditions are not made again.
# REPLAY=1 lets all runs of a case and seed train on the rollouts of A's first one. BUDGET is the most runs.
# ALLOW=changed,inconclusive makes those verdicts exit with 0. ONLY=placement,imports makes those checks, only the runs that they need,
# and no verdict. JSON=1 prints the report instead of the table. The session is stored in ${SHARED_ROOT}/verify/<time>/: report.md,
# report.html, report.json, junit.xml and the evidence.
#
# Knobs: CODE_A CODE_B SUITE REPLAY BUDGET ALLOW SESSION ONLY JSON DETERMINISTIC ALLOW_MISMATCH ALLOW_PLAIN_SECRETS
source "$(dirname "$0")/lib/regress.bash"
cli::begin_with '--check' "$@"
env::load
if [[ ${1:-} == --check ]]; then
  verify::check_early
  exit
fi
helper::ensure
deps::ensure_judge
if [[ -n $SESSION ]]; then
  verify::open
else
  verify::begin
fi
verify::run
