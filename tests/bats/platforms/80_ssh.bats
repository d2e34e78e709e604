#!/usr/bin/env bats
# Nodes that a platform made (TRANSPORT=ssh), over a real sshd: the transport contract, then a cluster that starts, trains and is
# removed, on hosts where other people's processes run too.
# shellcheck disable=SC2016  # text in single quotes is expanded on the node

setup_file() {
  load ../container/container_helper
  load ssh_nodes
  container::use ssh 18285 vrplatform
  export TRANSPORT=ssh SHARED_ROOT=/private SHARED="${BATS_FILE_TMPDIR}/shared"
  ssh_nodes::make "$BATS_FILE_TMPDIR"
}

teardown_file() {
  load ../container/container_helper
  load ssh_nodes
  make --no-print-directory down FORCE=1 >/dev/null 2>&1
  ssh_nodes::remove "$BATS_FILE_TMPDIR"
}

setup() {
  load ../container/container_helper
  load ../contract/transport_contract
}

# in_node NODE ARGV...: from outside, not through ssh.
in_node() { docker exec "${CLUSTER_NAME}-$1" "${@:2}"; }
programs() { in_node "$1" sh -c 'cat /proc/[0-9]*/comm 2>/dev/null' | sort; }

@test "the transport contract, whether the login shell is bash or dash" {
  contract::hostile_words
  NODE=worker-1 contract::hostile_words
  contract::exit_status
  contract::stdin
  contract::big_output
  contract::put_and_get
  contract::spawn
}

@test "a lost connection is one sentence with exit 8, not the command's exit status" {
  run on node::exec worker-1 sh -c 'kill -9 "$(cut -d" " -f4 "/proc/$PPID/stat")"; tail -f /dev/null'
  assert_status 8
  assert_line "error   The connection to the node 'worker-1' \(trainer@[0-9.]+, from ${NODES_FILE}\) was lost while 'sh' ran there \(.+\): check the node, then run this again\."
}

@test "a node that does not answer, or has an unknown host key, is named as ssh says" {
  sed '/^worker-0/s/ path/:1 path/' "$NODES_FILE" >"${BATS_TEST_TMPDIR}/nodes"
  NODES_FILE="${BATS_TEST_TMPDIR}/nodes" run on node::exec worker-0 true
  assert_status 8
  assert_line "error   The node 'worker-0' \(trainer@[0-9.]+:1, from .*/nodes\) cannot be reached \(connect to host [0-9.]+ port 1: Connection refused\): 'ssh -p 1 trainer@[0-9.]+ true' must work without a prompt; fix that first\."
  on login::disconnect worker-0
  printf 'UserKnownHostsFile /dev/null\nGlobalKnownHostsFile /dev/null\n' | cat - "$SSH_CONFIG" >"${BATS_TEST_TMPDIR}/config"
  SSH_CONFIG="${BATS_TEST_TMPDIR}/config" run on node::exec worker-0 true
  assert_status 8
  assert_line "error   The node 'worker-0' \(trainer@[0-9.]+, from .*\) cannot be reached \(Host key verification failed\): .*"
}

@test "a port in use is refused" {
  docker exec --detach "${CLUSTER_NAME}-head" sh -c 'echo "$$" >/tmp/server; exec python3 -m http.server --bind 127.0.0.1 8265'
  on wait::until 60 - docker exec "${CLUSTER_NAME}-head" bash -c 'exec 3<>/dev/tcp/127.0.0.1/8265' 2>/dev/null
  run scripts/11_doctor.sh --gate
  assert_status 9
  [[ $output == *VR-NET-08*head*'listens on port 8265'* ]] || fail 'the port is not named'
  in_node head sh -c 'kill "$(cat /tmp/server)"'
}

