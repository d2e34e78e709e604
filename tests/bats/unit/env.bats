#!/usr/bin/env bats
# The knobs: which value wins, what is refused, and which profile is chosen.

setup() {
  load ../test_helper
  sandbox::make
  cat >"${HERE}/scripts/show.sh" <<'SHOW'
source "$(dirname "$0")/lib/regress.bash"
cli::begin
env::load
for knob in "$@"; do printf '%s=<%s> from %s\n' "$knob" "${!knob}" "${ENV_ORIGIN[$knob]}"; done
SHOW
  # shellcheck disable=SC2016  # expanded when the script runs
  printf '%s\n' 'source "$(dirname "$0")/lib/regress.bash"' cli::begin '"$@"' >"${HERE}/scripts/verb.sh"
}

@test "the environment wins over local.env, that over the profile, that over defaults.env" {
  printf 'WORKERS=5\n\nDATASET=local' >"${HERE}/env/local.env" # the last line may lack its end
  sandbox::run WORKERS=7 scripts/show.sh WORKERS DATASET WORKER_GPUS GCS_PORT PROFILE_TITLE
  assert_status 0
  assert_line 'WORKERS=<7> from the command line or environment'
  assert_line 'DATASET=<local> from env/local.env'
  assert_line 'WORKER_GPUS=<4> from env/cpu.env'
  assert_line 'GCS_PORT=<6379> from env/defaults.env'
  assert_line 'PROFILE_TITLE=<cpu (rehearsal: no GPU)> from env/cpu.env'
}

@test "a script knows its hosts, its owner and the helper's version; what it starts has the knobs" {
  mkdir "${BOX}/work"
  echo 00000000000000aa >"${BOX}/work/id"
  printf '%s ssh://me@10.0.0.1\n' head >"${HERE}/env/hosts"
  printf 'worker-%s ssh://me@10.0.0.1%s\n' 0 0 1 1 2 2 >>"${HERE}/env/hosts"
  # shellcheck disable=SC2016  # expanded when the script runs
  sandbox::run CLUSTER_NAME=mine HOSTS_FILE=env/hosts WORKDIR=../work DATASET=sums scripts/verb.sh eval 'env::load
    echo "$WORKERS $OWNER_ID $HELPER_HASH"; bash -c '\''echo "$DATASET of $WORKERS"'\'
  assert_status 0
  [[ $output =~ ^"3 00000000000000aa "[0-9a-f]{12}$'\n'"sums of 3"$'\n' ]] || fail 'something is missing'
}

