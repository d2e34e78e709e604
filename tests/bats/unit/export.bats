#!/usr/bin/env bats
# 46_export: bad input, and what the head gets for the knobs that decide what a cluster is made of.

setup() {
  load ../test_helper
  sandbox::make
  cp "${REPO}"/docker-compose*.yaml "$HERE"
  # An engine whose head has the helper, and records the words that it gets, one per line.
  stub docker - <<'SH'
    case "$*" in
      inspect*) echo true ;;
      *' id -u') echo 1000 ;;
      *' id -g') echo 1001 ;;
      exec*run.py*' export '*)
        printf '%s\n' "$@" >"${BOX}/words"
        cat >"${BOX}/stream"
        echo 'the file'
        ;;
    esac
SH
}

is_sent() { [[ $(grep -cxF -- "$1" "${BOX}/words") == 1 ]] || fail "not sent once: $1; sent: $(<"${BOX}/words")"; }

# refused SENTENCE [KNOB=VALUE...]: one sentence with exit status 2, and the head got nothing.
refused() {
  local sentence=$1
  shift
  sandbox::run "$@" scripts/46_export.sh
  assert_error 2 "${sentence}"
  refute_text 'the file'
  [[ ! -e ${BOX}/words ]] || fail 'the head was asked'
}

@test "TO is missing" {
  refused "'make export' needs the format to print in TO: set TO=slurm, TO=kuberay, TO=dstack or TO=compose on the command line."
}

@test "a JobSpec that is not there" {
  refused "the JobSpec 'none.yaml' is not a readable file: name one that is." TO=compose JOBSPEC=none.yaml
}

@test "nodes that exist already have no image of ours" {
  printf '%s\n' 'head a@b' 'worker-0 a@c' >"${HERE}/env/nodes"
  stub_ssh
  stub python3
  refused "With TRANSPORT=ssh (from the command line or environment) the nodes have no image of ours: name the one to run elsewhere in NODE_IMAGE." \
    TO=kuberay TRANSPORT=ssh
}

@test "the head gets the plan's words, the cluster's, and the command that was typed" {
  sandbox::run TO=kuberay WORKLOAD=grpo OVERRIDES='a=1 b=2' NODE_IMAGE=node:1 CLUSTER_NAME=my_own scripts/46_export.sh
  assert_status 0
  assert_line 'the file'
  for word in --to=kuberay --spec-name=jobspecs/grpo.yaml --image=node:1 --user=1000:1001 --volume=my-own-shared \
    --worker=0,1,2,3 --worker=4,5,6,7 '--worker-resources={"worker_node": 100, "cpu": 4}'; do
    is_sent "$word"
  done
  for knob in TO:kuberay WORKLOAD:grpo 'OVERRIDES:a=1 b=2'; do
    grep -qF -- "\"${knob%%:*}\":[\"${knob#*:}\",\"the command line or environment\"]" "${BOX}/words" || fail "$knob"
  done
  [[ $(tar -tf "${BOX}/stream" | paste -sd' ') == 'job_spec ray_config' ]]
  ! grep -q -- '--worker-env' "${BOX}/words" || fail 'the profile cpu passes no environment'
}

@test "the shared root there: by format, or as EXPORT_VOLUME says" {
  sandbox::run TO=dstack scripts/46_export.sh
  is_sent --volume=/private
  sandbox::run TO=compose scripts/46_export.sh
  is_sent "--volume=${BOX}/work dir/shared"
  sandbox::run TO=compose EXPORT_VOLUME=/srv/shared scripts/46_export.sh
  is_sent --volume=/srv/shared
}

@test "the profile rocm: what Ray must not see, and its environment" {
  sandbox::run PROFILE=rocm TO=compose scripts/46_export.sh
  assert_status 0
  for word in '--unset=ROCR_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES' --worker-env=NCCL_IB_HCA= \
    --worker-env=HSA_NO_SCRATCH_RECLAIM=1; do
    is_sent "$word"
  done
  [[ $(grep -c -- '^--worker-env=' "${BOX}/words") == 12 ]]
}

@test "the profile npu: the driver, and how many NPUs Ray is to count" {
  sandbox::run PROFILE=npu TO=compose WORKER_GPUS=2 scripts/46_export.sh
  assert_status 0
  is_sent '--driver=/usr/local/Ascend/driver /usr/local/dcmi /usr/local/bin/npu-smi /etc/ascend_install.info'
  is_sent '--worker-resources={"worker_node": 100, "NPU": 2}'
  is_sent --worker-env=HCCL_CONNECT_TIMEOUT=1500
}

@test "secrets are not read: their values are not here to be printed" {
  printf 'workload: ppo\nsecrets: [{name: WANDB_API_KEY}]\n' >"${HERE}/mine.yaml"
  sandbox::run TO=kuberay JOBSPEC=mine.yaml scripts/46_export.sh
  assert_status 0
  is_sent --spec-name=mine.yaml
}

@test "TO=slurm prints what make slurm would submit, and asks no cluster" {
  stub python3 # what make slurm asks it to check is fine
  touch "${HERE}/my.yaml"
  # shellcheck disable=SC2153  # of the sandbox
  sandbox::run DRY_RUN=1 WORKLOAD=grpo WORKERS=3 JOBSPEC=my.yaml scripts/45_slurm.sh
  assert_status 0
  grep -v '^==' <<<"$output" >"${BOX}/wanted"
  sandbox::run TO=slurm WORKLOAD=grpo WORKERS=3 scripts/46_export.sh my.yaml
  assert_status 0
  grep -v '^==' <<<"$output" >"${BOX}/printed"
  diff "${BOX}/wanted" "${BOX}/printed" || fail 'they differ'
  [[ $(grep -c '^#SBATCH' "${BOX}/printed") -gt 5 ]]
  refute_called docker
}