@test "make up: all ALIVE, the token for its user alone, the dashboard off the network" {
  run make --no-print-directory up prepare snapshot CODE_ID=codeA
  assert_status 0
  assert_line 'ok      5 of 5 checks passed'
  assert_line "ok      the nodes reach each other .*"
  for node in head worker-0 worker-1; do
    assert_line "ok      ${node} is ALIVE at $(container::ip "$node"): .*"
    [[ $(in_node "$node" stat -c '%a %U' "/home/trainer/.verl-regress/${CLUSTER_NAME}.token") == '600 trainer' ]]
  done
  run ! grep -rF "$(<"${WORKDIR}/secrets/${CLUSTER_NAME}.token")" "$SHARED"
  run in_node worker-0 bash -c "exec 3<>/dev/tcp/$(container::ip head)/8265"
  assert_status 1
}

@test "make dashboard and make tunnel work as typed" {
  run make --no-print-directory dashboard
  assert_status 0
  assert_line "address  http://127\.0\.0\.1:18285 after 'ssh -N -F .* -L 18285:127\.0\.0\.1:8265 trainer@$(container::ip head)'.*"
  assert_line 'ok      it answers, and takes the token'
  run make --no-print-directory tunnel
  assert_status 0
  line=$(grep '^ssh ' <<<"$output")
  bash -c "exec ${line}" >/dev/null 2>&1 3>&- &
  typed=$!
  on wait::until 60 - curl --silent --noproxy '*' --output /dev/null http://127.0.0.1:18285/
  kill "$typed"
}

@test "a job trains, and make debug sees every node" {
  run make --no-print-directory submit WAIT=1 WORKLOAD=sft SUBMISSION_ID=over-ssh OVERRIDES=trainer.total_training_steps=2
  assert_status 0
  assert_line 'ok      over-ssh SUCCEEDED \(the trainer ended\)'
  assert_line ' *2 of 2 training steps, .*'
  run make --no-print-directory status
  assert_line 'over-ssh +codeA +SUCCEEDED +worker-[01] \([0-9.]+\)'
  run make --no-print-directory debug JOB=over-ssh
  assert_status 0
  bundle=$(find "${SHARED}/jobs/over-ssh/debug" -mindepth 1 -maxdepth 1 -name '*-asked')
  [[ $(jq -c .errors "${bundle}/bundle.json") == '{}' ]] || fail "$(<"${bundle}/bundle.json")"
}

@test "placement: submitted from the head, driven on a worker" {
  driver=$(JSON=1 scripts/50_status.sh 2>/dev/null | jq -r '.jobs[0].driver_ip')
  [[ -n $driver && $driver == @("$(container::ip worker-0)"|"$(container::ip worker-1)") ]]
  [[ $(jq -r .node_ip "${SHARED}/jobs/over-ssh/state/started") == "$driver" ]]
  [[ $(jq -r .submitted_from_ip "${SHARED}/jobs/over-ssh/state/submitted") == "$(container::ip head)" ]]
}

@test "make down ends our Ray and removes the token, and no other process" {
  in_node worker-0 cp /bin/sleep /tmp/raylet
  docker exec --detach --user trainer "${CLUSTER_NAME}-worker-0" /tmp/raylet 600
  docker exec --detach --env VERL_REGRESS_RAY="$CLUSTER_NAME" "${CLUSTER_NAME}-worker-0" sleep 600 # root's
  run make --no-print-directory down
  assert_status 0
  assert_line 'changed worker-0: stopped Ray \([1-9][0-9]* processes\)'
  [[ $(programs worker-0 | grep -cx sleep) == 1 ]] || fail "on worker-0: $(programs worker-0)"
  for node in head worker-0 worker-1; do
    [[ $(programs "$node" | grep -E '^(raylet|gcs_server|ray|python)') == "$([[ $node != worker-0 ]] || echo raylet)" ]] || fail "on ${node}: $(programs "$node")"
    run ! in_node "$node" test -e /home/trainer/.verl-regress
  done
  run make --no-print-directory down
  assert_status 0
  assert_line "skip    no Ray of ${CLUSTER_NAME} runs on head worker-0 worker-1"
}
