#!/usr/bin/env bats
# A Slurm allocation, and the batch job of `make slurm`; stubs of Slurm's commands run the words on this machine.
# shellcheck disable=SC2016  # text in single quotes is expanded on the node

# bats file_tags=slow

setup() {
  load ../test_helper
  source "${REPO}/scripts/lib/wait.bash"
  sandbox::make
  stub_slurm
  stub python3 # what it is asked to check is fine
}

# in_slurm [KNOB=VALUE...] ARGV...: a function of the libraries in the allocation 3012.
in_slurm() { sandbox::verb TRANSPORT=srun SLURM_JOB_ID=3012 "$@"; }

@test "the head is on the first host, a worker on each other; the job names the cluster" {
  in_slurm node::list
  assert_status 0
  [[ $output == $'head\nworker-0\nworker-1'* ]] || fail 'other nodes'
  in_slurm ALLOCATION_HOSTS=mine allocation::where worker-1
  assert_line 'gpu-2 of the Slurm job 3012'
  in_slurm node::address head
  assert_line '10.0.0.0'
  assert_called '--nodelist=gpu-1'
  in_slurm bash -c 'echo "$CLUSTER_NAME $GCS_PORT $WORKERS"'
  assert_line 'slurm-3012 23012 2'
  in_slurm CLUSTER_NAME=mine GCS_PORT=6380 bash -c 'echo "$CLUSTER_NAME $GCS_PORT"'
  assert_line 'mine 6380'
  echo 2 >"${BOX}/hosts"
  in_slurm SLURM_JOB_ID=24007 bash -c 'echo "$CLUSTER_NAME $GCS_PORT $WORKERS"'
  assert_line 'slurm-24007 20007 1'
}

@test "an allocation that is missing, over, too small or of other WORKERS is refused" {
  for id in '' '1;id'; do
    in_slurm SLURM_JOB_ID="$id" node::list
    assert_error 2 "TRANSPORT=srun (from the command line or environment) is for a Slurm allocation, and there is none here (SLURM_JOB_ID='${id}'): run 'salloc --nodes=3' first and this in its shell, or let 'make slurm' submit a batch job."
  done
  in_slurm WORKERS=1 node::list
  assert_error 2 'WORKERS=1 (from the command line or environment) but the Slurm job 3012 has 3 hosts (gpu-[0-2]), one of them for the head: leave WORKERS out, it follows from the allocation.'
  echo 1 >"${BOX}/hosts"
  in_slurm node::list
  assert_error 2 "The Slurm job 3012 has 1 host (gpu-[0-2]), but at least 2 are needed: the head gets a host of its own, without GPUs, because two Ray nodes cannot share an address; allocate one more than you want workers, as with 'salloc --nodes=3'."
  printf 'TIMEOUT|gpu-[0-2]\n' >"${BOX}/job"
  in_slurm node::list
  assert_error 8 "The Slurm job 3012 (SLURM_JOB_ID) is TIMEOUT, not RUNNING: allocate hosts again with 'salloc --nodes=3'."
  stub squeue 'printf "%s\n" "squeue: a warning" "slurm_load_jobs error: Invalid job id specified" >&2; exit 1'
  in_slurm node::list
  assert_error 8 "Slurm does not know the job 3012 (SLURM_JOB_ID) any more, or does not answer (squeue: slurm_load_jobs error: Invalid job id specified): allocate hosts again with 'salloc --nodes=3'."
  rm "${BOX}/bin/scontrol"
  in_slurm node::list
  assert_error 1 "'scontrol' is not on PATH, and TRANSPORT=srun (from the command line or environment) needs it: run this where Slurm's commands are, or load their module."
}

