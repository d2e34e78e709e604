#!/usr/bin/env bats
# What every transport must do: hand words over as they are, status, stdin and output back. Here with a stand-in engine
# that runs the words on this machine; tests/bats/container/50_transport.bats runs the same lines on real containers.

setup() {
  load transport_contract
  export TRANSPORT=container CLUSTER_NAME=stand-in WORKERS=1 SHARED_ROOT=$BATS_TEST_TMPDIR
  mkdir "${BATS_TEST_TMPDIR}/bin"
  cat >"${BATS_TEST_TMPDIR}/bin/docker" <<'STANDIN'
#!/bin/bash
case $1 in
  inspect) echo true ;;
  exec)
    shift
    if [[ $1 == --interactive ]]; then shift; else exec </dev/null; fi
    shift # the container's name
    exec "$@"
    ;;
esac
STANDIN
  chmod +x "${BATS_TEST_TMPDIR}/bin/docker"
  PATH="${BATS_TEST_TMPDIR}/bin:${PATH}"
}

@test "container: hostile words arrive as they are" { contract::hostile_words; }
@test "container: the exit status is the command's" { contract::exit_status; }
@test "container: stdin is handed through, and only where asked" { contract::stdin; }
@test "container: big output arrives whole" { contract::big_output; }
@test "container: put brings a directory whole, once, and get brings it back" { contract::put_and_get; }
@test "container: spawn outlives the caller and leaves log and exit status" { contract::spawn; }
