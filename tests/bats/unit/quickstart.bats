#!/usr/bin/env bats
# What `make quickstart` chooses on a host with NVIDIA GPUs, and adds to env/local.env. nvidia-smi and the helper are stubs.

setup() {
  load ../test_helper
  sandbox::make
  stub docker
  stub nvidia-smi - <<'STUB'
    case $1 in
      --query-gpu=index,uuid,mig.mode.current) for i in {0..7}; do echo "$i, GPU-$i, $(cat "${BOX}/mig" 2>/dev/null || echo Disabled)"; done ;;
      --query-compute-apps=*) cat "${BOX}/used" ;;
      *) for i in {0..7}; do echo "GPU $i: NVIDIA H200 (UUID: GPU-$i)"; done ;;
    esac
STUB
  use 2 7
  # shellcheck disable=SC2016  # expanded when the script runs
  printf '%s\n' 'source "$(dirname "$0")/lib/regress.bash"' cli::begin env::load \
    'helper::run() { printf "error   %s is away.\n" "$(cat "${HOST_ROOT}/away" 2>/dev/null)" >&2; [[ ! -e ${HOST_ROOT}/away ]]; }' quickstart::choose_data >"${HERE}/scripts/data.sh"
}

# use ID...: a process uses each of these GPUs.
use() {
  local id
  for id; do printf 'GPU-%s, 4242, python3\n' "$id"; done >"${BOX}/used"
}
choose() { sandbox::run PROFILE=gpu "$@" scripts/05_choose_gpus.sh; }
chosen() { grep '^[A-Z]' "${HERE}/env/local.env" | paste -sd' '; }

@test "of 8 GPUs of which 2 are in use the six others, for two workers" {
  choose
  assert_status 0
  assert_line 'changed env/local.env: GPU_IDS=0,1,3,4,5,6 WORKERS=2 GPUS_PER_WORKER=3'
  [[ $(chosen) == 'GPU_IDS=0,1,3,4,5,6 WORKERS=2 GPUS_PER_WORKER=3' ]]
  use # whatever the GPUs do now, the choice holds
  choose
  assert_line "skip    choosing GPUs (profile gpu, TRANSPORT=container, HOSTS_FILE='', GPU_IDS='0,1,3,4,5,6', or the cluster is up)"
  sandbox::verb PROFILE=gpu compose::list_gpus
  [[ $(paste -sd, <<<"$output") == 0,1,3,4,5,6,* ]]
}

@test "an odd number of GPUs is for one worker; GPUs in use are shared with FORCE=1" {
  use 2
  choose
  [[ $(chosen) == 'GPU_IDS=0,1,3,4,5,6,7 WORKERS=1 GPUS_PER_WORKER=7' ]]
  rm "${HERE}/env/local.env"
  choose FORCE=1
  [[ $(chosen) == 'GPU_IDS=0,1,2,3,4,5,6,7 WORKERS=2 GPUS_PER_WORKER=4' ]]
}

# given EXPECTED VARIABLE=VALUE...: the devices that a shell with these variables may use; `all` where they say nothing.
given() {
  local expected=$1
  rows=$((${rows:-0} + 1))
  (
    export "${@:2}"
    devices::load
    [[ -z $DEVICES_SOURCE && $expected == all || -n $DEVICES_SOURCE && $(devices::shown) == "$expected" ]] || echo "$* are $(devices::shown)"
  ) || echo "$* fails"
}

