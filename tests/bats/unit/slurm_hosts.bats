#!/usr/bin/env bats
# Our containers on the hosts of a Slurm allocation (HOSTS_FILE=slurm); stubs of Slurm's commands, ssh and docker answer as the hosts.
# shellcheck disable=SC2016  # text in single quotes is expanded by a script, or when a stub runs

# bats file_tags=slow

setup() {
  load ../test_helper
  sandbox::make
  cp -r "${REPO}"/docker-compose*.yaml "$HERE"
  stub_slurm
  stub_ssh
  stub docker 'case "$*" in *version*) echo "28.2.2 amd64" ;; *info*) echo "nvidia runc " ;; esac'
  stub hostname 'echo 10.0.0.0 10.0.0.1 10.0.0.2'
}

# on_hosts [KNOB=VALUE...] ARGV...: a function of the libraries, in a batch job on the first host of the allocation 3012.
on_hosts() { sandbox::verb HOSTS_FILE=slurm SLURM_JOB_ID=3012 SLURMD_NODENAME=gpu-0 "$@"; }

# after_need [KNOB=VALUE...]: the command in THEN, once the hosts have been asked.
after_need() { on_hosts "$@" eval "hosts::need; ${THEN}"; }

@test "the nodes are on the allocation's hosts, this one without ssh" {
  on_hosts eval 'for node in $(node::list); do hosts::describe "$node"; done; echo "$CLUSTER_NAME $GCS_PORT $WORKERS"'
  assert_status 0
  assert_line 'head (local, gpu-0 of the Slurm job 3012)'
  assert_line 'worker-0 (ssh://gpu-1, gpu-1 of the Slurm job 3012)'
  assert_line 'worker-1 (ssh://gpu-2, gpu-2 of the Slurm job 3012)'
  assert_line 'slurm-3012 23012 2'
  on_hosts SLURMD_NODENAME=login hosts::describe head
  assert_line 'head (ssh://gpu-0, gpu-0 of the Slurm job 3012)'
  stub uname 'echo gpu-2.cluster.example'
  on_hosts SLURMD_NODENAME= hosts::describe worker-1
  assert_line 'worker-1 (local, gpu-2 of the Slurm job 3012)'
  refute_called srun
}

@test "addresses are those that other hosts have for Slurm's names, and the hosts' own" {
  THEN='for node in $(node::list); do echo "$node $(hosts::address "$node")"; done'
  after_need
  assert_status 0
  assert_line 'head 10.0.0.0'
  assert_line 'worker-1 10.0.0.2'
  stub hostname 'echo 10.0.0.0 10.0.0.1 10.7.0.2'
  after_need
  assert_error 2 "address=10.0.0.2 of worker-1 (ssh://gpu-2, gpu-2 of the Slurm job 3012) is not an address of that host, which has: 10.0.0.0 10.0.0.1 10.7.0.2: correct its name in the hosts' /etc/hosts or DNS, or its NodeAddr in slurm.conf, then run this again."
  stub getent 'exit 2' # a wrong address is not kept
  after_need
  assert_error 2 "head (local, gpu-0 of the Slurm job 3012) has no address by which the other hosts reach it (found: ''): correct its name in the hosts' /etc/hosts or DNS, or its NodeAddr in slurm.conf, then run this again."
}

@test "no allocation, TRANSPORT=srun: each is refused before a host is asked" {
  on_hosts SLURM_JOB_ID= node::list
  assert_status 2
  on_hosts TRANSPORT=srun node::list
  assert_error 2 'HOSTS_FILE=slurm (from the command line or environment) lists hosts for containers, but with TRANSPORT=srun (from the command line or environment) Ray runs on the hosts themselves: set only one of the two (for containers in an allocation: TRANSPORT=container HOSTS_FILE=slurm).'
  refute_called ssh
  refute_called docker
}

@test "after the job its hosts are still known for make down, but not for make up" {
  THEN='hosts::keep'
  echo 2 >"${BOX}/hosts"
  after_need
  assert_status 0
  printf 'CANCELLED|gpu-2\n' >"${BOX}/job"
  after_need
  assert_error 8 "The Slurm job 3012 (SLURM_JOB_ID) is CANCELLED, not RUNNING: allocate hosts again with 'salloc --nodes=3'."
  on_hosts hosts::engines
  assert_status 0
  [[ $output == $'head\nworker-0'* && $output != *worker-1* ]] || fail 'other hosts'
}

