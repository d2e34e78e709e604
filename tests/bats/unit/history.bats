#!/usr/bin/env bats
# make history: on the head if it is ours and runs, with the judge's packages; else on this host, which changes nothing but the page.

# bats file_tags=slow

setup() {
  load ../test_helper
  sandbox::make
  ln -sf "$(command -v od)" "${BOX}/bin/od"
  WORK="${BOX}/work dir"
  mkdir -p "${WORK}/shared"/{jobs,verify}
  printf '00000000000000aa' >"${WORK}/id"
  stub docker - <<'SH'
    case "$*" in
      'inspect --format {{.Name}}|'*) cat "${BOX}/containers" 2>/dev/null || true ;;
      inspect*) [[ ! -e ${BOX}/containers ]] || echo true ;;
      *'deps.py missing judge') cat "${BOX}/lacks" 2>/dev/null || echo ;;
      *'deps.py install judge') rm -f "${BOX}/lacks" ;;
      exec*' history') echo 'page        /private/verify/history.html' ;;
    esac
SH
  # This host's python3 has numpy, as .venv has it.
  printf '#!/bin/bash\nexec %q "$@"\n' "${REPO}/.venv/bin/python" >"${BOX}/bin/python3"
  chmod +x "${BOX}/bin/python3"
}

# head_of ID WORKDIR: the head runs, and has that owner.
head_of() { printf '/mine-head|true|since|10.0.0.1 |mine|%s|me|%s\n' "$1" "$2" >"${BOX}/containers"; }
ours() { head_of 00000000000000aa "$WORK"; }

history() { sandbox::run CLUSTER_NAME=mine WORKERS=1 WORKDIR="$WORK" scripts/63_history.sh; }

@test "on our head, which gets the judge's packages first" {
  ours
  echo 'scipy>=1.9.2' >"${BOX}/lacks"
  history
  assert_status 0
  assert_line 'page        /private/verify/history.html'
  [[ $(grep -oE 'deps.py install judge|run.py .* history$' "$CALLS" | sed 's/ --.*//') == $'deps.py install judge\nrun.py' ]] || fail "$(<"$CALLS")"
  refute_called 'exec mine-worker-0'
}

@test "without a cluster: on this host, which says what there is not" {
  history
  assert_error 2 "There is no session in ${WORK}/shared/verify: 'make verify' makes one."
  mkdir "${WORK}/shared/verify/20261122T100000Z"
  history
  assert_status 2
  assert_line '        left out: 20261122T100000Z: it has no evidence/begin.json: it is not a session, or was cut off'
  assert_line "error   No session in ${WORK}/shared/verify has a run that can be shown: run 'make verify' first."
  [[ $(ls "${WORK}/shared/verify") == 20261122T100000Z ]] || fail 'it left a file'
  refute_called 'docker exec'
}

@test "another checkout's cluster is not asked, and gets no packages" {
  head_of 00000000000000bb /home/a/verl-regress/workdir
  history
  assert_error 2 "There is no session in ${WORK}/shared/verify: 'make verify' makes one."
  refute_called 'docker exec'
}

@test "a host whose Python lacks packages says what brings them" {
  mkdir "${WORK}/shared/verify/20261122T100000Z"
  # shellcheck disable=SC2016  # expanded when it runs
  printf '#!/bin/bash\n[[ $1 != -B ]] || set -- -S "$@"\nexec %q "$@"\n' "$(real_python)" >"${BOX}/bin/python3"
  history
  assert_error 1 "This node's Python has no package 'yaml': bring it with 'scripts/12_install_py_deps.sh'."
}
