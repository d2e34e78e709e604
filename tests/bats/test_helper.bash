# The hostile sandbox of the unit tests: a copy of the scripts under a path with spaces, an empty HOME with spaces, and a PATH that
# contains only what a test puts there. Copy tests/bats/unit/image.bats to start a new file.
# shellcheck shell=bash

REPO=$(cd "${BATS_TEST_DIRNAME}/../../.." && pwd)
export REPO

# What a minimal Debian has (coreutils and friends); everything else is a stub or absent.
SANDBOX_TOOLS=(awk base64 basename bash cat chmod chown comm cp cut date dirname du env find flock grep gzip head id install ln ls mkdir mkfifo
  mktemp mv numfmt paste printf realpath rm sed seq sh sha256sum sleep sort stat tail tar tee timeout touch tr uname uniq wc xargs)

# sandbox::make: sets BOX (the sandbox), HERE (the copy of the repo) and CALLS (the log of the stubs' calls).
sandbox::make() {
  local tools
  BOX="${BATS_TEST_TMPDIR}/a box with spaces"
  HERE="${BOX}/the repo"
  CALLS="${BOX}/calls"
  mkdir -p "${BOX}/bin" "${BOX}/home dir" "${BOX}/tmp" "${BOX}/root/etc" "${BOX}/root/tmp" "$HERE"
  cp -r "${REPO}"/{scripts,maintain,env,docker,jobspecs,Makefile,requirements-dev.lock} "${REPO}"/docker-compose*.yaml "$HERE"
  ln -s -t "$HERE" -- "${REPO}"/{py,judge,rehearsal} # the largest; no test changes them
  rm -f "${HERE}"/env/{local.env,nodes,hosts}        # the user's own
  : >"$CALLS"
  mapfile -t tools < <(type -P "${SANDBOX_TOOLS[@]}")
  ln -s -t "${BOX}/bin" -- "${tools[@]}"
}

# sandbox::lines [KNOB=VALUE...]: runs the lines on stdin with our libraries and the knobs loaded.
sandbox::lines() {
  # shellcheck disable=SC2016  # expanded when the script runs
  { printf 'source "$(dirname "$0")/lib/regress.bash"\ncli::begin\nenv::load\n' && cat; } >"${HERE}/scripts/lines.sh"
  sandbox::run "$@" scripts/lines.sh
}

# sandbox::verb [KNOB=VALUE...] WORD...: runs the words as a command of our libraries, with the knobs loaded.
sandbox::verb() {
  local knobs=()
  while [[ ${1-} == *=* ]]; do knobs+=("$1") && shift; done
  # shellcheck disable=SC2016  # expanded when the script runs
  printf 'source "$(dirname "$0")/lib/regress.bash"\ncli::begin\nenv::load\n"$@"\n' >"${HERE}/scripts/verb.sh"
  sandbox::run "${knobs[@]}" scripts/verb.sh "$@"
}

# stub NAME [BODY]: a command that logs its arguments and then runs BODY (- : what is on stdin), which can use BOX.
stub() {
  local body=${2:-}
  [[ $body != - ]] || body=$(cat)
  rm -f "${BOX}/bin/$1"
  {
    printf '#!/bin/bash\nBOX=%q\n' "$BOX"
    # shellcheck disable=SC2016  # expanded when the stub runs
    printf 'printf "%%s\\n" "%s $*" >>"${BOX}/calls"\n%s\n' "$1" "$body"
  } >"${BOX}/bin/$1"
  chmod +x "${BOX}/bin/$1"
}

# fake_engine: docker with the containers that `engine_has` says, all of which run; a command in one does nothing. What it answers otherwise
# are branches of a `case` over its words, on stdin: *' leftovers '*) echo 0 ;;
fake_engine() {
  touch "${BOX}/containers"
  stub docker - < <(
    printf 'case "$*" in\n%s\n' "$(cat)"
    cat <<'STUB'
  'inspect --format {{.Name}}|'*) cat "${BOX}/containers" ;;
  'inspect --format {{'*'.State.Running'*)
    grep -q "^/${!#}|" "${BOX}/containers" || exit 1
    [[ $* == *StartedAt* ]] && echo true since || echo true
    ;;
esac
STUB
  )
}

# engine_has CLUSTER OWNER_ID WORKDIR [NODE...]: the containers of the fake engine, and whose they are.
engine_has() {
  local node
  for node in "${@:4}"; do printf '/%s-%s|true|since|10.0.0.1 |%s|%s|me|%s||\n' "$1" "$node" "$1" "$2" "$3"; done >"${BOX}/containers"
}

# stub_ssh: ssh runs the words on this machine, with the host that was asked for in HOST, by a login shell that greets first and has the
# variables of the file "profile". Logins are those of me; 10.0.0.9 refuses them.
stub_ssh() {
  stub ssh - <<'STUB'
    said=/dev/null
    until [[ $1 == -- ]]; do
      case $1 in
        -F | -p | -o) shift ;;
        -E) said=$2 && shift ;;
        -G) echo "hostname ${HOST}" && exit ;;
        -O) [[ $HOST != 10.0.0.9 ]] && exit ;;
        me@* | gpu-*) export HOST=${1#me@} ;;
      esac
      shift || { echo "me@${HOST}: Permission denied (publickey)." >"$said" && exit 255; }
    done
    export SSH_CONNECTION="10.0.0.254 40000 ${ADDRESS:-$HOST} 22"
    printf "Welcome to ${HOST}" && echo 'module loaded' >&2
    mapfile -d '' -t profile <"${BOX}/profile"
    exec env "${profile[@]}" bash -c "${*:2}"
STUB
  : >"${BOX}/profile"
}