# table: the rows of the test below, in one shell with the libraries.
# shellcheck disable=SC2034  # which read these
table() {
  given 6,4 CUDA_VISIBLE_DEVICES='6, 4'
  given 4 CUDA_VISIBLE_DEVICES=4,-1,6
  given 7,0 CUDA_VISIBLE_DEVICES=GPU-7,GPU-0
  given none CUDA_VISIBLE_DEVICES=
  given none CUDA_VISIBLE_DEVICES=NoDevFiles
  given 2 CUDA_VISIBLE_DEVICES=2 NVIDIA_VISIBLE_DEVICES=all
  given 6 NVIDIA_VISIBLE_DEVICES=GPU-6
  given none NVIDIA_VISIBLE_DEVICES=none
  given all NVIDIA_VISIBLE_DEVICES=void
  given all ROCR_VISIBLE_DEVICES=2
  given 4,6,7 SLURM_JOB_GPUS=4,6-7 CUDA_VISIBLE_DEVICES=0,1,2
  given 6 SLURM_JOB_GPUS=4,6,7 CUDA_VISIBLE_DEVICES=6
  given 2,3 SLURM_JOB_GPUS=0-3 SLURM_STEP_GPUS=2,3
  given none SLURM_JOB_GPUS=4,5 CUDA_VISIBLE_DEVICES=
  PROFILE=rocm
  given 5 ROCR_VISIBLE_DEVICES=4,5 HIP_VISIBLE_DEVICES=1
  given 4,5 HIP_VISIBLE_DEVICES=4,5 ROCR_VISIBLE_DEVICES=4,5 CUDA_VISIBLE_DEVICES=4,5
  given all NVIDIA_VISIBLE_DEVICES=3
  PROFILE=npu
  given 6,7 ASCEND_RT_VISIBLE_DEVICES=6,7
  given 1 ASCEND_VISIBLE_DEVICES=0-3 ASCEND_RT_VISIBLE_DEVICES=1
  PROFILE=cpu
  given all CUDA_VISIBLE_DEVICES=1
  PROFILE=gpu TRANSPORT=ssh
  given all CUDA_VISIBLE_DEVICES=1
  echo "${rows} rows"
}

@test "the devices that a scheduler, a platform or the user gave to this shell" {
  { declare -f given table && printf 'table\n'; } >"${HERE}/scripts/table"
  sandbox::verb PROFILE=gpu source scripts/table
  assert_status 0
  assert_line '21 rows'
  refute_text ' are '
  refute_text ' fails'
}

@test "GPUs that are not given to this shell are not chosen" {
  use 5
  choose CUDA_VISIBLE_DEVICES=6,5,4
  assert_line "        choosing GPUs only among 6,5,4 (CUDA_VISIBLE_DEVICES='6,5,4'), which this shell may use"
  assert_line 'changed env/local.env: GPU_IDS=4,6 WORKERS=2 GPUS_PER_WORKER=1'
  rm "${HERE}/env/local.env"
  choose SLURM_JOB_GPUS=5
  assert_error 1 "nvidia-smi lists no GPU here among 5 (SLURM_JOB_GPUS='5') that is whole and that no process uses: end or wait for what uses them, share them with FORCE=1, or set PROFILE=cpu to rehearse without them."
  choose CUDA_VISIBLE_DEVICES=0,MIG-1
  assert_error 2 "CUDA_VISIBLE_DEVICES='0,MIG-1' (from the environment) names 'MIG-1', which is no whole device of this host by its id, or by a UUID that nvidia-smi lists: correct or unset it."
  choose SLURM_JOB_GPUS=4,6 CUDA_VISIBLE_DEVICES=3
  assert_error 2 "CUDA_VISIBLE_DEVICES='3' (from the environment) has 3, which is none of 4,6 (SLURM_JOB_GPUS='4,6'): correct or unset it."
  [[ ! -e ${HERE}/env/local.env ]]
}

@test "one of WORKERS and GPUS_PER_WORKER decides the other, and must divide" {
  printf 'DATASET=mine\nWORKERS=3' >"${HERE}/env/local.env" # without a newline at its end
  choose
  assert_status 0
  [[ $(chosen) == 'DATASET=mine WORKERS=3 GPU_IDS=0,1,3,4,5,6 GPUS_PER_WORKER=2' ]]
  rm "${HERE}/env/local.env"
  choose GPUS_PER_WORKER=6
  [[ $(chosen) == 'GPU_IDS=0,1,3,4,5,6 WORKERS=1 GPUS_PER_WORKER=6' ]]
  rm "${HERE}/env/local.env"
  choose GPUS_PER_WORKER=4
  assert_error 2 'GPUS_PER_WORKER=4 (from the command line or environment) does not divide the 6 GPUs that no process uses (0,1,3,4,5,6, by nvidia-smi): set it to a number that does, or set GPU_IDS, WORKERS and GPUS_PER_WORKER.'
  choose WORKERS=4
  assert_status 2
  [[ ! -e ${HERE}/env/local.env ]]
  echo WORKERS=3 >"${HERE}/env/local.env"
  choose WORKERS=2
  assert_error 2 "env/local.env has 'WORKERS=3', and all later commands need 'WORKERS=2' there: change or remove that line, then run this again."
  [[ $(<"${HERE}/env/local.env") == WORKERS=3 ]]
}

