#!/usr/bin/env bats
# The knobs: which value wins, what is refused or ignored, and which profile is chosen.

setup() {
  load ../test_helper
  sandbox::make
  ln -sf "$(real_python)" "${BOX}/bin/python3"
  cat >"${HERE}/scripts/show.sh" <<'SHOW'
source "$(dirname "$0")/lib/regress.bash"
cli::begin
env::load
for knob in "$@"; do printf '%s=<%s> from %s\n' "$knob" "${!knob}" "${ENV_ORIGIN[$knob]}"; done
SHOW
  # shellcheck disable=SC2016  # expanded when the script runs
  printf '%s\n' 'source "$(dirname "$0")/lib/regress.bash"' cli::begin '"$@"' >"${HERE}/scripts/verb.sh"
}

@test "the environment wins over local.env, the profile and defaults.env, in this order" {
  printf 'WORKERS=5\n\nDATASET=local' >"${HERE}/env/local.env" # the last line may lack its end
  sandbox::run WORKERS=7 WORKER_CPUS= scripts/show.sh WORKERS DATASET WORKER_CPUS WORKER_GPUS GCS_PORT
  assert_status 0
  [[ $output == 'WORKERS=<7> from the command line or environment
DATASET=<local> from env/local.env
WORKER_CPUS=<> from the command line or environment
WORKER_GPUS=<4> from env/cpu.env
GCS_PORT=<6379> from env/defaults.env
'* ]] || fail 'others'
}

@test "a script knows its hosts, owner and version; what it starts has the knobs" {
  mkdir "${BOX}/work"
  echo 00000000000000aa >"${BOX}/work/id"
  printf '%s ssh://me@10.0.0.1\n' head >"${HERE}/env/hosts"
  printf 'worker-%s ssh://me@10.0.0.1%s\n' 0 0 1 1 2 2 >>"${HERE}/env/hosts"
  # shellcheck disable=SC2016  # expanded when the script runs
  sandbox::run CLUSTER_NAME=mine HOSTS_FILE=env/hosts WORKDIR=../work DATASET=sums scripts/verb.sh eval 'env::load
    echo "$WORKERS $OWNER_ID $HELPER_HASH $PROFILE_TITLE"; bash -c '\''echo "$DATASET of $WORKERS"'\'
  assert_status 0
  [[ $output =~ ^"3 00000000000000aa "[0-9a-f]{12}" cpu (rehearsal: no GPU)"$'\n'"sums of 3"$'\n' ]] || fail 'something is missing'
}

@test "only what the user set is given, and what a script gives in the user's place" {
  printf 'DATASET=local\n' >"${HERE}/env/local.env"
  # shellcheck disable=SC2016  # expanded when the script runs
  sandbox::run WORKERS=7 JOB=mine scripts/verb.sh eval 'env::load_knobs; env::give MODEL small LIMIT 5 JOB ""
    for knob in WORKERS DATASET MODEL LIMIT JOB WORKER_GPUS GCS_PORT; do ! env::is_given "$knob" || echo "$knob=${!knob}"; done'
  [[ $output == $'WORKERS=7\nDATASET=local\nMODEL=small\nLIMIT=5\n=='* ]] || fail 'others'
}

@test "paths of knobs are relative to the checkout, typed ones to where they were typed" {
  mkdir -p "${BOX}/elsewhere/gpu" # no suite
  touch "${BOX}/elsewhere/my.yaml"
  printf '%s\n' 'CODE_A=path:~/verl' 'OVERRIDES_FILE=my.yaml' 'WHEELHOUSE=~' >"${HERE}/env/local.env"
  # shellcheck disable=SC2016  # expanded when the script runs
  run env -C "${BOX}/elsewhere" -i HOME="${BOX}/home dir" PATH="${BOX}/bin" PROFILE=cpu WORKDIR=./work JOBSPEC=my.yaml SUITE=gpu CODE_B=path:my.yaml \
    VERL_SOURCE=path:~user "${BOX}/bin/bash" '../the repo/scripts/verb.sh' eval 'env::load
    printf "%s\n" "$WORKDIR" "$JOBSPEC" "$SUITE" "$CODE_B" "$CODE_A" "$OVERRIDES_FILE" "$WHEELHOUSE" "$RAY_BASE_CONFIG" "$VERL_SOURCE"'
  assert_status 0
  [[ $output == "${HERE}/work
${BOX}/elsewhere/my.yaml
gpu
path:${BOX}/elsewhere/my.yaml
path:${BOX}/home dir/verl
my.yaml
${BOX}/home dir
env/ray/cpu.yaml
path:${HERE}/~user
"* ]] || fail 'other paths'
}

# bats test_tags=slow
@test "PROFILE=auto on other machines is refused" {
  while IFS='|' read -r knobs sentence; do
    read -r -a knobs <<<"$knobs"
    sandbox::run "${knobs[@]}" DEVICE_ROOT="$BOX" scripts/verb.sh env::load_knobs
    assert_error 2 "${sentence}"
  done <<'CASES'
PROFILE=auto TRANSPORT=ssh|PROFILE=auto looks for devices on this machine, but with TRANSPORT=ssh (from the command line or environment) and HOSTS_FILE='' (from env/defaults.env) the nodes are on other machines: name the profile for them.
PROFILE=auto HOSTS_FILE=env/hosts|PROFILE=auto looks for devices on this machine, but with TRANSPORT=container (from env/defaults.env) and HOSTS_FILE='env/hosts' (from the command line or environment) the nodes are on other machines: name the profile for them.
CASES
}

@test "values are read, never run" {
  # shellcheck disable=SC2016  # hostile on purpose
  printf 'DATASET=$(touch %s/ran) `id` ${HOME}\n' "$BATS_TEST_TMPDIR" >"${HERE}/env/local.env"
  sandbox::run "LOG_CHANGES=a[\$(touch ${BATS_TEST_TMPDIR}/ran)]" scripts/show.sh DATASET
  assert_line "DATASET=<\$(touch ${BATS_TEST_TMPDIR}/ran) \`id\` \${HOME}> from env/local.env"
  [[ ! -e ${BATS_TEST_TMPDIR}/ran ]]
}

@test "no variable with a tool's options, configuration or code reaches our tools" {
  local names=(TAR_OPTIONS TAPE BASH_ENV ENV CDPATH GIT_DIR GIT_{CONFIG_COUNT,TRACE,SSH,SSH_COMMAND,EXEC_PATH} COMPOSE_FILE PYTHONPATH PYTHONSTARTUP)
  # shellcheck disable=SC2016  # expanded when the script runs
  printf 'source "$(dirname "$0")/lib/regress.bash"\ncli::begin\nenv\n' >"${HERE}/scripts/lines.sh"
  sandbox::run "${names[@]/%/=/no/such/planted}" KEPT=/no/such/planted PYTHONDONTWRITEBYTECODE=1 scripts/lines.sh
  assert_status 0
  [[ $(grep planted <<<"$output") == KEPT=/no/such/planted ]] || fail 'one of them was kept'
  assert_line PYTHONDONTWRITEBYTECODE=1
}

@test "a line that is no knob is refused with its number and the nearest knob" {
  while IFS='|' read -r line sentence; do
    printf '# mine\n\n%s\n' "$line" >"${HERE}/env/local.env"
    sandbox::run scripts/show.sh
    assert_error 2 "${sentence}"
  done <<'CASES'
WORKRES=3|WORKRES (line 3 of env/local.env) is not a knob: did you mean WORKERS? Use the knobs of env/defaults.env; export other variables, such as secrets, before you run the command.
BASH_ENV=x|BASH_ENV (line 3 of env/local.env) is not a knob: use the knobs of env/defaults.env; export other variables, such as secrets, before you run the command.
export WORKERS=3|'export WORKERS=3' (line 3 of env/local.env) is not a KEY=VALUE line: write one knob per line, no spaces around '='.
export NCCL_DEBUG="INFO"|The value of NCCL_DEBUG (line 3 of env/local.env) is not usable: use only letters, digits and _.,:=/+@-.
WORKERS=two|WORKERS='two' (from env/local.env) is not usable: use a whole number from 1 to 99.
CASES
  rm "${HERE}/env/local.env"
  printf 'WORKER_GPU=1\n' >"${HERE}/env/mine.env"
  sandbox::run PROFILE=mine scripts/show.sh
  assert_error 2 'WORKER_GPU (line 1 of env/mine.env) is not a knob: did you mean WORKER_GPUS? Use the knobs of env/defaults.env; export other variables, such as secrets, before you run the command.'
}

@test "Windows line ends and a BOM in env/local.env are accepted; the first one wins" {
  printf '\xef\xbb\xbfWORKERS=3\r\nPROFILE=rocm\r\n\r\nexport NCCL_DEBUG=INFO\r\n' >"${HERE}/env/local.env"
  # shellcheck disable=SC2016  # expanded when the script runs
  run env -i PATH="${BOX}/bin" NCCL_DEBUG=info "${BOX}/bin/bash" "${HERE}/scripts/verb.sh" eval 'env::load_knobs
    echo "$WORKERS $PROFILE ${ENV_OF_WORKERS[NCCL_DEBUG]} ${ENV_OF_WORKERS[NCCL_PROTO]} <${ENV_OF_WORKERS[NCCL_IB_HCA]}> $NCCL_DEBUG"; env::tell_unused'
  assert_status 0
  assert_line '3 rocm INFO Simple <> info'
  assert_line "        Jobs do not get NCCL_DEBUG of this shell: put what they need into env_vars of the JobSpec, or as 'export NCCL_DEBUG=…' into env/local.env before 'make up'."
}

# bats test_tags=slow
@test "an unusable value is refused on make's command line, and else ignored" {
  while IFS='|' read -r setting cure; do
    sandbox::run MAKE_GIVEN="WAIT ${setting%%=*}" "$setting" scripts/show.sh
    assert_error 2 "${setting%%=*}='${setting#*=}' (from the command line or environment) is not usable: ${cure}."
  done <<'CASES'
WORKERS=0|use a whole number from 1 to 99
SHM_SIZE=abc|use a value such as 2gb or 512m
WORKER_CPUS=x|use a whole number from 1 to 9999, or leave it empty
DATASET_SOURCE=foo|use one of synthetic, hub, path:…
ONLY=outputs plcement|did you mean placement? Use some of placement, outputs, checkpoints, further, imports, workloads, separated by commas, or leave it empty
DRY_RUN=maybe|use 1, true, yes or on, or 0, false, no, off or nothing
WORKLOAD=pppo|did you mean ppo? Use one of grpo, ppo, sft
TRANSPORT=pigeon|use one of container, srun, ssh
PROFILE=rocn|did you mean rocm? Use one of auto, cpu, gpu, npu, rocm
WORKDIR=|name a path
MIN_DISK_GIB=a[$(touch x)]|use a whole number from 0 to 999999
CASES
  [[ ! -e x && ! -e ${HERE}/x ]]
  printf 'WORKERS=5\n' >"${HERE}/env/local.env"
  sandbox::run MAKE_GIVEN=WAIT WORKERS=none SHM_SIZE=much PROFILE=cpu scripts/show.sh WORKERS SHM_SIZE
  assert_status 0
  assert_line "warning WORKERS='none' (from the environment) is ignored: use a whole number from 1 to 99."
  assert_line 'WORKERS=<5> from env/local.env'
  assert_line 'SHM_SIZE=<2gb> from env/defaults.env'
  sandbox::run REGRESS_SAID=1 WORKERS=none scripts/show.sh WORKERS
  refute_text warning
}

# promise: takes `DRY_RUN=true` for a real run
@test "a DRY_RUN of the environment is refused if it is no boolean, not ignored" {
  sandbox::run MAKE_GIVEN=WAIT DRY_RUN=maybe scripts/show.sh
  assert_error 2 "DRY_RUN='maybe' (from the command line or environment) is not usable: use 1, true, yes or on, or 0, false, no, off or nothing."
}

# promise: takes `DRY_RUN=true` for a real run
@test "a boolean is 1 or nothing from there on, however it was written" {
  for written in 1 true Yes ON; do
    sandbox::run "DRY_RUN=${written}" scripts/show.sh DRY_RUN
    assert_line "DRY_RUN=<1> from the command line or environment"
  done
  for written in 0 false No OFF ''; do
    sandbox::run "DRY_RUN=${written}" scripts/show.sh DRY_RUN
    assert_line "DRY_RUN=<> from the command line or environment"
  done
}

# bats test_tags=slow
@test "a make command says once that no GPU is visible, once that it ignores a value" {
  mkdir "${BOX}/dev"
  # There is no engine here: of each script we keep only the lines that load the knobs.
  for script in "${HERE}"/scripts/[0-9][0-9]_*.sh; do sed -i '/^env::load/q' "$script"; done
  ln -s "$(command -v make)" "${BOX}/bin/make"
  for line in 'up prepare submit' 'build check up prepare snapshot' submit; do
    read -ra goals <<<"$line"
    run env -i HOME="${BOX}/home dir" PATH="${BOX}/bin" NO_COLOR=1 DEVICE_ROOT="${BOX}/dev" WORKERS=none make --no-print-directory -C "$HERE" "${goals[@]}"
    assert_status 0
    [[ $(grep -c 'No GPU is visible' <<<"$output")$(grep -c 'is ignored' <<<"$output") == 11 ]] || fail "make ${line} does not say each once"
  done
}

# on_devices FILE...: PROFILE=auto on a machine with those devices.
on_devices() {
  mkdir "${BOX}/dev"
  (($# == 0)) || touch "${@/#/${BOX}/dev/}"
  sandbox::run PROFILE=auto DEVICE_ROOT="${BOX}/dev" scripts/show.sh PROFILE RAY_BASE_CONFIG
}

@test "PROFILE=auto is the rehearsal on a machine without GPUs, and says so" {
  on_devices nvidiactl nvidia-uvm
  assert_status 0
  assert_line "        No GPU is visible (no ${BOX}/dev/nvidia<n>, ${BOX}/dev/kfd or ${BOX}/dev/davinci_manager), so the profile is cpu: a rehearsal."
  assert_line 'PROFILE=<cpu> from the command line or environment'
  assert_line 'RAY_BASE_CONFIG=<env/ray/cpu.yaml> from env/cpu.env'
}

@test "PROFILE=auto takes NVIDIA GPUs that answer, AMD GPUs and NPUs that may be opened" {
  stub nvidia-smi
  on_devices nvidia0 nvidiactl
  assert_status 0
  assert_line 'PROFILE=<gpu> from the command line or environment'
  assert_line 'RAY_BASE_CONFIG=<env/ray/dev.yaml> from env/gpu.env'
  refute_text 'No GPU'
  rm -r "${BOX:?}/dev"
  on_devices kfd
  assert_line 'PROFILE=<rocm> from the command line or environment'
  rm -r "${BOX:?}/dev"
  on_devices davinci_manager davinci0
  assert_line 'PROFILE=<npu> from the command line or environment'
  assert_line 'RAY_BASE_CONFIG=<env/ray/npu.yaml> from env/npu.env'
}

# promise: rehearses silently on a machine with GPUs
@test "AMD GPUs that may only be read are an error, never a silent rehearsal" {
  local bare=()
  # Root may open every file, unless it gives that up.
  ((EUID != 0)) || bare=("$(command -v setpriv)" "--bounding-set=-dac_override,-dac_read_search")
  [[ -z ${bare[*]} ]] || "${bare[@]}" true || skip 'no right of root can be given up here'
  printf 'exec %s bash scripts/show.sh PROFILE\n' "${bare[*]}" >"${HERE}/scripts/bare.sh"
  mkdir "${BOX}/dev"
  install -m 400 /dev/null "${BOX}/dev/kfd"
  sandbox::run PROFILE=auto DEVICE_ROOT="${BOX}/dev" scripts/bare.sh
  assert_error 1 "${BOX}/dev/kfd (AMD GPUs) is there but not readable and writable for $(id -un): join its group, or set PROFILE=cpu to rehearse without them."
}

# promise: rehearses silently on a machine with GPUs
@test "GPU devices that do not answer are an error, never a silent rehearsal" {
  stub nvidia-smi 'exit 9'
  on_devices nvidia0 nvidia1 nvidiactl
  assert_error 1 "${BOX}/dev has 2 NVIDIA devices but 'nvidia-smi -L' fails: fix the driver, or set PROFILE=cpu to rehearse without them."
}