@test "a task of an array is asked for by its own id; a heterogeneous job is refused" {
  stub squeue 'case $* in *--jobs=3010_2\ *) cat "${BOX}/job" ;; *) cat "${BOX}/job" "${BOX}/job" ;; esac'
  in_slurm SLURM_ARRAY_JOB_ID=3010 SLURM_ARRAY_TASK_ID=2 bash -c 'echo "$CLUSTER_NAME $GCS_PORT $WORKERS"'
  assert_line 'slurm-3012 23012 2'
  # Containers on this host: only tasks get clusters of their own.
  sandbox::verb SLURM_JOB_ID=3012 SLURM_ARRAY_TASK_ID=2 bash -c 'echo "$CLUSTER_NAME $DASHBOARD_PORT $GCS_PORT"'
  assert_line 'slurm-3012 23012 6379'
  sandbox::verb SLURM_JOB_ID=3012 SLURM_ARRAY_TASK_ID=2 CLUSTER_NAME=mine bash -c 'echo "$CLUSTER_NAME $DASHBOARD_PORT"'
  assert_line 'mine 23012'
  sandbox::verb SLURM_JOB_ID=3012 bash -c 'echo "$CLUSTER_NAME $DASHBOARD_PORT"'
  assert_line 'mvp11 8265'
  in_slurm SLURM_HET_SIZE=2 node::list
  assert_error 2 "The Slurm job 3012 is heterogeneous (SLURM_HET_SIZE='2'), and its parts are jobs of their own with unequal hosts: allocate all hosts as one part, as with 'salloc --nodes=3'."
}

@test "scontrol that fails is one sentence with exit 8, and no half answer is taken" {
  local cure="run this again when Slurm answers."
  rm "${BOX}/hosts" && stub scontrol '[[ $2 != hostnames ]] || printf "%s\n" gpu-0 gpu-1; echo "slurm_load_node error: Unable to contact slurm controller" >&2; exit 1'
  in_slurm node::list
  assert_error 8 "Slurm does not say which hosts the job 3012 (SLURM_JOB_ID) has ('scontrol show hostnames' fails; the reason is above): ${cure}"
  stub scontrol '[[ $2 != hostnames ]] && exit 1; printf "%s\n" gpu-0 gpu-1 gpu-2'
  in_slurm node::address worker-0
  assert_error 8 "Slurm does not say which hosts the job 3012 (SLURM_JOB_ID) has ('scontrol show node' fails; the reason is above): ${cure}"
  stub scontrol '[[ $2 != hostnames ]] && printf "NodeName=gpu-%s Arch=x NodeAddr=gpu-%s Version=22\n" 0 0 1 1 2 2 || printf "%s\n" gpu-0 gpu-1 gpu-2'
  in_slurm node::address worker-0
  assert_status 0
  assert_line 10.0.0.1
}

@test "srun's own failure is one sentence with exit 8, not the command's exit status" {
  in_slurm node::exec worker-0 sh -c 'exit 143'
  assert_status 143
  refute_text 'srun:'
  : >"${BOX}/lost"
  in_slurm node::exec worker-0 true
  assert_error 8 "The step on the node 'worker-0' (gpu-1 of the Slurm job 3012) was lost while 'true' ran there (Node failure on gpu-1): see 'squeue --jobs=3012', then run this again."
}

@test "a step gets none of the job's options for other steps, but Slurm's configuration" {
  stub srun 'env | grep -E "^(SLURM|SRUN)_" >"${BOX}/step"'
  in_slurm SLURM_CONF=/etc/my.conf SLURM_CPUS_PER_TASK=1 SRUN_CPUS_PER_TASK=1 eval 'allocation::step words worker-0; "${words[@]}" true'
  assert_status 0
  [[ $(<"${BOX}/step") == SLURM_CONF=/etc/my.conf ]] || fail "$(<"${BOX}/step")"
}

@test "a command gets no secret; with rocm all it needs" {
  echo 4,5 >"${BOX}/gpus"
  in_slurm NODES_PATH=/opt/ray/bin HF_TOKEN=s3cret node::exec worker-0 env
  assert_line 'RAY_TMPDIR=/tmp/verl-regress-job3012'
  assert_line 'RAY_AUTH_TOKEN_PATH=/tmp/verl-regress-job3012/ray.token'
  assert_line 'VERL_REGRESS_NODE_IP=10.0.0.1'
  assert_line 'HIP_VISIBLE_DEVICES=4,5'
  [[ $output == *'PATH=/opt/ray/bin:'* ]] || fail 'no NODES_PATH'
  assert_called '--export=PATH,HOME,USER,LOGNAME,TZ,LD_LIBRARY_PATH'
  refute_called s3cret
  in_slurm PROFILE=rocm NCCL_PROTO=LL node::exec worker-0 env
  assert_line NCCL_PROTO=Simple
  assert_line NCCL_IB_HCA=
  in_slurm PROFILE=rocm node::exec head sh -c 'echo "${NCCL_PROTO-none}"'
  assert_line 'none'
}

