#!/usr/bin/env bats
# `make verify` on this side: only one shell drives a session. The head is this machine here: its engine runs the helper as it is.

# bats file_tags=slow

setup() {
  load ../test_helper
  source "${REPO}/scripts/lib/wait.bash"
  sandbox::make
  SHARED="${BATS_TEST_TMPDIR}/shared"
  SESSION="${SHARED}/verify/20261122T100000Z"
  mkdir -p "${SESSION}/evidence" "${SHARED}/common/code/verl_regress"
  mkfifo "${BOX}/never"
  printf '/vr-head|true|since|10.0.0.1 |vr|||\n' >"${BOX}/containers"
  stub docker - <<SH
    case "\$*" in
      'inspect --format {{.Name}}|'*) cat "\${BOX}/containers" ;;
      'inspect --format {{.Id}} vr-head') echo id1 ;;
      'inspect --format {{.State.Running}}'*) [[ -s \${BOX}/containers ]] && echo true ;;
      'exec --interactive vr-head sh -c '*' python3 '*) # behind the guard of helper::run_in
        echo "\$\$" >"\${BOX}/holder"
        shift 9
        exec "${REPO}/.venv/bin/python" -B "\$@"
        ;;
    esac
SH
  {
    printf 'BOX=%q\nVERIFY_SESSION=%q\n' "$BOX" "$SESSION"
    cat <<'SH'
source "$(dirname "$0")/lib/regress.bash"
cli::begin
env::load
helper::fix_version
[[ -e $(helper::dir) ]] || ln -s "$REPO_DIR" "$(helper::dir)"
verify::hold
echo 'it is ours'
SH
  } >"${HERE}/scripts/drive.sh"
}

drive() { sandbox::run CLUSTER_NAME=vr SHARED_ROOT="$SHARED" scripts/drive.sh; }

# drive_on: the same in another shell, which keeps the session. Sets OTHER, its process.
drive_on() {
  sed '$a read -r <"${BOX}/never"' "${HERE}/scripts/drive.sh" >"${HERE}/scripts/drive_on.sh"
  env --chdir="$HERE" -i HOME="${BOX}/home dir" PATH="${BOX}/bin" TMPDIR="${BOX}/tmp" HOST_ROOT="${BOX}/root" PROFILE=cpu NO_COLOR=1 \
    WORKDIR="${BOX}/work dir" CLUSTER_NAME=vr SHARED_ROOT="$SHARED" "${BOX}/bin/bash" scripts/drive_on.sh >"${BOX}/said" 2>&1 3>&- &
  OTHER=$!
  wait::until 60 - grep -qx 'it is ours' "${BOX}/said" || fail "$(<"${BOX}/said")"
}

@test "a session that another shell drives is refused with who that is, until it ends" {
  drive_on
  drive
  assert_status 2
  [[ $output =~ "error   The session 20261122T100000Z is driven by drive_on of user $(id -un) (pid ${OTHER} on ${HOSTNAME}, since "[^')']+"): wait until that process ends, or stop it, then run this again." ]] ||
    fail 'not that sentence'
  kill -0 "$OTHER" || fail 'the other shell was disturbed'
  echo >"${BOX}/never"
  wait "$OTHER"
  drive
  assert_status 0
  assert_line 'it is ours'
}

@test "a shell that was killed -9 leaves no lock" {
  drive_on
  kill -9 "$OTHER"
  wait "$OTHER" || true
  drive
  assert_status 0
  assert_line 'it is ours'
}

@test "CODE_A, CODE_B and SUITE are looked for before a cluster is brought up" {
  run make -n -C "$REPO" --no-print-directory verify
  [[ ${lines[0]} == 'scripts/60_verify.sh --check' ]]
  run make -n -C "$REPO" --no-print-directory bisect
  [[ ${lines[0]} == 'scripts/62_bisect.sh --check' ]]
  mkdir -p "${BOX}/work dir/shared/common/code/verl/codeA"
  cp -r "${REPO}/suites" "$HERE"
  : >"${BOX}/containers"
  while IFS='|' read -r knob sentence; do
    sandbox::run CODE_A=codeA CODE_B=pypi:0.9.1 "$knob" scripts/60_verify.sh --check
    assert_error 2 "${sentence}"
  done <<END
CODE_B=path:/no/verl|/no/verl (from CODE_B=path:/no/verl) has no verl/__init__.py that can be read: name the folder that contains the folder 'verl'.
CODE_A=codeX|CODE_A=codeX (from the command line or environment) is no snapshot in ${BOX}/work dir/shared/common/code/verl: make it with 'make snapshot CODE_ID=codeX', or name a source (pypi:VERSION, git:URL@REF, path:DIR).
SUITE=rehersal|SUITE='rehersal' (from the command line or environment) is neither a file nor a suite: did you mean rehearsal? Name a file, or one of $(cd "${REPO}/suites" && printf '%s ' *.yaml | sed 's/\.yaml//g; s/ $//').
END
  sandbox::run CODE_A=codeA CODE_B=pypi:0.9.1 scripts/60_verify.sh --check
  assert_status 0
  sandbox::run SESSION=latest CODE_A=codeX scripts/60_verify.sh --check # has its own
  assert_status 0
  refute_called 'docker exec'
}

@test "a head that is gone is said in one sentence, and how the session goes on" {
  : >"${BOX}/containers"
  printf '%s\n' 'verify::run_jobs' >>"${HERE}/scripts/drive.sh"
  drive
  assert_error 8 "The node 'head' is not running (container vr-head, from CLUSTER_NAME=vr): bring the cluster up with 'make up'."
  assert_line "        the session can be continued: 'make verify SESSION=20261122T100000Z'"
}

@test "a dry run that fails because the head went away is no config that B refuses" {
  sed -i '/^verify::hold/,$d' "${HERE}/scripts/drive.sh"
  cat >>"${HERE}/scripts/drive.sh" <<'SH'
declare -A VERIFY_CODE=([A]=codeA [B]=codeB)
verify::_submit() { [[ $2 == A ]] || cli::die "$STATUS" 'This is why.'; }
helper::run_in() { sed 's/^/recorded: /'; }
for STATUS in 8 1 2; do
  if verify::_is_refused_by_b ppo_b jobspecs/ppo.yaml 100 ''; then echo "${STATUS}: refused"; else echo "${STATUS}: no answer"; fi
done
SH
  drive
  assert_status 0
  [[ $(grep -v '^ \|^==' <<<"$output") == $'8: no answer\n1: no answer\nrecorded: This is why.\n2: refused' ]] || fail 'something else was said'
}