@test "both given: the first GPUs that no process uses, or one sentence" {
  choose WORKERS=2 GPUS_PER_WORKER=2
  [[ $(chosen) == 'GPU_IDS=0,1,3,4 WORKERS=2 GPUS_PER_WORKER=2' ]]
  rm "${HERE}/env/local.env"
  choose WORKERS=2 GPUS_PER_WORKER=4
  assert_error 2 'WORKERS=2 (from the command line or environment) with GPUS_PER_WORKER=4 (from the command line or environment) need 8 GPUs, but only 6 are used by no process (0,1,3,4,5,6, by nvidia-smi): lower one of the two, or share GPUs with FORCE=1.'
}

@test "no GPU is left, or MIG splits them" {
  use {0..7}
  choose
  assert_error 1 'nvidia-smi lists no GPU here that is whole and that no process uses: end or wait for what uses them, share them with FORCE=1, or set PROFILE=cpu to rehearse without them.'
  use
  echo Enabled >"${BOX}/mig"
  choose
  assert_status 1
}

@test "nothing is chosen in a rehearsal, on other hosts, and while the cluster is up" {
  choose PROFILE=cpu
  assert_line "skip    choosing GPUs (profile cpu, TRANSPORT=container, HOSTS_FILE='', GPU_IDS='', or the cluster is up)"
  refute_called nvidia-smi
  # shellcheck disable=SC2016  # expanded when the stub runs
  engine_has mvp11 00000000000000aa /w head
  fake_engine </dev/null
  choose
  assert_status 0
  [[ ! -e ${HERE}/env/local.env ]]
}

@test "without the hub a tiny model learns sums; a choice of the user holds" {
  sandbox::run PROFILE=gpu scripts/data.sh
  assert_status 0
  echo 'The seed' >"${BOX}/root/away" # not the hub
  sandbox::run PROFILE=gpu scripts/data.sh
  assert_status 0
  echo 'The Hugging Face hub' >"${BOX}/root/away"
  sandbox::run PROFILE=gpu MODEL=mine scripts/data.sh
  assert_status 0
  sandbox::run PROFILE=cpu scripts/data.sh # its model is tiny
  [[ ! -e ${HERE}/env/local.env ]]
  sandbox::run PROFILE=gpu scripts/data.sh
  assert_line '        The Hugging Face hub is away.'
  assert_line 'warning the Hugging Face hub does not give Qwen/Qwen2.5-0.5B-Instruct, so a tiny model learns sums instead: that shows that training runs here, and nothing about a real model.'
  [[ $(chosen) == 'MODEL_SOURCE=tiny MODEL=tiny-qwen2-for-gpu DATASET_SOURCE=synthetic DATASET=sums' ]]
}

@test "the quick start trains PPO in a rehearsal and GRPO on GPUs, or what is asked for" {
  # shellcheck disable=SC2016  # expanded when the script runs
  sed -i '/^env::load/a helper::ensure() { :; }\njob::submit() { log::info "submits $1"; }' "${HERE}/scripts/44_submit_sdk.sh"
  sandbox::run PROFILE=cpu scripts/44_submit_sdk.sh --quickstart
  assert_line '        submits jobspecs/ppo.yaml'
  sandbox::run PROFILE=gpu scripts/44_submit_sdk.sh --quickstart
  assert_line '        submits jobspecs/grpo.yaml'
  sandbox::run PROFILE=gpu WORKLOAD=sft scripts/44_submit_sdk.sh --quickstart
  assert_line '        submits jobspecs/sft.yaml'
}