@test "temporary files of a job are in the directory that make down removes" {
  in_slurm node::exec worker-0 env
  refute_text $'\nTMPDIR='
  in_slurm NODES_CONTAINER='env TMPDIR=/tmp' eval "transport::ray_directory() { echo '${BATS_TEST_TMPDIR}'; }; node::exec worker-0 env"
  assert_line "TMPDIR=${BATS_TEST_TMPDIR}"
}

@test "NODES_CONTAINER: every command is a step in that container, with its environment" {
  in_slurm NODES_CONTAINER='env VIA=container' NODES_PATH=/opt/ray/bin node::exec worker-0 sh -c 'echo "$VIA $RAY_TMPDIR ${PATH%%:*}"'
  assert_line 'container /tmp/verl-regress-job3012 /opt/ray/bin'
  in_slurm NODES_CONTAINER='env VIA=container' eval 'echo in | node::exec_in head sh -c "read -r line; echo \$line \$VIA"'
  assert_line 'in container'
  in_slurm NODES_CONTAINER='--container-image=/fs/verl.sqsh --container-name=verl' node::exec head sh -c :
  assert_status 0
  assert_called '--container-image=/fs/verl.sqsh --container-name=verl /bin/sh -c'
}

@test "NODES_CONTAINER in which nothing runs: one sentence, before anything is changed" {
  local words='apptainer exec /fs/verl.sif'
  in_slurm NODES_CONTAINER="$words" nodes::need
  assert_status 1
  assert_line "env: ‘apptainer’: No such file or directory"
  assert_line "error   No command runs on the node 'head' (gpu-0 of the Slurm job 3012) in NODES_CONTAINER='${words}' (from the command line or environment; the reason is above): correct it, or leave it empty for the host's own Python."
  in_slurm NODES_CONTAINER='env VIA=1' nodes::need
  assert_status 0
  assert_line 'ok      3 nodes answer: head worker-0 worker-1 (from the Slurm job 3012)'
}

@test "make slurm, DRY_RUN=1: every option and every given knob, quoted, and no more" {
  sandbox::run DRY_RUN=1 HF_TOKEN=s3cret PROFILE=gpu WORKLOAD=grpo WORKERS=3 BATCH_PARTITION=a100,h100 BATCH_TIME=1-00:00:00 \
    BATCH_OPTIONS='--account=team --qos=high --constraint=a|b' OVERRIDES=$'a=\'x y\' b="$(id)"\nc' scripts/45_slurm.sh
  assert_status 0
  for option in job-name=verl-regress-grpo nodes=4 exclusive mem=0 gpus-per-node=4 account=team partition=a100,h100 time=1-00:00:00 \
    export=NIL signal=B:TERM@120 qos=high 'constraint=a|b' "output=\"${BOX}/work dir/slurm/%j.log\""; do
    assert_line "#SBATCH --${option}"
  done
  assert_line 'make --no-print-directory up prepare snapshot submit "${knobs[@]}" &'
  assert_line "rm -f -- \"${BOX}/root/tmp/verl-regress-${UID}/\${SLURM_JOB_ID}\".*"
  refute_text s3cret
  refute_text WORKERS
  sed -n '/^knobs=/,/^)/p' <<<"$output" >"${BOX}/knobs"
  [[ $(bash -c 'source "$1"; printf "%s" "${knobs[-1]#OVERRIDES=}"' read "${BOX}/knobs") == $'a=\'x y\' b="$(id)"\nc' ]] || fail 'not quoted'
  [[ -z $(bash -n <<<"$output" 2>&1) && ! -e ${BOX}/work\ dir ]]
  sandbox::run DRY_RUN=1 CODE_ID=codeB BATCH_OPTIONS=--cpus-per-task=16 scripts/45_slurm.sh
  assert_line '#SBATCH --cpus-per-task=16'
  assert_line 'make --no-print-directory up prepare submit "${knobs[@]}" &'
  refute_text exclusive
  refute_text gpus-per-node
  sandbox::run DRY_RUN=1 PROFILE=npu scripts/45_slurm.sh
  assert_line '#SBATCH --gres=npu:4'
  sandbox::run DRY_RUN=1 BATCH_DO=verify scripts/45_slurm.sh
  assert_line 'make --no-print-directory verify "${knobs[@]}" &'
  sandbox::run DRY_RUN=1 BATCH_DO=resume JOB=in-slurm scripts/45_slurm.sh
  assert_line 'make --no-print-directory up resume "${knobs[@]}" &'
  assert_line '  JOB=in-slurm'
}

