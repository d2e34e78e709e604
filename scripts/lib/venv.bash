# venv: .venv, this host's own pip and tools, made from requirements-dev.lock by the first script that needs it.
# shellcheck shell=bash

readonly VENV_DIR="${REPO_DIR}/.venv"
readonly VENV_LOCK="${REPO_DIR}/requirements-dev.lock"

# venv::ensure: .venv exists with the packages of requirements-dev.lock. One script creates it, others wait for it.
venv::ensure() {
  local lock
  ! venv::is_current || return 0
  exec {lock}<"$VENV_LOCK" # a lock on the file itself leaves no file behind, and is released with the process
  log::while "waiting for another script that is making ${VENV_DIR}" -- flock --wait 600 "$lock" ||
    cli::die 1 "Another script has been making ${VENV_DIR} for 600 s: wait until it ends, or end it."
  venv::is_current || venv::_make
  exec {lock}<&-
}

# venv::is_current: .venv is complete, and matches the current requirements-dev.lock and python3.
venv::is_current() {
  [[ -x ${VENV_DIR}/bin/python && $(cat "${VENV_DIR}/.stamp" 2>/dev/null) == "$(venv::_stamp)" ]]
}

venv::_stamp() { printf '%s %s\n' "$(sha256sum <"$VENV_LOCK")" "$(python3 --version 2>&1)"; }

# venv::pip LOG ARG...: .venv's pip, silent on the terminal: its output goes to LOG, its errors to stderr.
venv::pip() {
  "${VENV_DIR}/bin/python" -m pip "${@:2}" --disable-pip-version-check >"$1" 2>"$1.errors" || {
    cat -- "$1.errors" >&2
    return 1
  }
}

# venv::script FILE ARG...: runs a Python file of this checkout with .venv's Python, which finds our packages.
venv::script() {
  PYTHONPATH="${REPO_DIR}/py:${REPO_DIR}/judge:${REPO_DIR}/maintain" "${VENV_DIR}/bin/python" "${REPO_DIR}/$1" "${@:2}"
}

# Without a stamp it is incomplete: pip would treat a half-installed package as complete, so it starts again.
venv::_make() {
  local log
  python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
    cli::die 1 "${VENV_DIR} cannot be made, because this machine has no python3 (3.10 or newer) with venv and ensurepip: run 'scripts/dev/bootstrap_host.sh'."
  cli::temp_dir log
  [[ ! -L $VENV_DIR ]] || rm -f -- "$VENV_DIR" # another checkout's: python3 would remove what is in it
  [[ -e ${VENV_DIR}/.stamp && $("${VENV_DIR}/bin/python" --version 2>&1) == "$(python3 --version 2>&1)" ]] ||
    log::while "making ${VENV_DIR}" -- python3 -m venv --clear "$VENV_DIR"
  rm -f -- "${VENV_DIR}/.stamp"
  log::while "installing requirements-dev.lock into ${VENV_DIR}" log::last_line "${log}/pip" -- \
    venv::pip "${log}/pip" install --requirement "$VENV_LOCK" ||
    cli::die 1 "pip could not install requirements-dev.lock into ${VENV_DIR} (its output is above): check the network and this machine's pip configuration."
  venv::_stamp >"${VENV_DIR}/.stamp"
  (($(id -u) != 0)) || chown -R --reference="$REPO_DIR" -- "$VENV_DIR" # of who typed sudo
  log::changed "${VENV_DIR} ($("${VENV_DIR}/bin/python" --version), $(grep -c '==' "$VENV_LOCK") pinned packages)"
}