# stub_slurm: Slurm's commands, and a step that runs the words on this machine: the job 3012 has the hosts gpu-0, gpu-1 and gpu-2, whose
# addresses are 10.0.0.0 to 10.0.0.2. The files "job", "hosts" and "gpus" say what it says; "lost" makes each step fail.
# shellcheck disable=SC2016  # expanded when a stub runs
stub_slurm() {
  stub squeue 'cat "${BOX}/job" 2>/dev/null || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }'
  stub scontrol '[[ $2 != hostnames ]] && printf "NodeName=gpu-%s Arch=x NodeAddr=gpu-%s Version=22\n" 0 0 1 1 2 2 || printf "%s\n" gpu-0 gpu-1 gpu-2 | head -n "$(cat "${BOX}/hosts")"'
  stub srun - <<'STUB'
    error=/dev/stderr status=0
    while [[ $1 == --* ]]; do
      case $1 in
        --nodelist=*) export ON=${1#*=} ;;
        --error=*) error=${1#*=} ;;
        --export=*) IFS=, read -r -a names <<<"${1#*=}" ;;
      esac
      shift
    done
    [[ ! -e ${BOX}/lost ]] || { echo "srun: error: Node failure on ${ON}" >&2; exit 143; }
    words=(env -i)
    for name in "${names[@]}"; do [[ ! -v $name ]] || words+=("${name}=${!name}"); done
    [[ ! -e ${BOX}/gpus ]] || words+=({ROCR_VISIBLE_DEVICES,SLURM_STEP_GPUS}="$(<"${BOX}/gpus")") # Slurm's own
    "${words[@]}" "$@" 2>>"$error" || status=$?
    ((status == 0)) || echo "srun: error: ${ON}: task 0: Exited with exit code ${status}" >&2
    exit "$status"
STUB
  stub getent 'printf "10.0.0.%s STREAM x\n" "${2#gpu-}"'
  printf 'RUNNING|gpu-[0-2]\n' >"${BOX}/job"
  echo 3 >"${BOX}/hosts"
}

# sandbox::venv: the copy has a .venv that needs nothing; its python is the stub "venv_python", created with `stub` afterwards.
sandbox::venv() {
  stub python3 '[[ $* != --version ]] || echo "Python 3.11.7"'
  mkdir -p "${HERE}/.venv/bin"
  ln -sf "${BOX}/bin/venv_python" "${HERE}/.venv/bin/python"
  stub venv_python
  printf '%s Python 3.11.7\n' "$(sha256sum <"${HERE}/requirements-dev.lock")" >"${HERE}/.venv/.stamp"
}

# real_python: this machine's Python, which the PATH of the sandbox does not have.
real_python() { python3 -c 'import os, sys; print(os.path.realpath(sys.executable))'; }

# fake_ray DIRECTORY VERSION: a Python with DIRECTORY in its PYTHONPATH has that Ray.
fake_ray() {
  rm -rf "$1"
  mkdir -p "$1/ray-$2.dist-info"
  printf 'Metadata-Version: 2.1\nName: ray\nVersion: %s\n' "$2" >"$1/ray-$2.dist-info/METADATA"
}

# sandbox::run [KNOB=VALUE...] SCRIPT ARG...: runs a script of the copy, in the copy, with a clean environment. It may leave no
# temporary folder.
sandbox::run() {
  local knobs=(PROFILE=cpu NO_COLOR=1 WORKDIR="${BOX}/work dir") folder
  local -A before=()
  for folder in "${BOX}"/tmp/verl-regress.*; do before[$folder]=1; done
  while [[ $1 == *=* ]]; do
    knobs+=("$1")
    shift
  done
  run env --chdir="$HERE" -i HOME="${BOX}/home dir" PATH="${BOX}/bin" TMPDIR="${BOX}/tmp" HOST_ROOT="${BOX}/root" "${knobs[@]}" \
    "${BOX}/bin/bash" "${HERE}/$1" "${@:2}"
  for folder in "${BOX}"/tmp/verl-regress.*; do
    [[ ! -e $folder || -n ${before[$folder]:-} ]] || fail "left: ${folder} with $(ls "$folder")"
  done
}

# Assertions about bats' $status and $output; each prints what it saw.
assert_status() { [[ ${status-} == "$1" ]] || fail "exit status ${status-}, not $1"; }
assert_line() { grep -qxF -- "$1" <<<"${output-}" || fail "no line: $1"; }
assert_error() { assert_status "$1" && assert_line "error   $2"; }
refute_text() { [[ ${output-} != *"$1"* ]] || fail "unwanted: $1"; }
assert_called() { grep -qF -- "$1" "$CALLS" || fail "not called: $1; calls: $(<"$CALLS")"; }
refute_called() { ! grep -qF -- "$1" "$CALLS" || fail "called: $1; calls: $(<"$CALLS")"; }

fail() {
  printf '%s\n--- output\n%s\n' "$1" "${output:-}" >&2
  return 1
}