@test "make slurm submits the script that it keeps; sbatch's refusal is one sentence" {
  stub sbatch 'env >"${BOX}/environment"; [[ ! -e ${BOX}/refuses ]] || { printf "sbatch: error: %s\n" "Batch job submission failed: Invalid account." >&2; exit 1; }; echo "7;here"'
  sandbox::run BATCH_PARTITION=train SBATCH_EXPORT=ALL SLURM_JOB_ID=5 scripts/45_slurm.sh
  assert_status 0
  assert_line 7
  file=$(compgen -G "${BOX}/work dir/slurm/ppo-*.sbatch")
  assert_line "changed submitted the Slurm job 7: its output goes to ${BOX}/work dir/slurm/7.log, its script is ${file}"
  ! grep -E '^(SBATCH_|SLURM_)' "${BOX}/environment" || fail 'options that win over the script'
  : >"${BOX}/refuses"
  sandbox::run scripts/45_slurm.sh
  assert_status 1
  [[ $output == *'error   Slurm refused the job (sbatch: Batch job submission failed: Invalid account): correct the knobs BATCH_…; the script is '* ]] || fail 'another sentence'
}

# batch: writes the script of a batch job, whose `make` is a stub: `down` is the end; all else does what "work" says.
batch() {
  stub sbatch 'cp -- "${!#}" "${BOX}/batch"; echo 7'
  stub make '[[ $* == *" down "* ]] && { kill -TERM "$PPID"; echo taken down >>"${BOX}/calls"; exit 3; }; source "${BOX}/work"'
  sandbox::run scripts/45_slurm.sh
  assert_status 0
  mkdir -p "${BOX}/root/tmp/verl-regress-${UID}"
  LOGIN="${BOX}/root/tmp/verl-regress-${UID}/3012"
  touch "${LOGIN}".{token,out} "${LOGIN}4.token"
}

# is_taken_down: the last that the script did; a signal meanwhile does not keep it from that, and it removes the files of its job alone.
is_taken_down() {
  [[ $(tail -n 1 "$CALLS") == 'taken down' ]] || fail "$(<"$CALLS")"
  assert_called "make --no-print-directory down TRANSPORT=srun PROFILE=cpu WORKDIR=${BOX}/work dir FORCE=1"
  [[ $(compgen -G "${LOGIN}*") == "${LOGIN}4.token" ]] || fail "$(compgen -G "${LOGIN}*")"
}

@test "a batch job ends as its work did, after it has taken the cluster down" {
  for status in 0 2 3 7 137; do
    batch
    echo "exit ${status}" >"${BOX}/work"
    run env -i SLURM_JOB_ID=3012 bash "${BOX}/batch"
    assert_status "$status"
    is_taken_down
  done
  batch
  echo 'kill -KILL $$' >"${BOX}/work" # as the kernel does without memory
  run env -i SLURM_JOB_ID=3012 bash "${BOX}/batch"
  assert_status 137
  is_taken_down
}

