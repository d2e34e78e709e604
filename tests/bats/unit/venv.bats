#!/usr/bin/env bats
# .venv: the first script that needs it creates it, once and completely, and says so.

setup() {
  bats_require_minimum_version 1.5.0
  load ../test_helper
  sandbox::make
  stub python3 - <<'SH'
    case "$*" in
      --version) echo "Python 3.11.7" ;;
      "-m venv --clear "*) mkdir -p "$4/bin"; cp "${BOX}/bin/venv_python" "$4/bin/python" ;;
    esac
SH
  pip_does true
}

# pip_does BODY: what .venv's pip does when it installs.
pip_does() {
  stub venv_python - <<SH
    case "\$*" in
      --version) echo "Python 3.11.7" ;;
      "-m pip install "*) $1 ;;
    esac
SH
}

# with_venv COMMAND...: runs it in a script that has ensured .venv.
with_venv() {
  # shellcheck disable=SC2016  # expanded when the script runs
  printf 'source "$(dirname "$0")/lib/regress.bash"\ncli::begin\nvenv::ensure\n%s\n' "$*" >"${HERE}/scripts/needs_venv.sh"
  sandbox::run scripts/needs_venv.sh
}

@test "it is made and reported, and the second time nothing is printed" {
  with_venv
  assert_status 0
  assert_line "changed ${HERE}/.venv (Python 3.11.7, $(grep -c '==' "${HERE}/requirements-dev.lock") pinned packages)"
  : >"$CALLS"
  with_venv
  assert_status 0
  refute_text .venv
  refute_called venv_python
}

@test "an interrupted one is made again from the beginning" {
  # shellcheck disable=SC2016  # expanded when the stub runs
  pip_does 'kill -TERM "$PPID"; exit 143'
  with_venv
  ((status != 0))
  [[ -d ${HERE}/.venv && ! -e ${HERE}/.venv/.stamp ]]
  pip_does true
  : >"$CALLS"
  with_venv
  assert_status 0
  assert_called "python3 -m venv --clear ${HERE}/.venv"
  [[ -s ${HERE}/.venv/.stamp ]]
}

@test "another lock is installed into the existing .venv; another python3: a new .venv" {
  with_venv
  printf 'extra==1\n' >>"${HERE}/requirements-dev.lock"
  : >"$CALLS"
  with_venv
  assert_called "-m pip install"
  refute_called "-m venv"
  sed -i 's/3\.11\.7/3.12.1/' "${BOX}/bin/python3"
  with_venv
  assert_called "-m venv --clear"
}

@test "a link to another checkout's .venv is replaced, and what is there stays" {
  mkdir -p "${BOX}/theirs/bin"
  cp "${BOX}/bin/venv_python" "${BOX}/theirs/bin/python"
  ln -s "${BOX}/theirs" "${HERE}/.venv"
  with_venv
  assert_status 0
  [[ -d ${HERE}/.venv && ! -L ${HERE}/.venv && -s ${HERE}/.venv/.stamp ]]
  [[ -x ${BOX}/theirs/bin/python && ! -e ${BOX}/theirs/.stamp ]]
}

@test "if pip fails: its own lines and one sentence; the next run tries again" {
  pip_does 'echo "ERROR: no index answers" >&2; exit 1'
  with_venv
  assert_status 1
  assert_line "ERROR: no index answers"
  assert_line "error   pip could not install requirements-dev.lock into ${HERE}/.venv (its output is above): check the network and this machine's pip configuration."
  pip_does true
  with_venv
  assert_status 0
}

@test "two at once: one makes it, the other waits" {
  local makers=()
  mkfifo "${BOX}/begun" "${BOX}/waits" "${BOX}/go on"
  # shellcheck disable=SC2016  # expanded when the stub runs
  pip_does 'echo >"${BOX}/begun"; read -r <"${BOX}/go on"'
  stub flock - <<SH
    [[ ! -e "\${BOX}/second" ]] || echo >"\${BOX}/waits"
    exec $(command -v flock) "\$@"
SH
  # shellcheck disable=SC2016  # expanded when the script runs
  with_venv '[[ -s ${VENV_DIR}/.stamp ]]' &
  makers+=("$!")
  read -rt 30 <>"${BOX}/begun"
  touch "${BOX}/second"
  # shellcheck disable=SC2016
  (with_venv '[[ -s ${VENV_DIR}/.stamp ]] && touch "${VENV_DIR}/seen"' && assert_status 0) &
  makers+=("$!")
  read -rt 30 <>"${BOX}/waits"
  echo >"${BOX}/go on"
  wait "${makers[@]}"
  [[ -e ${HERE}/.venv/seen && $(grep -c 'pip install' "$CALLS") == 1 ]]
}
