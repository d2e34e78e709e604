#!/usr/bin/env bats
# Whose copy of the helper is run on a node; a stub of an engine runs the commands on this machine.

# bats file_tags=slow

setup() {
  load ../test_helper
  sandbox::make
  ln -s "$(type -P test)" "${BOX}/bin/test"
  ROOT="${BATS_TEST_TMPDIR}/private"
  stub docker - <<'SH'
case "$1" in
  inspect) echo true ;;
  exec)
    shift
    while [[ $1 != mine-head ]]; do shift; done
    shift && exec "$@"
    ;;
esac
SH
  # shellcheck disable=SC2016  # expanded when the stub runs
  stub python3 '[[ ! -e ${BOX}/gets ]] || cat >"${BOX}/got"; printf %s "$VERL_REGRESS_TRUSTED_UIDS" >"${BOX}/trusted"'
  verb helper::dir
  DIR=${lines[0]}
  mkdir -p "$DIR"
  touch "${BOX}/gets"
}

# put: the copy has all its files.
put() { (cd "$HERE" && tar -h --exclude=__pycache__ --exclude='.*_cache' -c py judge/verl_verdict rehearsal/verl_rehearsal) | tar -C "$DIR" -x; }

# verb WORD...: a verb of the library; KNOB=VALUE first.
verb() { sandbox::verb CLUSTER_NAME=mine SHARED_ROOT="$ROOT" "$@"; }

# give PATH: it belongs to another user, whose number is then in `owner`. Only root can give it away; without root, we are another.
give() {
  owner=4242
  if ((EUID == 0)); then
    chown -h "$owner" "$1"
  else
    owner=$EUID
    stub id 'echo 4343'
  fi
}

@test "our own copy is run, and gets what is on stdin" {
  put
  verb helper::is_put
  assert_status 0
  verb helper::run_in head submit <<<'sk-0123456789'
  assert_status 0
  [[ $(<"${BOX}/got") == sk-0123456789 ]]
  assert_called "python3 ${DIR}/py/run.py --shared-root"
  rm -r "$DIR"
  verb helper::is_put
  assert_status 1
  refute_text 'belongs to'
}

