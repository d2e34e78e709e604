#!/usr/bin/env bats
# Several hosts (HOSTS_FILE): two network namespaces, each with an engine and an sshd of its own. The node image is carried over, a
# cluster starts on the hosts' own network, the driver of a real job runs on the second host, hosts are cut off and rebooted, and
# nothing is left on any.

setup_file() {
  load container_helper
  load hosts_lab
  [[ $(id -u) == 0 ]] || skip 'network namespaces need root'
  container::use hosts 18285
  hosts_lab::remove # of an earlier run
  hosts_lab::make
}

teardown_file() {
  load container_helper
  load hosts_lab
  make --no-print-directory down FORCE=1 >/dev/null 2>&1
  hosts_lab::remove
  left=$(ip -brief link && iptables -S && ip netns)
  [[ $left != *vrt-* && ! -e $LAB ]]
}

setup() {
  load container_helper
  load hosts_lab
  load ../contract/transport_contract
}

@test "make up on two hosts: the image is carried over once, both are ALIVE" {
  run make --no-print-directory up prepare snapshot CODE_ID=codeA
  assert_status 0
  assert_line "ok      head \(ssh://root@10.213.77.11, line 1 of ${HOSTS_FILE}\): 10.213.77.11, container engine [0-9].*"
  assert_line "ok      ${WORKDIR}/shared is one directory on every host"
  assert_line "changed worker-0 \(.*\): carried the image [^ ]+ over"
  assert_line "changed worker-0 \(.*\): put Ray's token at /root/.verl-regress/${CLUSTER_NAME}.token \(mode 600\)"
  assert_line "changed containers brought up: ${CLUSTER_NAME}-head ${CLUSTER_NAME}-worker-0"
  assert_line 'ok      head is ALIVE at 10.213.77.11: CPU 0, GPU 0'
  assert_line 'ok      worker-0 is ALIVE at 10.213.77.12: CPU 64, GPU 4, worker_node 100'
  assert_line "ok      dashboard: http://127.0.0.1:18285 after 'ssh -N -F ${SSH_CONFIG} -L 18285:127.0.0.1:8265 root@10.213.77.11', token in .*"
  for host in a b; do
    [[ $(stat -c '%a' "${LAB}/${host}/home/.verl-regress/${CLUSTER_NAME}.token") == 600 ]]
    [[ $(hosts_lab::docker "$host" ps --quiet | wc -l) == 1 ]]
    [[ $(hosts_lab::docker "$host" network ls --quiet --filter "label=verl-regress.cluster=${CLUSTER_NAME}" | wc -l) == 0 ]]
  done
  [[ -z $(docker ps --all --quiet --filter "label=verl-regress.cluster=${CLUSTER_NAME}") ]]
  run ! grep -rF "$(<"${WORKDIR}/secrets/${CLUSTER_NAME}.token")" "${WORKDIR}/shared/ray/${CLUSTER_NAME}"
  run hosts_lab::in b bash -c 'exec 3<>/dev/tcp/10.213.77.11/8265'
  assert_status 1
}

@test "the transport contract" {
  contract::all
}

@test "a job trains, and its driver runs on the second host" {
  run make --no-print-directory submit WORKLOAD=sft WAIT=1 SUBMISSION_ID=hosts-sft OVERRIDES='trainer.total_training_steps=2 trainer.nnodes=1'
  assert_status 0
  assert_line ' *driver_info.node_ip_address: 10.213.77.12'
  assert_line 'ok      hosts-sft SUCCEEDED \(the trainer ended\)'
  run make --no-print-directory status
  assert_line 'hosts-sft +codeA +SUCCEEDED +worker-0 \(10.213.77.12\)'
  [[ $(jq -r .submitted_from_ip "${WORKDIR}/shared/jobs/hosts-sft/state/submitted") == 10.213.77.11 ]]
}

@test "a worker behind a firewall is one sentence, and make up goes on once it is open" {
  hosts_lab::docker b restart --time 0 "${CLUSTER_NAME}-worker-0" >/dev/null
  hosts_lab::shut
  SECONDS=0
  run scripts/21_start_workers.sh
  ((SECONDS < 100)) || fail "after ${SECONDS} s"
  hosts_lab::reopen
  assert_status 8
  assert_line "error   worker-0 cannot reach Ray's head at 10.213.77.11:6379: a firewall drops what it sends; open all TCP ports between the hosts of the nodes \(a container engine that sets iptables' policy for FORWARD to DROP is a usual cause\)\."
  run make --no-print-directory up
  assert_status 0
  assert_line 'ok      worker-0 is ALIVE at 10.213.77.12: .*'
}

@test "the driver's host loses its power: LOST, and after its boot make up repairs it" {
  SUBMISSION_ID=hosts-lost OVERRIDES='trainer.nnodes=1 trainer.total_epochs=999 trainer.total_training_steps=9999' scripts/42_submit_sft_minimal.sh
  wait::until 120 - test -s "${WORKDIR}/shared/jobs/hosts-lost/logs/metrics.jsonl"
  hosts_lab::halt b
  run make --no-print-directory up
  assert_status 2 # make's own
  assert_line "error   The host of worker-0 \(ssh://root@10.213.77.12, line 2 of .*\) cannot be reached \(connect to host 10.213.77.12 port 22: .*\): 'ssh root@10.213.77.12 true' must work without a prompt; fix that first\."
  assert_line 'error   00_prereq_check: exit 8 \(cluster unreachable\) after .*'
  JOB=hosts-lost run timeout 180 scripts/52_wait.sh
  assert_status 7
  assert_line "error   hosts-lost LOST \\(the driver's node worker-0 died: Ray says health check failed due to missing too many heartbeats\\): read .*"
  run scripts/02_down.sh
  assert_status 8
  assert_line "error   Containers and Ray's token may still be on worker-0 \(.*\): run 'make down' again when they answer\."
  hosts_lab::boot "$LAB" b
  run make --no-print-directory up
  assert_status 0
  assert_line "changed containers brought up: ${CLUSTER_NAME}-worker-0 ${CLUSTER_NAME}-head"
  assert_line 'ok      worker-0 is ALIVE at 10.213.77.12: .*'
}

@test "make down leaves nothing of the cluster on any host" {
  run make --no-print-directory down
  assert_status 0
  assert_line "changed removed 2 containers \(${CLUSTER_NAME}-head ${CLUSTER_NAME}-worker-0\) and 0 network; .*"
  for host in a b; do
    [[ -z $(hosts_lab::docker "$host" ps --all --quiet) ]]
    [[ ! -e ${LAB}/${host}/home/.verl-regress ]]
    run grep -vxE 'dockerd|containerd|sshd' <(hosts_lab::programs "$host")
    assert_status 1
  done
  run make --no-print-directory down
  assert_status 0
  assert_line "skip    nothing has the label verl-regress.cluster=${CLUSTER_NAME}"
}
