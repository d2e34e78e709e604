#!/usr/bin/env bats
# Several hosts: two network namespaces, each with an engine and an sshd of its own, and a slurmd. First those of a file (HOSTS_FILE): the
# node image is carried over, a cluster starts on the hosts' own network, the driver of a real job runs on the second host, and one loses
# its power. Then those of a real Slurm's allocation (HOSTS_FILE=slurm). Nothing is left on any.

setup_file() {
  load ../container/container_helper
  load slurm_lab
  [[ $(id -u) == 0 ]] || skip 'network namespaces need root'
  container::use hosts 18286 vrplatform
  container::quietly installed scripts/dev/bootstrap_host.sh --slurm
  slurm_lab::remove # of an earlier run
  slurm_lab::make
}

teardown_file() {
  load ../container/container_helper
  load slurm_lab
  scancel --user="$(id -un)" 2>/dev/null
  make --no-print-directory down FORCE=1 >/dev/null 2>&1
  slurm_lab::remove
  left=$(ip -brief link && iptables -S && ip netns)
  [[ $left != *vrt-* && ! -e $LAB ]]
}

setup() {
  load ../container/container_helper
  load slurm_lab
  load ../contract/transport_contract
}

teardown() { [[ -z ${SLURM_JOB_ID:-} ]] || scancel "$SLURM_JOB_ID"; }

# left: what is on the hosts that their own services did not bring: containers, networks, files of ours, processes.
left() {
  local host
  for host in a b; do
    hosts_lab::docker "$host" ps --all --format '{{.Names}}'
    hosts_lab::docker "$host" network ls --quiet --filter label=verl-regress.cluster
    find "${LAB}/${host}/home" -path '*/.verl-regress*'
    hosts_lab::programs "$host" | grep -vxE 'dockerd|containerd|sshd|slurmd'
  done
}
is_nothing_left() { [[ -z $(left) ]]; }

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
  assert_line "ok      dashboard: http://127.0.0.1:18286 after 'ssh -N -F ${SSH_CONFIG} -L 18286:127.0.0.1:8265 root@10.213.77.11', token in .*"
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

@test "a host without power is named by up and down; after its boot down leaves nothing" {
  hosts_lab::halt b
  run make --no-print-directory up
  assert_status 2 # make's own
  assert_line "error   The host of worker-0 \(ssh://root@10.213.77.12, line 2 of .*\) cannot be reached \(connect to host 10.213.77.12 port 22: .*\): 'ssh root@10.213.77.12 true' must work without a prompt; fix that first\."
  assert_line 'error   00_prereq_check: exit 8 \(cluster unreachable\) after .*'
  run scripts/02_down.sh
  assert_status 8
  assert_line "error   Containers and Ray's token may still be on worker-0 \(.*\): run 'make down' again when they answer\."
  hosts_lab::boot "$LAB" b
  slurm_lab::boot b
  run make --no-print-directory down
  assert_status 0
  assert_line "changed removed 1 containers \(${CLUSTER_NAME}-worker-0\) .*"
  wait::until 30 - is_nothing_left || fail "$(left)"
  run make --no-print-directory down
  assert_status 0
  assert_line "skip    nothing has the label verl-regress.cluster=${CLUSTER_NAME}"
}

# in_slurm: from here on the hosts are those of an allocation.
in_slurm() {
  unset DASHBOARD_PORT CLUSTER_NAME
  export HOSTS_FILE=slurm
}

# allocate OPTION...: SLURM_JOB_ID as in salloc's shell, on this machine.
allocate() {
  salloc --quiet --no-shell --nodes=2 "$@"
  SLURM_JOB_ID=$(squeue --noheader --states=RUNNING --format=%i --sort=-i | sed -n 1p)
  export SLURM_JOB_ID
}

# asks COMMAND...: a function of the libraries, as a script calls it.
asks() { bash -c 'source "$0/scripts/lib/regress.bash"; cli::begin; trap - EXIT; env::load; "$@"' "$REPO" "$@"; }

@test "a worker's GPUs are those that Slurm gave on its host; too few are refused" {
  in_slurm
  wait::until 60 - slurm_nodes::are_idle 2
  run asks hosts::need
  assert_status 2
  assert_line "error   HOSTS_FILE=slurm \(from the command line or environment\) is for a Slurm allocation, and there is none here \(SLURM_JOB_ID=''\): run 'salloc --nodes=3' first and this in its shell, or let 'make slurm' submit a batch job\."
  allocate --gpus-per-node=1
  first=$SLURM_JOB_ID
  allocate --gpus-per-node=2
  PROFILE=gpu GPUS_PER_WORKER=2 run asks eval 'hosts::need && hosts::gpus worker-0'
  scancel "$first"
  assert_status 0
  assert_line 1,2
  PROFILE=gpu run asks hosts::need
  assert_status 2
  assert_line "error   Slurm gave 2 GPUs on gpu-b of the Slurm job ${SLURM_JOB_ID} \(SLURM_STEP_GPUS='1,2'\), but GPUS_PER_WORKER=4 \(from env/defaults.env\): allocate that many, for example with 'salloc --gpus-per-node=4', or lower GPUS_PER_WORKER\."
}

@test "make slurm: build, up, prepare, a job and down in containers on two hosts" {
  in_slurm
  WORKERS=1 WORKLOAD=sft CODE_ID=codeA SUBMISSION_ID=slurm-boxes OVERRIDES='trainer.total_training_steps=2 trainer.nnodes=1' BATCH_TIME=00:20:00 slurm_nodes::submit
  slurm_nodes::await_end
  assert_line "ok      head \(local, gpu-a of the Slurm job ${BATCH}\): 10.213.77.11, container engine [0-9].*"
  assert_line 'ok      worker-0 is ALIVE at 10.213.77.12: .*'
  assert_line 'ok      slurm-boxes SUCCEEDED \(the trainer ended\)'
  [[ $(jq -r .node_ip "${WORKDIR}/shared/jobs/slurm-boxes/state/started") == 10.213.77.12 ]]
  wait::until 30 - is_nothing_left || fail "$(left)"
  run ! grep -rlF "$(<"${WORKDIR}/secrets/slurm-${BATCH}.token")" "${WORKDIR}/shared" "${WORKDIR}/slurm"
}