@test "a copy that lacks a file is brought again, with all of them" {
  rm "${HERE}"/{py,judge,rehearsal} # links: only a copy is put as its files
  cp -r -t "$HERE" -- "${REPO}"/{py,judge,rehearsal}
  put
  mkdir -p "${ROOT}/jobs"
  rm "${DIR}/py/verl_regress/jobs/hints.py"
  verb helper::ensure
  assert_status 0
  assert_line "changed helper put at ${BOX}/work dir/shared${DIR#"$ROOT"}"
  diff -r -x __pycache__ -x '.*_cache' "${REPO}/py" "${DIR}/py"
  [[ $(ls "${DIR%/*}") == "${DIR##*/}" ]] || fail "left: $(ls "${DIR%/*}")"
  verb helper::ensure
  refute_text changed
}

@test "each use of a copy is known by its time, and makes none" {
  put
  touch -d '3 days ago' "$DIR" "${BOX}/before"
  verb helper::is_put
  [[ $DIR -nt ${BOX}/before ]]
  rm -r "$DIR"
  verb helper::is_put
  assert_status 1
  [[ ! -e $DIR ]]
}

@test "nobody else can change what is put there or made by the helper, with any umask" {
  umask 0
  mkdir "${BOX}/tree"
  touch "${BOX}/tree/file"
  rmdir "$DIR"
  verb node::put head "${BOX}/tree" "$DIR"
  assert_status 0
  [[ -f ${DIR}/file && -z $(find "$DIR" -perm /022) ]]
  # shellcheck disable=SC2016  # expanded when the stub runs
  stub python3 'umask >"${BOX}/umask"'
  verb helper::run head status
  [[ $(<"${BOX}/umask") == 0022 ]]
}

@test "a question runs our own copy, or one that leaves nothing behind" {
  rm "${BOX}/gets"
  put
  verb helper::ask head status --limit=5
  assert_status 0
  assert_called "python3 ${DIR}/py/run.py --shared-root ${ROOT} "
  assert_called ' status --limit=5'
  rm -r "$DIR"
  find "$ROOT" | sort >"${BOX}/before"
  verb helper::ask head status --limit=6
  assert_status 0
  assert_called 'python3 -B '
  assert_called ' status --limit=6'
  diff "${BOX}/before" <(find "$ROOT" | sort)
}

@test "without a node the shared root is read here, and trusts the containers' user" {
  rm "${BOX}/gets"
  stub docker 'exit 1'
  mkdir -p "${BOX}/work/shared/jobs"
  give "${BOX}/work"
  verb WORKDIR="${BOX}/work" TRUSTED_UIDS=4343 RUN_AS=4444:4445 helper::read jobs
  assert_status 0
  assert_called "python3 -B ${HERE}/py/run.py --shared-root ${BOX}/work/shared"
  [[ $(<"${BOX}/trusted") == "4343 4444 ${owner}" ]]
}

@test "a copy that another user owns is refused, unless TRUSTED_UIDS allows it" {
  mkdir "${DIR%/*}/packages-cpython-311"
  mkdir "${BATS_TEST_TMPDIR}/elsewhere"
  for planted in "$DIR" "${DIR%/*}" "${DIR%/*}/packages-cpython-311" "${DIR%/*}/packages-judge"; do
    [[ $planted != *judge ]] || ln -s "${BATS_TEST_TMPDIR}/elsewhere" "$planted"
    give "$planted"
    for line in helper::is_put 'helper::run_in head submit'; do
      # shellcheck disable=SC2086  # words
      verb $line <<<'sk-0123456789'
      [[ $status != 0 ]] || fail 'it was run'
      grep -qxE "error   ${DIR%/*}[^ ]* belongs to user ${owner}, and what is there would run as you: set TRUSTED_UIDS=${owner} if you trust that user, or use another SHARED_ROOT\\." <<<"$output" || fail "$output"
    done
    [[ ! -e ${BOX}/got ]] || fail 'it got what was on stdin'
    verb TRUSTED_UIDS="1 ${owner}" helper::run head jobs
    assert_status 0
    [[ $(<"${BOX}/trusted") == "1 ${owner}" ]] || fail 'it does not know whom we trust'
    rm "${BOX}/got"
    ((EUID != 0)) || chown -h 0 "$planted"
  done
}

@test "TRUSTED_UIDS=group trusts what has the group SHARED_GROUP, and needs one" {
  ((EUID == 0)) || skip 'only root can give a file to another group'
  mkdir -p "${BOX}/work"
  printf 0123456789abcdef >"${BOX}/work/id"
  verb SHARED_GROUP=42000 helper::dir
  mkdir -p "${lines[0]}"
  chown 4242:42000 "${lines[0]}"
  chmod 2775 "${lines[0]}"
  verb SHARED_GROUP=42000 helper::run head jobs </dev/null
  assert_status 77
  verb SHARED_GROUP=42000 TRUSTED_UIDS='1 group' helper::run head jobs </dev/null
  assert_status 0
  [[ $(<"${BOX}/trusted") == '1 :42000' ]] || fail 'it does not know whom we trust'
  verb TRUSTED_UIDS=group helper::dir
  assert_error 2 "TRUSTED_UIDS=group (from the command line or environment) means the members of SHARED_GROUP, which is empty: set it too, or name the users by number."
}

@test "a copy that others can change is refused with the command that cures it" {
  local home=${DIR%/*} mode
  mkdir "${home}/packages-cpython-311"
  for planted in "$DIR" "$home" "${home}/packages-cpython-311"; do
    for mode in 777 2775; do
      chmod "$mode" "$planted"
      group=$(stat -c %g "$planted")
      if [[ $mode == 2775 ]]; then
        ((EUID == 0)) || continue
        chgrp 42000 "$planted"
        chmod "$mode" "$planted"
        group=42000
      fi
      verb helper::run_in head submit <<<'sk-0123456789'
      [[ $status != 0 && ! -e ${BOX}/got ]] || fail "it was run with ${planted} of mode ${mode}"
      assert_line "error   ${planted} can be changed by others (group ${group}, mode 0${mode}), and what is there would run as you: type \"chmod -R go-w ${home}\", or use another SHARED_ROOT."
    done
    chgrp "$(id -g)" "$planted"
    chmod 1777 "$planted"
    verb helper::run head jobs </dev/null
    assert_status 0
    rm "${BOX}/got"
    chmod 0755 "$planted"
    chmod -s "$planted"
  done
}

@test "with SHARED_GROUP each checkout has its own copy, and the helper gets the group" {
  mkdir -p "${BOX}/work dir"
  printf 0123456789abcdef >"${BOX}/work dir/id"
  verb SHARED_GROUP=42000 helper::dir
  [[ ${lines[0]} == "${ROOT}/common/code/verl_regress/0123456789abcdef/${DIR##*/}" ]] || fail 'another place'
  mkdir -p "${lines[0]}"
  give "${ROOT}/common/code/verl_regress" # whoever came first
  if ((EUID == 0)); then
    verb SHARED_GROUP=42000 helper::run head layout
    assert_status 0
    assert_called '--shared-group=42000 layout'
  fi
}