@test "only what the user set is given, and what a script gives in the user's place" {
  printf 'DATASET=local\n' >"${HERE}/env/local.env"
  # shellcheck disable=SC2016  # expanded when the script runs
  sandbox::run WORKERS=7 scripts/verb.sh eval 'env::load_knobs; env::give MODEL small LIMIT 5
    for knob in WORKERS DATASET MODEL LIMIT WORKER_GPUS GCS_PORT; do ! env::is_given "$knob" || echo "$knob=${!knob} from ${ENV_ORIGIN[$knob]}"; done'
  assert_status 0
  [[ $output == 'WORKERS=7 from the command line or environment
DATASET=local from env/local.env
MODEL=small from the command line or environment
LIMIT=5 from the command line or environment
=='* ]] || fail 'others'
}

@test "a script that depends on no profile checks what the user gave, and sets nothing else" {
  printf 'DATASET=local\n' >"${HERE}/env/local.env"
  # shellcheck disable=SC2016  # expanded when the script runs
  sandbox::run WORKERS=7 scripts/verb.sh eval 'env::check; echo "$WORKERS $DATASET ${MODEL-unset} ${WORKER_GPUS-unset}"'
  assert_status 0
  assert_line '7 local unset unset'
  sandbox::run WORKERS=0 scripts/verb.sh env::check
  assert_status 2
  assert_line "error   WORKERS='0' (from the command line or environment) is not usable: use a whole number from 1 to 99."
  # The first script of make reads the file alone.
  # shellcheck disable=SC2016  # expanded when the script runs
  sandbox::run MAKE_GIVEN= scripts/verb.sh eval 'echo "${DATASET-unset}"; env::read_local; echo "$DATASET"; env::load_knobs; echo "${ENV_ORIGIN[DATASET]}"'
  [[ $status == 0 && $output == $'unset\nlocal\nenv/local.env\n'* ]] || fail 'not read'
}

@test "a path is absolute from the caller's directory; ~/ at its beginning, which the shell leaves behind path:, is HOME" {
  # shellcheck disable=SC2016  # expanded when the script runs
  sandbox::run scripts/verb.sh eval 'for path in "~/a b/../c" x/~/y /etc//z "~user"; do env::path "$path"; done'
  [[ $output == "${BOX}/home dir/c"$'\n'"${HERE}/x/~/y"$'\n/etc/z\n'"${HERE}/~user"$'\n'* ]] || fail 'other paths'
}

# bats test_tags=slow
@test "PROFILE=auto on other machines is refused, and a container of a Slurm site without srun" {
  while IFS='|' read -r knobs sentence; do
    read -r -a knobs <<<"$knobs"
    sandbox::run "${knobs[@]}" DEVICE_ROOT="$BOX" scripts/verb.sh env::load_knobs
    assert_status 2
    assert_line "error   ${sentence}"
  done <<'CASES'
PROFILE=auto TRANSPORT=ssh|PROFILE=auto looks for devices on this machine, but with TRANSPORT=ssh (from the command line or environment) the nodes are other machines: name the profile for them.
PROFILE=auto HOSTS_FILE=env/hosts|PROFILE=auto looks for devices on this machine, but with HOSTS_FILE=env/hosts (from the command line or environment) the nodes are on other machines: name the profile for them.
TRANSPORT=ssh NODES_CONTAINER=apptainer|NODES_CONTAINER='apptainer' (from the command line or environment) is for the bare hosts of a Slurm allocation and has no effect with TRANSPORT=ssh (from the command line or environment): remove NODES_CONTAINER, or set TRANSPORT=srun.
CASES
  for knobs in 'TRANSPORT=srun NODES_CONTAINER=apptainer' 'TRANSPORT=ssh' 'HOSTS_FILE=env/hosts'; do
    read -r -a knobs <<<"$knobs"
    sandbox::run "${knobs[@]}" scripts/verb.sh env::load_knobs
    assert_status 0
  done
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
      OVERRIDES) cure='put them into a file, one per line, and name it in OVERRIDES_FILE' ;;
      *) cure='make it shorter' ;;
    esac
    assert_line "error   ${knob} (from env/local.env) has 200000 bytes, and a knob takes at most 65536: ${cure}."
    [[ $output != *'too long'* ]]
  done
  rm "${HERE}/env/local.env"
  sandbox::run "OVERRIDES=a=$(head -c 65535 /dev/zero | tr '\0' x)" scripts/show.sh WORKERS
  assert_status 2
  assert_line 'error   OVERRIDES (from the command line or environment) has 65537 bytes, and a knob takes at most 65536: put them into a file, one per line, and name it in OVERRIDES_FILE.'
  sandbox::run "OVERRIDES=a=$(head -c 65534 /dev/zero | tr '\0' x)" scripts/show.sh WORKERS
  assert_status 0
  sandbox::run LC_ALL=C.UTF-8 "OVERRIDES=a=$(printf 'é%.0s' {1..40000})" scripts/show.sh WORKERS
  assert_status 2
  [[ $output == 'error   OVERRIDES (from the command line or environment) has 80002 bytes, '* ]] || fail 'characters are counted'
  sandbox::run "NODES_PATH=$(head -c 65536 /dev/zero | tr '\0' x)" scripts/show.sh WORKERS
  assert_status 2
  [[ $output == *' is not usable: use absolute paths without spaces, separated by colons, or leave it empty.'* ]] || fail 'not its form'
}

