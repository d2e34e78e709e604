#!/usr/bin/env bats
# The knobs: who wins, what is refused, and which profile is taken.

setup() {
  load ../test_helper
  sandbox::make
  cat >"${HERE}/scripts/show.sh" <<'SHOW'
source "$(dirname "$0")/lib/regress.bash"
cli::begin
env::load
for knob in "$@"; do printf '%s=<%s> from %s\n' "$knob" "${!knob}" "${ENV_ORIGIN[$knob]}"; done
SHOW
}

@test "the environment wins over local.env, that over the profile, that over defaults.env" {
  printf 'WORKERS=5\nDATASET=local\n' >"${HERE}/env/local.env"
  sandbox::run WORKERS=7 scripts/show.sh WORKERS DATASET WORKER_GPUS GCS_PORT
  assert_status 0
  assert_line 'WORKERS=<7> from the command line or environment'
  assert_line 'DATASET=<local> from env/local.env'
  assert_line 'WORKER_GPUS=<4> from env/cpu.env'
  assert_line 'GCS_PORT=<6379> from env/defaults.env'
}

@test "an explicitly empty value counts as given" {
  sandbox::run WORKER_GPUS= scripts/show.sh WORKER_GPUS
  assert_line 'WORKER_GPUS=<> from the command line or environment'
}

@test "values are read, never run" {
  # shellcheck disable=SC2016  # hostile on purpose
  printf 'DATASET=$(touch %s/ran) `id` ${HOME}\n' "$BATS_TEST_TMPDIR" >"${HERE}/env/local.env"
  sandbox::run scripts/show.sh DATASET
  assert_line "DATASET=<\$(touch ${BATS_TEST_TMPDIR}/ran) \`id\` \${HOME}> from env/local.env"
  [[ ! -e ${BATS_TEST_TMPDIR}/ran ]]
}

@test "a knob that no program could be started with is refused before it is exported (before: Argument list too long)" {
  for knob in OVERRIDES SUBMISSION_ID; do
    { printf '%s=' "$knob" && head -c 200000 /dev/zero | tr '\0' x && echo; } >"${HERE}/env/local.env"
    sandbox::run scripts/show.sh WORKERS
    assert_status 2
    case $knob in
      OVERRIDES) cure='put them into a file, one a line, and name it in OVERRIDES_FILE' ;;
      *) cure='make it shorter' ;;
    esac
    assert_line "error   ${knob} (from env/local.env) has 200000 bytes, and a knob takes at most 65536: ${cure}."
    [[ $output != *'too long'* ]]
  done
  rm "${HERE}/env/local.env"
  sandbox::run "OVERRIDES=a=$(head -c 70000 /dev/zero | tr '\0' x)" scripts/show.sh WORKERS
  assert_status 2
  assert_line 'error   OVERRIDES (from the command line or environment) has 70002 bytes, and a knob takes at most 65536: put them into a file, one a line, and name it in OVERRIDES_FILE.'
  sandbox::run "OVERRIDES=a=$(head -c 65534 /dev/zero | tr '\0' x)" scripts/show.sh WORKERS
  assert_status 0
}

@test "what a shell would run by itself is refused in an env file" {
  for key in BASH_ENV ENV IFS LD_PRELOAD PS4 SHELLOPTS; do
    # shellcheck disable=SC2016  # hostile on purpose
    printf '%s=$(touch %s/ran)\n' "$key" "$BATS_TEST_TMPDIR" >"${HERE}/env/local.env"
    sandbox::run scripts/show.sh
    assert_status 2
    assert_line "error   '${key}' in ${HERE}/env/local.env is no knob, and the shells and tools that we start would act on it: leave it out."
  done
  [[ ! -e ${BATS_TEST_TMPDIR}/ran ]]
}

@test "a count that comes from the environment is not reckoned out" {
  # shellcheck disable=SC2016  # hostile on purpose
  printf '%s\n' 'source "$(dirname "$0")/lib/regress.bash"' 'log::changed x' 'log::verdict x' >"${HERE}/scripts/count.sh"
  sandbox::run "LOG_CHANGES=a[\$(touch ${BATS_TEST_TMPDIR}/ran)]" scripts/count.sh
  assert_status 0
  [[ ! -e ${BATS_TEST_TMPDIR}/ran ]]
}

@test "a line that is no KEY=VALUE is refused with its file" {
  printf 'export WORKERS=3\n' >"${HERE}/env/local.env"
  sandbox::run scripts/show.sh
  assert_status 2
  assert_line "error   'export WORKERS=3' in ${HERE}/env/local.env is no KEY=VALUE line: write one knob a line, no spaces around '='."
}

