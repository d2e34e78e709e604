#!/usr/bin/env bats
# `make verify` on this side: what the head is sent, what every node must do in between, and what becomes of a connection that is lost.

# bats file_tags=slow

setup() {
  load ../test_helper
  source "${REPO}/scripts/lib/wait.bash"
  sandbox::make
  ln -sf "$(real_python)" "${BOX}/bin/python3"
  mkdir -p "${BOX}/work dir"
  printf 00000000000000aa >"${BOX}/work dir/id"
  printf "/vr-%s|true|since|10.0.0.1 |vr|00000000000000aa|$(id -un)|${BOX}/work dir\n" head worker-{0..1} >"${BOX}/containers"
  # An engine whose nodes run and have the helper, and whose head answers each `verify run` with the next line of `answers`.
  stub docker - <<'SH'
    case "$*" in
      'inspect --format {{.Name}}|'*) cat "${BOX}/containers" ;;
      'inspect --format {{.State.Running}} {{.State.StartedAt}}'*) [[ -s ${BOX}/containers ]] && echo true since ;;
      'inspect --format {{and '*) [[ -s ${BOX}/containers ]] && echo true ;;
      *' leftovers '*) echo 0 ;;
      *' verify suite '*) printf '%s\0' "${BOX}/the repo/mine/my.yaml" ;;
      *' verify open '*) printf '20261122T100000Z\0jobspecs/sft.yaml\0' ;;
      *' verify run '*)
        echo >>"${BOX}/runs"
        number=$(wc -l <"${BOX}/runs")
        IFS='|' read -ra said < <(sed -n "${number}p" "${BOX}/answers")
        ((${#said[@]} < 2)) || printf '%s\n' "${said[@]:1}"
        [[ ${said[0]} != waits ]] || { cat >/dev/null && : >"${BOX}/ended" && exit; }
        [[ ${said[0]} != gone ]] || { : >"${BOX}/containers" && exit 137; }
        exit "${said[0]}"
        ;;
    esac
SH
}

verify() { sandbox::run CLUSTER_NAME=vr SESSION=latest "$@" scripts/60_verify.sh; }

# answers STATUS|LINE|…: what the head says to the next `verify run`, and its exit status.
answers() { printf '%s\n' "$@" >>"${BOX}/answers"; }

# asked PATTERN: the words of each call of the helper that has it.
asked() { grep -o "run.py .* verify $1 .*" "$CALLS" | grep -o " verify $1 .*"; }

@test "the helper runs the session, and every node does what it asks for" {
  answers '0|session now|stop sft-b-now /private/jobs/of all/sft-b-now' '9|session now|the table|end 1|end 9'
  verify BUDGET=3 ALLOW=changed
  assert_status 9
  assert_line 'ok      nothing is left of sft-b-now: 3 nodes checked, 0 processes found and ended'
  printf ' leftovers /private/jobs/of all/sft-b-now --node %s\n' head worker-{0..1} | diff - <(grep -o ' leftovers .*' "$CALLS" | sort -u) || fail "$(<"$CALLS")"
  [[ $(asked run | wc -l) == 2 ]]
  [[ $(asked run | sed -n 1p) == *'"BUDGET":["3",'*'"ALLOW":["changed",'*'--session=20261122T100000Z'* && $(asked run | sed -n 1p) != *--again* && $(asked run) != *--far* ]] || fail "$(asked run)"
  [[ $(asked run | sed -n 2p) == *'--session=now --again' ]] || fail "$(asked run)"
  # All containers once, the head's image, and each node when it is asked what is left there.
  [[ $(grep -c '^docker inspect ' "$CALLS") == 5 ]] || fail "$(grep '^docker inspect ' "$CALLS")"
  assert_line 'the table'
  assert_line 'end 1' # of the table
  [[ $output != *'end 9'* && $output != *'can be continued'* ]] || fail 'it says too much'
}

@test "a JobSpec beside its suite is found before there is a cluster, and then" {
  mkdir -p "${BOX}/work dir/shared/common/code/verl/"code{A,B} "${HERE}/mine"
  echo 'cases: {sft: {jobspec: my.yaml}}' >"${HERE}/mine/suite.yaml"
  new() { sandbox::run CLUSTER_NAME=vr CODE_A=codeA CODE_B=codeB SUITE=mine/suite.yaml scripts/60_verify.sh "$@"; }
  new --check
  assert_error 2 "The suite's JobSpec '${HERE}/mine/my.yaml' is not a readable file: name one that is."
  echo 'workload: sft' >"${HERE}/mine/my.yaml"
  new --check
  assert_status 0
  assert_line 'ok      suite mine/suite.yaml: it and its JobSpecs (1) can be read'
  answers '0|session now|end 0'
  new
  assert_status 0
  ! asked suite | grep -v " --suite-file=${HERE}/mine/suite.yaml" || fail 'the head does not know where the suite is'
  [[ $(asked run) == *" --spec-name=${HERE}/mine/my.yaml "*" --suite-file=${HERE}/mine/suite.yaml"* ]] || fail "$(asked run)"
}

@test "the helper gets a byte each second while this side is there" {
  sandbox::lines <<'LINES'
    helper::run_in() { local fed beats; IFS= read -r fed; IFS= read -r -n 2 beats; printf '%s %s\n' "$fed" "$beats"; }
    feed() { echo fed; }
    attached::begin
    attached::run feed wait
    cat -- "$ATTACHED_SAID"
LINES
  assert_line 'fed ..'
}

@test "a connection that is lost: the session goes on by itself" {
  answers '137|session now|a line of a table that was cut' '0|session now|end 0'
  verify
  assert_status 0
  assert_line '        lost the connection to the head; continuing the session when the head is back'
  [[ $(asked run | sed -n 2p) == *'--session=now --again' ]] || fail "$(asked run)"
  [[ $output != *'was cut'* ]] || fail 'what was cut off was printed'
}

@test "a head that stays away ends this side, which says how the session goes on" {
  answers 'gone|session now'
  verify UNREACHABLE_TIMEOUT=1
  assert_status 8
  assert_line "error   The head has not been there for 1 s (UNREACHABLE_TIMEOUT): its job may run on; bring the cluster up with 'make up', then 'make verify SESSION=now'."
  assert_line "        the session can be continued: 'make verify SESSION=now'"
}

@test "a helper that fails without a word is not called again" {
  answers 1
  verify
  assert_status 1
  [[ $(asked run | wc -l) == 1 ]]
}

@test "a shell that was killed -9 takes the helper with it" {
  answers 'waits|session now'
  env --chdir="$HERE" -i HOME="${BOX}/home dir" PATH="${BOX}/bin" TMPDIR="${BOX}/tmp" HOST_ROOT="${BOX}/root" PROFILE=cpu NO_COLOR=1 \
    WORKDIR="${BOX}/work dir" CLUSTER_NAME=vr SESSION=latest "${BOX}/bin/bash" scripts/60_verify.sh >"${BOX}/said" 2>&1 3>&- &
  shell=$!
  wait::until 60 - test -s "${BOX}/runs" || fail "$(<"${BOX}/said")"
  ! wait::until 1 - test -e "${BOX}/ended" || fail 'it ended too early'
  kill -9 "$shell"
  wait::until 5 - test -e "${BOX}/ended" || fail 'it runs on'
}

@test "CODE_A, CODE_B and SUITE are looked for before a cluster is brought up" {
  run make -n -C "$REPO" --no-print-directory verify
  [[ ${lines[0]} == 'scripts/60_verify.sh --check' ]]
  run make -n -C "$REPO" --no-print-directory bisect
  [[ ${lines[0]} == 'scripts/62_bisect.sh --check' ]]
  mkdir -p "${BOX}/work dir/shared/common/code/verl/codeA"
  cp -r "${REPO}/suites" "$HERE"
  : >"${BOX}/containers"
  head -c 300000 /dev/zero >"${BOX}/big.yaml"
  while IFS='|' read -r knob sentence; do
    sandbox::run CODE_A=codeA CODE_B=pypi:0.9.1 "$knob" scripts/60_verify.sh --check
    assert_error 2 "${sentence}"
  done <<END
CODE_B=path:/no/verl|/no/verl (from CODE_B=path:/no/verl) has no verl/__init__.py that can be read: name the folder that contains the folder 'verl'.
CODE_A=codeX|CODE_A=codeX (from the command line or environment) is no snapshot in ${BOX}/work dir/shared/common/code/verl: make it with 'make snapshot CODE_ID=codeX', or name a source (pypi:VERSION, git:URL@REF, path:DIR).
SUITE=${BOX}/big.yaml|SUITE '${BOX}/big.yaml' has 300000 bytes, and at most 262144 are read: is it the right file?
SUITE=rehersal|SUITE='rehersal' (from the command line or environment) is neither a file nor a suite: did you mean rehearsal? name a file, or one of $(cd "${REPO}/suites" && printf '%s ' *.yaml | sed 's/\.yaml//g; s/ $//').
END
  sandbox::run CODE_A=codeA CODE_B=pypi:0.9.1 scripts/60_verify.sh --check
  assert_status 0
  sandbox::run SESSION=latest CODE_A=codeX scripts/60_verify.sh --check # has its own
  assert_status 0
  refute_called 'docker exec'
}