@test "a batch job that Slurm stops ends its work first, then takes the cluster down" {
  batch
  cat >"${BOX}/work" <<'SH'
    source "${BOX}/the repo/scripts/lib/wait.bash"
    ends() { wait::until 1 - false || echo ended >>"${BOX}/calls"; exit 0; }
    trap ends TERM
    : >"${BOX}/works"
    wait::until 20 - false
SH
  env -i SLURM_JOB_ID=3012 bash "${BOX}/batch" 3>&- &
  wait::until 20 - test -e "${BOX}/works"
  kill -TERM "$!"
  wait "$!" || status=$?
  assert_status 143
  [[ $(grep -B 1 ' down ' "$CALLS" | head -n 1) == ended ]] || fail "$(<"$CALLS")"
  is_taken_down
}

# checked [KNOB=VALUE...]: make slurm, with a Python that checks, and a verl that has one trainer.
checked() {
  local verl="${BOX}/my verl/verl"
  stub python3 'exec "${BOX}/the repo/.venv/bin/python" "$@"'
  stub sbatch 'echo 7'
  ln -sf "$(type -P readlink)" "${BOX}/bin"
  ln -sfn "${REPO}/.venv" "${HERE}/.venv"
  mkdir -p "${verl}/trainer/config" "${verl}/version"
  echo 0.9.1 >"${verl}/version/version"
  : >"${verl}/__init__.py"
  printf '%s\n' 'import hydra' '@hydra.main(config_path="config", config_name="ppo_trainer")' 'def main(config): pass' >"${verl}/trainer/main_ppo.py"
  echo 'trainer: {total_epochs: 1, logger: [console], save_freq: 1, project_name: x, experiment_name: x, default_local_dir: x}
data: {train_files: x, val_files: x}
algorithm: {adv_estimator: x}
actor_rollout_ref: {model: {path: x}}' >"${verl}/trainer/config/ppo_trainer.yaml"
  printf '%s\n' 'address: http://x' 'entrypoint_num_cpus: 1' 'entrypoint_resources: {worker_node: 1}' >"${BOX}/base.yaml"
  sandbox::run JOBSPEC="${BOX}/spec.yaml" RAY_BASE_CONFIG="${BOX}/base.yaml" "$@" scripts/45_slurm.sh
}

@test "make slurm refuses at once what its job would refuse after the queue" {
  cat >"${BOX}/spec.yaml" <<'SPEC'
workload: grpo
secrets: [{name: WANDB_API_KEY}]
SPEC
  checked WANDB_API_KEY=notarealkey
  assert_error 2 "The secret WANDB_API_KEY (from ${BOX}/spec.yaml) comes from the environment, which a batch job does not have: give it a 'file: PATH' in the JobSpec."
  cat >"${BOX}/spec.yaml" <<SPEC
workload: grpo
secrets: [{name: WANDB_API_KEY, file: ${BOX}/key}]
SPEC
  checked
  assert_error 2 "The file of the secret WANDB_API_KEY (from ${BOX}/spec.yaml) is not a readable file on this machine: name one that is."
  echo notarealkey >"${BOX}/key"
  checked VERL_SOURCE="path:${BOX}/my verl" OVERRIDES=trainer.totl_epochs=1
  assert_error 2 "The override 'trainer.totl_epochs=1' (from OVERRIDES) sets a key that ppo_trainer of CODE_ID=codeA (verl 0.9.1) lacks: did you mean trainer.total_epochs? To add a new key, write '+trainer.totl_epochs=1'."
  refute_called sbatch
  checked VERL_SOURCE="path:${BOX}/my verl" OVERRIDES=trainer.total_epochs=2
  assert_status 0
  assert_line 7
  refute_text 'checked in the job'
  checked SHARED_ROOT=/no/such/root CODE_ID=codeB OVERRIDES=trainer.totl_epochs=1
  assert_status 0
  assert_line "        The overrides are checked in the job, because CODE_ID=codeB (from the command line) is not in /no/such/root/common/code/verl on this machine, nor is a source of it."
}

@test "without PROFILE a batch job is for GPUs, whatever this machine has, and says so" {
  mkdir "${BOX}/dev"
  sandbox::run PROFILE=auto DEVICE_ROOT="${BOX}/dev" TO=slurm scripts/46_export.sh
  assert_status 0
  assert_line '  PROFILE=gpu'
  assert_line "        PROFILE is not set, and this machine is none of the job's hosts, so the profile is gpu; set PROFILE=cpu for a rehearsal."
}