@test "unusable values are refused with their origin, before anything is touched" {
  while IFS='|' read -r setting sentence; do
    sandbox::run "$setting" scripts/show.sh
    assert_status 2
    assert_line "error   ${sentence}"
  done <<'CASES'
WORKERS=0|WORKERS='0' (from the command line or environment) is not usable: use a number from 1 to 99.
WORKERS=two|WORKERS='two' (from the command line or environment) is not usable: use a number from 1 to 99.
GPUS_PER_WORKER=0|GPUS_PER_WORKER='0' (from the command line or environment) is not usable: use a number from 1 to 99.
WORKER_DEVICES=kfd|WORKER_DEVICES='kfd' (from the command line or environment) is not usable: use paths under /dev, separated by one blank.
RAY_UNSET=a=b|RAY_UNSET='a=b' (from the command line or environment) is not usable: use names of environment variables, separated by one blank.
CLUSTER_NAME=Mine!|CLUSTER_NAME='Mine!' (from the command line or environment) is not usable: use lower-case letters, digits, - and _, at most 40.
DASHBOARD_PORT=http|DASHBOARD_PORT='http' (from the command line or environment) is not usable: use a free TCP port.
SHARED_ROOT=private|SHARED_ROOT='private' (from the command line or environment) is not usable: use an absolute path without spaces.
CLUSTER_TIMEOUT=1.5|CLUSTER_TIMEOUT='1.5' (from the command line or environment) is not usable: use a whole number.
IMAGE_PULL_TIMEOUT=|IMAGE_PULL_TIMEOUT='' (from the command line or environment) is not usable: use a whole number.
MIN_DISK_GIB=a[$(touch x)]|MIN_DISK_GIB='a[$(touch x)]' (from the command line or environment) is not usable: use a whole number.
MIN_MEMORY_GIB=08|MIN_MEMORY_GIB='08' (from the command line or environment) is not usable: use a whole number.
TRANSPORT=pigeon|TRANSPORT=pigeon has no scripts/lib/transport/pigeon.bash: use one of: container ssh.
SEED=x|SEED='x' (from the command line or environment) is not usable: use a whole number.
PROFILE=tpu|PROFILE=tpu is not a profile: choose auto or one of: cpu gpu rocm.
CASES
}

@test "PROFILE=auto is the rehearsal where no device is, and says so" {
  mkdir "${BOX}/dev"
  sandbox::run PROFILE=auto DEVICE_ROOT="${BOX}/dev" scripts/show.sh PROFILE RAY_BASE_CONFIG
  assert_status 0
  assert_line "        No GPU is visible (neither ${BOX}/dev/nvidia<n> nor ${BOX}/dev/kfd), so the profile is cpu: a rehearsal."
  assert_line 'PROFILE=<cpu> from the command line or environment'
  assert_line 'RAY_BASE_CONFIG=<env/ray/cpu.yaml> from env/cpu.env'
}

@test "PROFILE=auto takes NVIDIA GPUs that answer" {
  mkdir "${BOX}/dev"
  touch "${BOX}/dev/nvidia0" "${BOX}/dev/nvidiactl"
  stub nvidia-smi
  sandbox::run PROFILE=auto DEVICE_ROOT="${BOX}/dev" scripts/show.sh PROFILE RAY_BASE_CONFIG
  assert_status 0
  assert_line 'PROFILE=<gpu> from the command line or environment'
  assert_line 'RAY_BASE_CONFIG=<env/ray/dev.yaml> from env/gpu.env'
  refute_text 'No GPU'
}

@test "PROFILE=auto takes AMD GPUs that may be opened" {
  mkdir "${BOX}/dev"
  touch "${BOX}/dev/kfd"
  sandbox::run PROFILE=auto DEVICE_ROOT="${BOX}/dev" scripts/show.sh PROFILE RAY_UNSET
  assert_status 0
  assert_line 'PROFILE=<rocm> from the command line or environment'
  assert_line 'RAY_UNSET=<ROCR_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES> from env/rocm.env'
  refute_text 'No GPU'
}

@test "a device that only belongs to NVIDIA's driver is no GPU" {
  mkdir "${BOX}/dev"
  touch "${BOX}/dev/nvidiactl" "${BOX}/dev/nvidia-uvm"
  sandbox::run PROFILE=auto DEVICE_ROOT="${BOX}/dev" scripts/show.sh PROFILE
  assert_line 'PROFILE=<cpu> from the command line or environment'
}

@test "GPU devices that are there but do not answer are an error, never a silent rehearsal" {
  mkdir "${BOX}/dev"
  touch "${BOX}/dev/nvidia0" "${BOX}/dev/nvidia1" "${BOX}/dev/nvidiactl"
  stub nvidia-smi 'exit 9'
  sandbox::run PROFILE=auto DEVICE_ROOT="${BOX}/dev" scripts/show.sh PROFILE
  assert_status 1
  assert_line "error   ${BOX}/dev has 2 NVIDIA devices but 'nvidia-smi -L' fails: mend the driver, or set PROFILE=cpu to rehearse without them."
}
