#!/usr/bin/env bash
# specs: checks every shipped JobSpec and Ray base config, YAML and JSON, against its schema, with the line by which
# editors complete it, its JSON template, and the table of fields in docs/jobspec.md.
#
#   scripts/dev/specs.sh            look, and say how many files it looked at; none is a failure
#   scripts/dev/specs.sh --write    make the JSON templates and the tables anew, then look
source "$(dirname "$0")/../lib/regress.bash"
cli::begin_with --write "$@"
action='check'
[[ ${1:-} != --write ]] || action='write'
venv::ensure
"${VENV_DIR}/bin/python" "${REPO_DIR}/scripts/dev/specs.py" "$action"
