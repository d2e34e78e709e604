#!/usr/bin/env bash
# lint: runs every linter on every file of its kind. Prints how many files each one checked; none is a failure.
#
#   scripts/dev/lint.sh   shellcheck, shfmt, ruff check, ruff format, complexipy, mypy, import-linter, workflows, action; report in
#                         build/reports/lint.tap
#
# The linters are the pinned ones of .venv, which is created if necessary; their settings are in pyproject.toml, .editorconfig and
# .shellcheckrc.
source "$(dirname "$0")/../lib/regress.bash"
# shellcheck source=scripts/dev/files.bash
source "${REPO_DIR}/scripts/dev/files.bash"
cli::begin "$@"
cd "$REPO_DIR"

LINT_REPORT=build/reports/lint.tap
LINT_NAMES=() LINT_PIDS=() LINT_FAILED=0
cli::temp_dir LINT_OUTPUT

# lint::shell_files: by their extension, or without one by their first line.
lint::shell_files() {
  local first
  files::ours '*.sh' '*.bash' '*.bats'
  files::ours | grep -E '(^|/)[^./]+$' | while read -r file; do
    IFS= read -r first <"$file" || true
    [[ -L $file || $first != '#!'*sh ]] || printf '%s\n' "$file"
  done
}

# lint::run NAME FILE... -- COMMAND...: the files follow the command, which runs beside the other linters.
lint::run() {
  local name=$1 files=()
  shift
  while [[ $1 != -- ]]; do
    files+=("$1")
    shift
  done
  shift
  LINT_NAMES+=("${name} checked ${#files[@]} files")
  ((${#files[@]})) || set -- false
  "$@" "${files[@]}" >"${LINT_OUTPUT}/${#LINT_PIDS[@]}" 2>&1 &
  LINT_PIDS+=("$!")
}

# lint::report: waits for all linters and reports them in the order in which they began.
lint::report() {
  local i result
  for i in "${!LINT_PIDS[@]}"; do
    result=ok
    wait "${LINT_PIDS[i]}" || result='not ok' LINT_FAILED=$((LINT_FAILED + 1))
    cat "${LINT_OUTPUT}/${i}" >&2
    printf '%s %d %s\n' "$result" "$((i + 1))" "${LINT_NAMES[i]}" | tee -a "$LINT_REPORT"
  done
  printf '1..%d\n' "${#LINT_PIDS[@]}" >>"$LINT_REPORT" # an incomplete report has no plan, and its status says so
}

# lint::on_all_cores COMMAND FILE...: ten files at a time. For shellcheck, which needs more time than all other linters together.
lint::on_all_cores() { printf '%s\0' "${@:2}" | xargs -0 -n 10 -P "$(nproc)" "$1"; }

# lint::imports FILE...: checks the contracts of pyproject.toml between the helper's packages; they cover all files at once.
lint::imports() {
  local said
  said=$(PYTHONPATH=py:judge lint-imports --no-cache 2>&1) && return
  printf '%s\n' "$said"
  return 1
}

mkdir -p build/reports
: >"$LINT_REPORT"
venv::ensure
PATH="${VENV_DIR}/bin:${PATH}"
mapfile -t shell_files < <(lint::shell_files)
mapfile -t python_files < <(files::ours '*.py')

lint::run shellcheck "${shell_files[@]}" -- lint::on_all_cores shellcheck
lint::run shfmt "${shell_files[@]}" -- shfmt -d
lint::run 'ruff check' "${python_files[@]}" -- ruff check --quiet
lint::run 'ruff format' "${python_files[@]}" -- ruff format --diff --quiet
mapfile -t product_files < <(printf '%s\n' "${python_files[@]}" | grep -vE '(^|/)tests/|^conftest\.py$')
lint::run complexipy "${product_files[@]}" -- complexipy --quiet --failed
mapfile -t typed_files < <(files::ours 'ci/co*.py' 'py/*.py' 'judge/verl_verdict/*.py' 'rehearsal/verl_rehearsal/*.py')
lint::run mypy "${typed_files[@]}" -- mypy --no-error-summary
lint::run import-linter "${typed_files[@]}" -- lint::imports
mapfile -t workflows < <(files::ours '.github/workflows/*.yml' 'ci/workflows/*.yml')
lint::run workflows "${workflows[@]}" -- check-jsonschema --quiet --builtin-schema vendor.github-workflows
lint::run action action.yml -- check-jsonschema --quiet --builtin-schema vendor.github-actions
lint::report
((LINT_FAILED == 0)) || cli::die 1 "${LINT_FAILED} of ${#LINT_PIDS[@]} linters failed; their lines are above."
