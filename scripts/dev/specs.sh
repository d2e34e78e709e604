#!/usr/bin/env bash
# specs: checks every shipped JobSpec and Ray base config against its schema; also the first line that editors use for completion, and
# the table of fields in docs/jobspec.md.
#
#   scripts/dev/specs.sh            check, and print how many files were checked; none is a failure
#   scripts/dev/specs.sh --write    write the tables, then check
source "$(dirname "$0")/../lib/regress.bash"
cli::begin_with --write "$@"
action='check'
[[ ${1:-} != --write ]] || action='write'
venv::ensure
venv::script scripts/dev/specs.py "$action"
