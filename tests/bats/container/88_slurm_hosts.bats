#!/usr/bin/env bats
# Our containers on the hosts of a real Slurm allocation (HOSTS_FILE=slurm): two hosts with an engine, an sshd and a slurmd each. `make
# slurm` runs a real job there, and leaves nothing on any host.

setup_file() {
  load container_helper
  load slurm_lab
  [[ $(id -u) == 0 ]] || skip 'network namespaces need root'
  container::use slurm-hosts 18288
  container::quietly installed scripts/dev/bootstrap_host.sh --slurm
  slurm_lab::remove # of an earlier run
  # The hosts reach no package index, so the batch job makes neither the snapshot nor the image.
  [[ -d ${WORKDIR}/shared/common/code/verl/codeA ]] || {
    container::cluster
    container::quietly down make --no-print-directory down
  }
  local image
  image=$(scripts/10_build_image.sh --name)
  slurm_lab::make
  docker save "$image" | hosts_lab::docker a load --quiet
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

@test "a worker's GPUs are those that Slurm gave on its host; too few are refused" {
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
  WORKERS=1 WORKLOAD=sft CODE_ID=codeA SUBMISSION_ID=slurm-boxes OVERRIDES='trainer.total_training_steps=2 trainer.nnodes=1' BATCH_TIME=00:20:00 slurm_nodes::submit
  slurm_nodes::await_end
  assert_line "ok      head \(local, gpu-a of the Slurm job ${BATCH}\): 10.213.77.11, container engine [0-9].*"
  assert_line 'ok      worker-0 is ALIVE at 10.213.77.12: .*'
  assert_line 'ok      slurm-boxes SUCCEEDED \(the trainer ended\)'
  [[ $(jq -r .node_ip "${WORKDIR}/shared/jobs/slurm-boxes/state/started") == 10.213.77.12 ]]
  is_nothing_left || fail "$(left)"
  run ! grep -rlF "$(<"${WORKDIR}/secrets/slurm-${BATCH}.token")" "${WORKDIR}/shared" "${WORKDIR}/slurm"
}