@test "no variable by which a tool takes options, configuration or code reaches the tools that we run" {
  local names=(TAR_OPTIONS TAPE BASH_ENV ENV CDPATH GIT_DIR GIT_CONFIG_COUNT GIT_SSH_COMMAND GIT_EXTERNAL_DIFF COMPOSE_FILE COMPOSE_PROFILES
    PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONINSPECT)
  # shellcheck disable=SC2016  # expanded when the script runs
  printf 'source "$(dirname "$0")/lib/regress.bash"\ncli::begin\nenv\n' >"${HERE}/scripts/lines.sh"
  sandbox::run "${names[@]/%/=/no/such/planted}" KEPT=/no/such/planted PYTHONDONTWRITEBYTECODE=1 scripts/lines.sh
  assert_status 0
  [[ $(grep planted <<<"$output") == KEPT=/no/such/planted ]] || fail 'one of them was kept'
  assert_line PYTHONDONTWRITEBYTECODE=1
}

@test "a key that is not a knob is refused with its line and the nearest knob: local.env, a profile, shell syntax" {
  while IFS='|' read -r key sentence; do
    # shellcheck disable=SC2016  # hostile on purpose
    printf '# mine\n\n%s=$(touch %s/ran)\n' "$key" "$BATS_TEST_TMPDIR" >"${HERE}/env/local.env"
    sandbox::run scripts/show.sh
    assert_status 2
    assert_line "error   ${key} (line 3 of env/local.env) is not a knob: ${sentence} the knobs of env/defaults.env; export other variables before you run the command."
  done <<'CASES'
WORKRES|did you mean WORKERS? Use
COD_ID|did you mean CODE_ID? Use
workers|did you mean WORKERS? Use
BASH_ENV|use
ENV|use
IFS|use
LD_PRELOAD|use
PS4|use
SHELLOPTS|use
TAR_OPTIONS|use
GIT_SSH_COMMAND|use
GIT_CONFIG_COUNT|use
PYTHONSTARTUP|use
PYTHONPATH|use
COMPOSE_FILE|use
CASES
  [[ ! -e ${BATS_TEST_TMPDIR}/ran ]]
  rm "${HERE}/env/local.env"
  printf 'WORKER_GPU=1\n' >"${HERE}/env/mine.env"
  sandbox::run PROFILE=mine scripts/show.sh
  assert_status 2
  assert_line 'error   WORKER_GPU (line 1 of env/mine.env) is not a knob: did you mean WORKER_GPUS? Use the knobs of env/defaults.env; export other variables before you run the command.'
}

@test "a count from the environment is not evaluated as arithmetic" {
  # shellcheck disable=SC2016  # hostile on purpose
  printf '%s\n' 'source "$(dirname "$0")/lib/regress.bash"' 'log::changed x' 'log::verdict x' >"${HERE}/scripts/count.sh"
  sandbox::run "LOG_CHANGES=a[\$(touch ${BATS_TEST_TMPDIR}/ran)]" scripts/count.sh
  assert_status 0
  [[ ! -e ${BATS_TEST_TMPDIR}/ran ]]
}

@test "a line that is not KEY=VALUE is refused with its file" {
  printf 'export WORKERS=3\n' >"${HERE}/env/local.env"
  sandbox::run scripts/show.sh
  assert_status 2
  assert_line "error   'export WORKERS=3' (line 1 of env/local.env) is not a KEY=VALUE line: write one knob per line, no spaces around '='."
}

