#!/usr/bin/env bats
# Our containers on the hosts of a real Slurm allocation (HOSTS_FILE=slurm): two hosts with an engine, an sshd and a slurmd each. Brought
# up from a login node, by `make slurm` with a real job, and by one that scancel ends in training. Nothing is left on any host.

setup_file() {
  load container_helper
  load slurm_lab
  [[ $(id -u) == 0 ]] || skip 'network namespaces need root'
  container::use slurm-hosts 18288
  container::quietly installed scripts/dev/bootstrap_host.sh --slurm
  slurm_lab::remove # of an earlier run
  slurm_lab::make
  unset DASHBOARD_PORT CLUSTER_NAME
}

teardown_file() {
  load container_helper
  load slurm_lab
  scancel --user="$(id -un)" 2>/dev/null
  slurm_lab::remove
  left=$(ip -brief link && iptables -S && ip netns)
  [[ $left != *vrt-* && ! -e $LAB ]]
}

setup() {
  load container_helper
  load slurm_lab
}

teardown() { [[ -z ${SLURM_JOB_ID:-} ]] || scancel "$SLURM_JOB_ID"; }

# allocate OPTION...: SLURM_JOB_ID as in salloc's shell, on this machine.
allocate() {
  salloc --quiet --no-shell --nodes=2 "$@"
  SLURM_JOB_ID=$(squeue --noheader --states=RUNNING --format=%i --sort=-i | sed -n 1p)
  export SLURM_JOB_ID
}

# asks COMMAND...: a function of the libraries, as a script calls it.
asks() { bash -c 'source "$0/scripts/lib/regress.bash"; cli::begin; trap - EXIT; env::load; "$@"' "$REPO" "$@"; }

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
is_shared() { ssh -F "$SSH_CONFIG" -o ControlPath="/tmp/verl-regress-${UID}/%C" -O check gpu-b; }

@test "from a login node: the nodes are the hosts of the allocation, and make down leaves nothing" {
  allocate --exclusive
  run make --no-print-directory up prepare snapshot CODE_ID=codeA
  assert_status 0
  assert_line "ok      head \(ssh://gpu-a, gpu-a of the Slurm job ${SLURM_JOB_ID}\): 10.213.77.11, container engine [0-9].*"
  assert_line "changed worker-0 \(ssh://gpu-b, gpu-b of the Slurm job ${SLURM_JOB_ID}\): carried the image [^ ]+ over"
  assert_line "changed containers brought up: slurm-${SLURM_JOB_ID}-head slurm-${SLURM_JOB_ID}-worker-0"
  assert_line 'ok      head is ALIVE at 10.213.77.11: CPU 0, GPU 0'
  assert_line 'ok      worker-0 is ALIVE at 10.213.77.12: .*'
  run make --no-print-directory down
  assert_status 0
  assert_line "changed removed 2 containers \(slurm-${SLURM_JOB_ID}-head slurm-${SLURM_JOB_ID}-worker-0\) and 0 network; .*"
  is_nothing_left || fail "$(left)"
}

@test "a worker's GPUs are those that Slurm gave on its host; an allocation with too few, and none, are refused" {
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

@test "a connection that was killed, as Slurm kills those of a job that ends, is replaced by one that is shared" {
  allocate --exclusive
  run asks hosts::need
  assert_status 0
  run is_shared
  assert_status 0
  kill -KILL "$(grep -oE '[0-9]+' <<<"$output")" # Master running (pid=…)
  run is_shared
  assert_status 255
  run asks hosts::need
  assert_status 0
  run is_shared
  assert_status 0
}

@test "make slurm: build, up, prepare, a PPO job and down in containers on two hosts" {
  WORKERS=1 WORKLOAD=ppo CODE_ID=codeA SUBMISSION_ID=slurm-boxes OVERRIDES='trainer.total_training_steps=2 trainer.nnodes=1' BATCH_TIME=00:20:00 slurm_nodes::submit
  slurm_nodes::await_end
  assert_line "ok      head \(local, gpu-a of the Slurm job ${BATCH}\): 10.213.77.11, container engine [0-9].*"
  assert_line 'ok      worker-0 is ALIVE at 10.213.77.12: .*'
  assert_line 'ok      slurm-boxes SUCCEEDED \(the trainer ended\)'
  [[ $(jq -r .node_ip "${WORKDIR}/shared/jobs/slurm-boxes/state/started") == 10.213.77.12 ]]
  is_nothing_left || fail "$(left)"
  run ! grep -rlF "$(<"${WORKDIR}/secrets/slurm-${BATCH}.token")" "${WORKDIR}/shared" "${WORKDIR}/slurm"
}

@test "scancel in training: nothing of ours is left on any host" {
  WORKERS=1 WORKLOAD=sft CODE_ID=codeA SUBMISSION_ID=slurm-cancelled OVERRIDES='trainer.total_training_steps=40 trainer.nnodes=1' slurm_nodes::submit
  slurm_nodes::await_line 240 'step 2 of 40'
  scancel "$BATCH"
  wait::until 90 - slurm_nodes::state_of "$BATCH" CANCELLED
  is_nothing_left || fail "$(left) $(tail -n 30 "${WORKDIR}/slurm/${BATCH}.log")"
}
