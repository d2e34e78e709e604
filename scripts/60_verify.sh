#!/usr/bin/env bash
# 60_verify: one regression session on a cluster that is up and prepared: PPO with A and with B, GRPO, SFT, one further step from a
# checkpoint; then every acceptance check, from the outside. Exit status 9 if a check fails.
#
#   CODE_A=codeA CODE_B=git:URL@main scripts/60_verify.sh
#
# CODE_A and CODE_B are code ids, or sources of verl (pypi:VERSION, git:URL@REF, path:DIR): ids made from a source contain its tree
# hash. ONLY=placement,head runs those checks and the jobs that they need. JSON=1 prints the report instead of the table. Each job
# also gets a canary secret, which only this script's memory has; afterwards all outputs are scanned for leaks. The session is
# stored in ${SHARED_ROOT}/verify/<time>/: report.md, report.json, junit.xml and the evidence.
#
# Knobs: CODE_A CODE_B ONLY JSON DETERMINISTIC
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
helper::ensure
a=$(snapshot::resolve "$CODE_A")
b=$(snapshot::resolve "$CODE_B")
session=$(verify::begin "$a" "$b")
log::step "regression session $(nodes::shown "$session") (profile ${PROFILE}): A is ${a}, B is ${b}"
verify::prepare_again "$session"
secret::plant "$VERIFY_CANARY"
verify::run_jobs "$session" "$a" "$b"
verify::search "$session"
verify::judge "$session"