@test "what another job or a file of hosts brought up under our name is left alone" {
  THEN='hosts::keep'
  after_need CLUSTER_NAME=mine
  assert_status 0
  : >"$CALLS"
  printf 'RUNNING|gpu-[5-7]\n' >"${BOX}/job"
  sandbox::run HOSTS_FILE=slurm SLURM_JOB_ID=3013 SLURMD_NODENAME=gpu-5 CLUSTER_NAME=mine FORCE=1 scripts/02_down.sh
  assert_error 2 "The cluster mine (CLUSTER_NAME, from the command line or environment) was brought up in the Slurm job 3012 on gpu-[0-2], and this is the job 3013 (SLURM_JOB_ID): leave CLUSTER_NAME out, it follows from the job; 'SLURM_JOB_ID=3012 make down' takes that cluster down."
  printf 'head local\nworker-0 ssh://me@10.0.0.2\n' >"${BOX}/work dir/clusters/mine/hosts"
  echo HOSTS_FILE=env/hosts >"${BOX}/work dir/clusters/mine/containers"
  sandbox::run HOSTS_FILE=slurm SLURM_JOB_ID=3013 SLURMD_NODENAME=gpu-5 CLUSTER_NAME=mine FORCE=1 scripts/02_down.sh
  assert_error 2 "The cluster mine was brought up with HOSTS_FILE='env/hosts', but HOSTS_FILE is now 'slurm' (from the command line or environment): give the old value, or run 'make down HOSTS_FILE=env/hosts' first."
  refute_called docker
  refute_called ssh
}

@test "a worker gets the GPUs that Slurm gave on its host, and too few are refused" {
  echo 4,6,7 >"${BOX}/gpus"
  THEN='compose::render worker-1'
  after_need PROFILE=gpu GPUS_PER_WORKER=2
  assert_status 0
  assert_line '    deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ["4", "6"], capabilities: [gpu]}]}}}'
  after_need PROFILE=rocm GPUS_PER_WORKER=3
  for name in HIP ROCR CUDA; do assert_line "      ${name}_VISIBLE_DEVICES: \"4,6,7\""; done
  after_need PROFILE=npu GPUS_PER_WORKER=2 # Slurm's variables know no NPUs
  assert_line '    devices: [/dev/davinci_manager, /dev/devmm_svm, /dev/hisi_hdc, /dev/davinci0, /dev/davinci1]'
  after_need PROFILE=gpu
  assert_error 2 "Slurm gave 3 GPUs on gpu-1 of the Slurm job 3012 (SLURM_STEP_GPUS='4,6,7'), but GPUS_PER_WORKER=4 (from env/defaults.env): allocate that many, for example with 'salloc --gpus-per-node=4', or lower GPUS_PER_WORKER."
  : >"$CALLS"
  after_need
  assert_status 0
  refute_called srun # the addresses are known already
}

@test "make slurm HOSTS_FILE=slurm: the batch job builds the image, runs containers" {
  stub python3 # what it is asked to check is fine
  sandbox::run DRY_RUN=1 HOSTS_FILE=slurm CODE_ID=codeA WORKERS=2 scripts/45_slurm.sh
  assert_status 0
  assert_line '#SBATCH --nodes=3'
  assert_line '  TRANSPORT=container'
  assert_line '  HOSTS_FILE=slurm'
  # shellcheck disable=SC2016  # expanded by the batch job
  assert_line 'make --no-print-directory build up prepare submit "${knobs[@]}" &'
  refute_text 'srun'
  echo HOSTS_FILE=slurm >"${HERE}/env/local.env"
  sandbox::run DRY_RUN=1 BATCH_DO=verify scripts/45_slurm.sh
  assert_line '  TRANSPORT=container'
  # shellcheck disable=SC2016  # expanded by the batch job
  assert_line 'make --no-print-directory build verify "${knobs[@]}" &'
  sandbox::run DRY_RUN=1 HOSTS_FILE= scripts/45_slurm.sh
  assert_line '  TRANSPORT=srun'
  # shellcheck disable=SC2016  # expanded by the batch job
  assert_line 'make --no-print-directory up prepare snapshot submit "${knobs[@]}" &'
  sandbox::run DRY_RUN=1 HOSTS_FILE=env/hosts scripts/45_slurm.sh
  assert_error 2 'HOSTS_FILE=env/hosts (from the command line or environment) names hosts, but a batch job gets its hosts from Slurm: set HOSTS_FILE=slurm to run our containers on them, or HOSTS_FILE= to run Ray directly on them.'
}
