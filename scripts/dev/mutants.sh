#!/usr/bin/env bash
# mutants: do the tests notice a wrong change? mutmut, and for Bash scripts/dev/mutants_bash.py, change one thing at a time in each module
# that decides something, and run its unit tests (scripts/dev/mutants.py lists both). Writes tests/recorded/mutants.json and
# docs/mutants.md.
#
#   scripts/dev/mutants.sh                        every module: hours
#   MUTANTS=status,owner scripts/dev/mutants.sh   these
#   scripts/dev/mutants.sh --write                only the page again, after a change of tests/mutants/equal.yaml
#
# It works on copies in build/mutants/ (of a Bash library also in TMPDIR, one for each core), at the lowest priority. It resumes where it
# stopped: mutants of unchanged functions that a test noticed do not run again. Delete build/mutants/NAME to run all of them.
#
# Knobs: MUTANTS
source "$(dirname "$0")/../lib/regress.bash"
cli::begin_with '--write' "$@"
env::check
source "${REPO_DIR}/scripts/dev/files.bash"
source "${REPO_DIR}/scripts/dev/memory.bash"
source "${REPO_DIR}/scripts/dev/mutants.bash"

venv::ensure
if [[ ${1-} == --write ]]; then
  mutants::python write
  exit 0
fi
IFS=', ' read -r -a words <<<"${MUTANTS-}"
names=()
answer::lines names mutants::python names "${words[@]}"
mutants::ensure_tool
in_memory=''
memory::temp_dir in_memory
export TMPDIR=$in_memory
for name in "${names[@]}"; do
  log::step "mutants of ${name} (what the tool says is in ${MUTANTS_DIR}/${name}/log)"
  mutants::run "$name"
  mutants::python write
done
