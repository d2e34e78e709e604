#!/usr/bin/env bash
# 60_verify: one regression session on a cluster that is up and prepared: PPO with A and with B, GRPO, SFT, one further
# step from a checkpoint; then every line of acceptance, checked from the outside. Exit status 9 if a line is false.
#
#   CODE_A=codeA CODE_B=git:URL@main scripts/60_verify.sh
#
# CODE_A and CODE_B are code ids, or sources of verl (pypi:VERSION, git:URL@REF, path:DIR): ids made from a source carry its
# tree hash. ONLY=placement,head checks those lines and runs what they need. JSON=1 prints the report instead of the table.
# Every job gets a random secret that is in this script's memory alone; when they are over, everything is searched for it.
# The session is kept under ${SHARED_ROOT}/verify/<time>/: report.md, report.json, junit.xml and the evidence.
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
