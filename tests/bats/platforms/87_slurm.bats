#!/usr/bin/env bats
# A real Slurm (TRANSPORT=srun): the transport contract over its steps, then a job that `make slurm` submits, brings up and trains, and that
# scancel ends. One that trains to its end: 85_hosts.bats.
# shellcheck disable=SC2016  # text in single quotes is expanded on the node

setup_file() {
  load ../container/container_helper
  load slurm_nodes
  container::use slurm 18287 vrplatform
  container::quietly installed scripts/dev/bootstrap_host.sh --slurm
  slurm_nodes::make "$BATS_FILE_TMPDIR"
  container::seed "$SLURM_SHARED"
  export SHARED_ROOT=/private NODES_PATH=/opt/venv/bin WORKDIR="${BATS_FILE_TMPDIR}/workdir" HOSTS_OF=$CLUSTER_NAME
  unset DASHBOARD_PORT CLUSTER_NAME
}

teardown_file() {
  load ../container/container_helper
  load slurm_nodes
  scancel --state=RUNNING --user="$(id -un)" 2>/dev/null
  CLUSTER_NAME=$HOSTS_OF slurm_nodes::remove "$BATS_FILE_TMPDIR"
}

setup() {
  load ../container/container_helper
  load slurm_nodes
  load ../contract/transport_contract
}

teardown() { [[ -z ${SLURM_JOB_ID:-} ]] || scancel "$SLURM_JOB_ID"; }

# allocate HOSTS: SLURM_JOB_ID and TRANSPORT as in salloc's shell.
allocate() {
  salloc --quiet --no-shell --nodes="$1" --exclusive
  SLURM_JOB_ID=$(squeue --noheader --states=RUNNING --format=%i)
  export SLURM_JOB_ID TRANSPORT=srun
}

# ours: the processes of Ray and of jobs that run on the hosts, and what is in /tmp there but Slurm's own and srun's messages to us.
ours() {
  local host
  for host in gpu-0 gpu-1 gpu-2; do
    docker exec "${HOSTS_OF}-${host}" sh -c 'cat /proc/[0-9]*/comm 2>/dev/null | grep -E "^(raylet|gcs_server|ray|python)"
      find /tmp -xdev -mindepth 1 \( ! -type d -o -empty \) ! -path "/tmp/vrtest-slurm/*" ! -path "/tmp/verl-regress-[0-9]*"'
  done
}

is_nothing_left() { [[ -z $(ours) ]]; }

@test "the transport contract over steps of an allocation, and a step that is lost" {
  allocate 3
  contract::all
  run on node::exec worker-1 printf '<%s>' a : b
  [[ $output == '<a><:><b>' ]]
  run --separate-stderr on node::exec worker-0 sh -c 'echo mine >&2; exit 3'
  [[ $status == 3 && $stderr == *mine* && $stderr != *srun:* ]]
  # The shell may be killed before its child or after it.
  for _ in {1..3}; do
    run on node::exec worker-0 sh -c 'scancel "$SLURM_JOB_ID.$SLURM_STEP_ID"; tail -f /dev/null'
    assert_status 8
  done
  assert_line "error   The step on the node 'worker-0' \(gpu-1 of the Slurm job ${SLURM_JOB_ID}\) was lost while 'sh' ran there \(.+\): see 'squeue --jobs=${SLURM_JOB_ID}', then run this again\."
  export NODES_CONTAINER='env VIA=container'
  contract::stdin
  contract::exit_status
  contract::spawn
  run on node::exec worker-1 printenv VIA
  [[ $output == container ]]
}

@test "an allocation that cannot be used is refused in one sentence" {
  TRANSPORT=srun run scripts/00_prereq_check.sh
  assert_status 2
  assert_line "error   TRANSPORT=srun \(from the command line or environment\) is for a Slurm allocation, and there is none here \(SLURM_JOB_ID=''\): run 'salloc --nodes=3' first and this in its shell, or let 'make slurm' submit a batch job\."
  BATCH_PARTITION=trian run scripts/45_slurm.sh
  assert_status 1
  assert_line 'error   Slurm refused the job \(sbatch: .*[Ii]nvalid partition.*\): correct the knobs BATCH_…; the script is .*'
  allocate 1
  run scripts/00_prereq_check.sh
  assert_status 2
  assert_line "error   The Slurm job ${SLURM_JOB_ID} has 1 host \(gpu-0\), but at least 2 are needed: the head gets a host of its own, without GPUs, because two Ray nodes cannot share an address; allocate one more than you want workers, as with 'salloc --nodes=3'\."
  scancel "$SLURM_JOB_ID"
  wait::until 120 - slurm_nodes::state_of "$SLURM_JOB_ID" CANCELLED
  run scripts/00_prereq_check.sh
  assert_status 8
  assert_line "error   The Slurm job ${SLURM_JOB_ID} \(SLURM_JOB_ID\) is CANCELLED, not RUNNING: allocate hosts again with 'salloc --nodes=3'\."
  allocate 3
  WORKERS=3 run scripts/00_prereq_check.sh
  assert_status 2
  assert_line "error   WORKERS=3 \(from the command line or environment\) but the Slurm job ${SLURM_JOB_ID} has 3 hosts \(gpu-\[0-2\]\), one of them for the head: leave WORKERS out, it follows from the allocation\."
  run scripts/00_prereq_check.sh
  assert_status 0
  assert_line 'ok      5 of 5 checks passed'
}

@test "make slurm: up, prepare and a job; scancel leaves nothing of ours, nor a secret" {
  allocate 2
  make --no-print-directory snapshot CODE_ID=codeA >"${BATS_TEST_TMPDIR}/snapshot" 2>&1 || fail "$(<"${BATS_TEST_TMPDIR}/snapshot")"
  scancel "$SLURM_JOB_ID"
  unset SLURM_JOB_ID TRANSPORT
  WORKLOAD=sft CODE_ID=codeA SUBMISSION_ID=in-slurm OVERRIDES='trainer.total_training_steps=4000 trainer.total_epochs=200' \
    BATCH_PARTITION=train BATCH_TIME=00:20:00 HF_TOKEN=not-for-the-job slurm_nodes::submit
  slurm_nodes::await_line 900 'step 3 of 4000'
  scancel "$BATCH"
  wait::until 120 - slurm_nodes::state_of "$BATCH" CANCELLED
  wait::until 30 - is_nothing_left || fail "$(ours) $(tail -n 30 "${WORKDIR}/slurm/${BATCH}.log")"
  run ! grep -rlF "$(<"${WORKDIR}/secrets/slurm-${BATCH}.token")" "$SLURM_SHARED" "${WORKDIR}/slurm"
  run ! grep -rlF not-for-the-job "$SLURM_SHARED" "${WORKDIR}/slurm"
}
