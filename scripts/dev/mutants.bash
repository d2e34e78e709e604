# mutants: the parts of `make mutants`: its tools in a virtual environment of their own, and a copy of the checkout for each module.
# shellcheck shell=bash

readonly MUTANTS_DIR="${REPO_DIR}/build/mutants"
readonly MUTANTS_LOCK="${REPO_DIR}/requirements-mutants.lock"

# With the tool's Python: the record names its version.
mutants::python() {
  local python="${MUTANTS_DIR}/venv/bin/python"
  [[ -x $python ]] || python="${VENV_DIR}/bin/python"
  "$python" "${REPO_DIR}/scripts/dev/mutants.py" "$@"
}

# mutants::ensure_tool: build/mutants/venv has the packages of both locks.
mutants::ensure_tool() {
  local stamp
  stamp=$(cat -- "$VENV_LOCK" "$MUTANTS_LOCK" | sha256sum)
  if [[ $(cat "${MUTANTS_DIR}/venv/.stamp" 2>/dev/null) == "$stamp" ]]; then return; fi
  mkdir -p "$MUTANTS_DIR"
  log::while "making ${MUTANTS_DIR}/venv" -- python3 -m venv --clear "${MUTANTS_DIR}/venv"
  log::while "installing ${MUTANTS_LOCK##*/}" log::last_line "${MUTANTS_DIR}/pip.log" -- mutants::_install ||
    cli::die 1 "pip could not install ${MUTANTS_LOCK##*/} into ${MUTANTS_DIR}/venv: its lines are in ${MUTANTS_DIR}/pip.log."
  printf '%s\n' "$stamp" >"${MUTANTS_DIR}/venv/.stamp"
}

mutants::_install() {
  "${MUTANTS_DIR}/venv/bin/python" -m pip install --disable-pip-version-check --requirement "$VENV_LOCK" --requirement "$MUTANTS_LOCK" \
    >"${MUTANTS_DIR}/pip.log" 2>&1
}

# mutants::run NAME: the module's mutants that are left, and their record.
mutants::run() {
  local home="${MUTANTS_DIR}/$1" said
  rm -rf -- "${home}/mutants/tests" # a test that was deleted stays deleted
  mkdir -p "${home}/mutants"
  files::copy_to "${home}/mutants"
  log::while "running the mutants of $1" mutants::_so_far "${home}/log" -- mutants::_run_tool "$1" "$home" ||
    cli::die 1 "The mutants of $1 could not be run: read the end of ${home}/log."
  said=$(mutants::python record "$1" "$home") || exit 1
  log::ok "$said"
}

# Both tools write their progress, such as 12/394; mutmut writes it over one line.
mutants::_so_far() { tail -c 1000 -- "$1" 2>/dev/null | grep -oE '[0-9]+/[0-9]+' | tail -n 1 || true; }

mutants::_run_tool() { mutants::python run "$1" "$2" >"$2/log" 2>&1 </dev/null; }