# bats test_tags=slow
@test "unusable values are refused with their origin, before anything is touched" {
  while IFS='|' read -r setting cure; do
    sandbox::run "$setting" scripts/show.sh
    assert_status 2
    assert_line "error   ${setting%%=*}='${setting#*=}' (from the command line or environment) is not usable: ${cure}."
  done <<'CASES'
WORKERS=0|use a whole number from 1 to 99
DASHBOARD_PORT=99999|use a TCP port from 1024 to 65535
SHM_SIZE=abc|use a size such as 2gb or 512m
WORKER_CPUS=x|use a whole number from 1 to 9999, or leave it empty
WORKER_RESOURCES={bad|use a JSON object of numbers with "worker_node" above 0, such as {"worker_node": 100}
WORKER_RESOURCES={"cpu": 4}|use a JSON object of numbers with "worker_node" above 0, such as {"worker_node": 100}
OBJECT_STORE_BYTES=5|use a whole number from 78643200 to 999999999999999
LIMIT=-1|use a whole number from 1 to 999999
DATASET_SOURCE=foo|use synthetic, hub or path:DIR
MODEL_SOURCE=hub:|use tiny, hub:REPO[@REVISION] or path:DIR
VERL_SOURCE=0.7.1|use pypi:VERSION, git:URL@REF or path:DIR
CODE_A=pypi:|use CODE_ID, pypi:VERSION, git:URL@REF or path:DIR
ONLY=nope|use some of submission, placement, head, outputs, prepare, checkpoints, further, debug, imports, workloads, rules, token, secrets, separated by commas, or leave it empty
ONLY=head plcement|did you mean placement? Use some of submission, placement, head, outputs, prepare, checkpoints, further, debug, imports, workloads, rules, token, secrets, separated by commas, or leave it empty
DRY_RUN=maybe|use 1, true, yes or on, or 0, false, no, off or nothing
WORKLOAD=pppo|did you mean ppo? Use one of grpo, ppo, sft
TRANSPORT=pigeon|use one of container, srun, ssh
PROFILE=rocn|did you mean rocm? Use one of auto, cpu, gpu, rocm
GCS_STORAGE=disk|use one of memory, rocksdb
CLUSTER_NAME=Mine!|use lower-case letters, digits, - and _, at most 40
RUN_AS=me|use numbers, as in 1000:1000 (uid:gid), or leave it empty
WORKER_DEVICES=kfd|use paths under /dev, separated by one space, or leave it empty
RAY_UNSET=a=b|use names of environment variables, separated by one space, or leave it empty
SHARED_ROOT=private|use an absolute path without spaces
WORKDIR=|name a path
NODE_IMAGE=a b|use the name of an image, such as python:3.11, or leave it empty
IMAGE_VERL_VERSION=new|use a version, such as 0.7.1
TORCH_INDEX_URL=pytorch|use a URL that begins with https://, http:// or file://, or leave it empty
MIN_DISK_GIB=a[$(touch x)]|use a whole number from 0 to 999999
MIN_MEMORY_GIB=08|use a whole number from 0 to 999999
IMAGE_PULL_TIMEOUT=|use a whole number from 1 to 999999
TORCH_NCCL_HIGH_PRIORITY=true|use one of 0, 1
TUNNEL_VIA=-x|use user@host or user@host:port, or leave it empty
SHARED_GROUP=a b|use the name or the number of a group, or leave it empty
TRUSTED_UIDS=me|use numbers of users, separated by one space, as in 1000 1001, or leave it empty
BATCH_TIME=$(id)|use only letters, digits and _.,:@+/-, or leave it empty
BATCH_OPTIONS=qos|use options as --name or --name=value, separated by one space, without quotes, or leave it empty
NODES_PATH=bin|use absolute paths without spaces, separated by colons, or leave it empty
NODES_CONTAINER=a;b|use words of letters, digits and _.,:@%+/=#-, separated by one space, without quotes, or leave it empty
CASES
  [[ ! -e x ]]
}

@test "a wrong value of env/local.env is refused with that file" {
  printf 'WORKERS=two\n' >"${HERE}/env/local.env"
  sandbox::run scripts/show.sh
  assert_status 2
  assert_line "error   WORKERS='two' (from env/local.env) is not usable: use a whole number from 1 to 99."
}

@test "a boolean is 1 or nothing from there on, however it was written" {
  tried=0
  while IFS='|' read -r written read; do
    sandbox::run "WAIT=${written}" scripts/show.sh WAIT
    assert_status 0
    assert_line "WAIT=<${read}> from the command line or environment"
    tried=$((tried + 1))
  done <<'CASES'
1|1
true|1
Yes|1
ON|1
0|
false|
No|
OFF|
|
CASES
  [[ $tried == 9 ]]
}

@test "PROFILE=auto is the rehearsal on a machine without devices, and says so" {
  mkdir "${BOX}/dev"
  sandbox::run PROFILE=auto DEVICE_ROOT="${BOX}/dev" scripts/show.sh PROFILE RAY_BASE_CONFIG
  assert_status 0
  assert_line "        No GPU is visible (neither ${BOX}/dev/nvidia<n> nor ${BOX}/dev/kfd), so the profile is cpu: a rehearsal."
  assert_line 'PROFILE=<cpu> from the command line or environment'
  assert_line 'RAY_BASE_CONFIG=<env/ray/cpu.yaml> from env/cpu.env'
}

# bats test_tags=slow
@test "a make command says once that no GPU is visible" {
  mkdir "${BOX}/dev"
  # There is no engine here: of each script we keep only the lines that load the knobs.
  for script in "${HERE}"/scripts/[0-9][0-9]_*.sh; do sed -i '/^env::load/q' "$script"; done
  cp "${REPO}/Makefile" "$HERE"
  ln -s "$(command -v make)" "${BOX}/bin/make"
  for line in 'up prepare submit' 'build check up prepare snapshot' submit; do
    read -ra goals <<<"$line"
    run env -i HOME="${BOX}/home dir" PATH="${BOX}/bin" NO_COLOR=1 DEVICE_ROOT="${BOX}/dev" make --no-print-directory -C "$HERE" "${goals[@]}"
    assert_status 0
    [[ $(grep -c 'No GPU is visible' <<<"$output") == 1 ]] || fail "make ${line} says it $(grep -c 'No GPU is visible' <<<"$output") times"
  done
}

@test "PROFILE=auto takes NVIDIA GPUs that answer" {
  mkdir "${BOX}/dev"
  touch "${BOX}/dev/nvidia0" "${BOX}/dev/nvidiactl"
  stub nvidia-smi
  sandbox::run PROFILE=auto DEVICE_ROOT="${BOX}/dev" scripts/show.sh PROFILE RAY_BASE_CONFIG PROFILE_TITLE
  assert_status 0
  assert_line 'PROFILE=<gpu> from the command line or environment'
  assert_line 'PROFILE_TITLE=<gpu> from env/defaults.env'
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

@test "AMD GPUs that may only be read or only be written are an error, never a silent rehearsal" {
  local bare=()
  # Root may open every file, unless it gives that up.
  ((EUID != 0)) || bare=("$(command -v setpriv)" "--bounding-set=-dac_override,-dac_read_search")
  [[ -z ${bare[*]} ]] || "${bare[@]}" true || skip 'no right of root can be given up here'
  printf 'exec %s bash scripts/show.sh PROFILE\n' "${bare[*]}" >"${HERE}/scripts/bare.sh"
  mkdir "${BOX}/dev"
  for mode in 400 200; do
    : >"${BOX}/dev/kfd"
    chmod "$mode" "${BOX}/dev/kfd"
    sandbox::run PROFILE=auto DEVICE_ROOT="${BOX}/dev" scripts/bare.sh
    assert_status 1
    assert_line "error   ${BOX}/dev/kfd (AMD GPUs) is there but not readable and writable for $(id -un): join its group, or set PROFILE=cpu to rehearse without them."
    refute_text 'env/.env' # the profile without a name
    rm "${BOX}/dev/kfd"
  done
}

@test "a device of NVIDIA's driver that is not a GPU is not counted" {
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
  assert_line "error   ${BOX}/dev has 2 NVIDIA devices but 'nvidia-smi -L' fails: fix the driver, or set PROFILE=cpu to rehearse without them."
  refute_text 'env/.env' # the profile without a name
}
