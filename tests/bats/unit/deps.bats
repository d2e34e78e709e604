#!/usr/bin/env bats
# The packages that nodes get: the helper's on every node, the judge's on the head alone; a stub of an engine plays the nodes.

setup() {
  load ../test_helper
  sandbox::make
  printf 'numpy>=1.23.2 scipy>=1.9.2\n' >"${BOX}/judge-lacks"
  mkdir "${BOX}/wheels"
  # A node lacks what the file SET-lacks says, until pip has installed the set; pip fails if there is a file "pip-fails".
  engine_has mine '' x head worker-0
  fake_engine <<'SH'
      *'deps.py missing helper') cat "${BOX}/helper-lacks" 2>/dev/null || echo ;;
      *'deps.py missing judge') cat "${BOX}/judge-lacks" 2>/dev/null || echo ;;
      *'python3 - compile') cat "${BOX}/compile" ;;
      *deps.py*install*)
        [[ ! -e ${BOX}/pip-fails ]] || { echo 'ERROR: no index' >&2 && exit 1; }
        [[ $* != *--interactive* ]] || tar -t | sort >"${BOX}/sent"
        rm -f "${BOX}"/*-lacks
        ;;
SH
}

# deps [KNOB=VALUE...] VERB: a verb of the library, in a cluster of a head and a worker.
deps() { sandbox::verb CLUSTER_NAME=mine WORKERS=1 "$@"; }

# helper_shown: the helper's directory as messages show it.
helper_shown() { sed -n "s/^changed head: installed the [a-z]*'s packages next to //p" <<<"$output" | grep -E '/common/code/verl_regress/[0-9a-f]{12}$'; }

@test "the judge's packages are brought to the head alone, and only once" {
  deps deps::ensure_judge
  assert_status 0
  assert_line "changed head: installed the judge's packages next to $(helper_shown)"
  assert_called ' sh python3 /private/common/code/verl_regress/'
  assert_called 'deps.py install judge'
  refute_called 'exec mine-worker-0'
  : >"$CALLS"
  deps deps::ensure_judge
  assert_status 0
  assert_line "skip    head: the judge's packages (all there)"
  refute_called install
}

@test "the helper's packages are looked for on every node, and the judge's are not" {
  echo 'PyYAML>=6.0' >"${BOX}/helper-lacks"
  deps deps::ensure
  assert_status 0
  assert_line "changed head: installed the helper's packages next to $(helper_shown)"
  assert_line "skip    worker-0: the helper's packages (all there)"
  assert_called 'deps.py install helper'
  refute_called judge
}

@test "packages without bytecode are compiled once, or named if another user owns them" {
  printf '/site\t\n/usr/lib/site\ttorch, ray\n' >"${BOX}/compile"
  deps deps::ensure_bytecode
  assert_status 0
  assert_line 'changed worker-0: compiled the packages in /site, which had no bytecode'
  assert_line "warning head: there is no bytecode of torch, ray in /usr/lib/site, so each process of a job compiles them again: type 'python3 -m compileall -qq -j 0 /usr/lib/site' there as a user who can write that folder."
  : >"${BOX}/compile"
  deps deps::ensure_bytecode
  [[ $output != *bytecode* ]] || fail 'it says something'
}

# bats test_tags=slow
@test "each set takes its own wheels from WHEELHOUSE" {
  touch "${BOX}/wheels"/{numpy-2.4.6-cp311,scipy-1.17.1-cp311,scipy_extra-1-py3,pyyaml-6.0.3-cp311,typing_extensions-4.16.0-py3}.whl
  deps WHEELHOUSE="${BOX}/wheels" deps::ensure_judge
  assert_status 0
  [[ $(<"${BOX}/sent") == $'numpy-2.4.6-cp311.whl\nscipy-1.17.1-cp311.whl' ]] || fail "$(<"${BOX}/sent")"
  echo 'PyYAML>=6.0' >"${BOX}/helper-lacks"
  deps WHEELHOUSE="${BOX}/wheels" deps::ensure
  assert_status 0
  [[ $(<"${BOX}/sent") == $'pyyaml-6.0.3-cp311.whl\ntyping_extensions-4.16.0-py3.whl' ]] || fail "$(<"${BOX}/sent")"
}

# bats test_tags=slow
@test "a WHEELHOUSE without them is refused with the file that lists them" {
  touch "${BOX}/wheels/pyyaml-6.0.3-cp311.whl"
  deps WHEELHOUSE="${BOX}/wheels" deps::ensure_judge
  assert_error 2 "WHEELHOUSE=${BOX}/wheels (from the command line or environment) has none of the wheels of py/requirements-judge.txt: put them there ('pip wheel -r py/requirements-judge.txt')."
  refute_called install
}

# bats test_tags=slow
@test "what pip could not install is named" {
  touch "${BOX}/pip-fails"
  deps deps::ensure_judge
  assert_error 1 "head lacks numpy>=1.23.2 scipy>=1.9.2 and its pip could not install them (the reason is above): set WHEELHOUSE to a folder on this host with their wheels."
}
