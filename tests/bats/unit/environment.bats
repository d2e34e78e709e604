#!/usr/bin/env bats
# The environment of a command is ours (scripts/lib/environment.bash): whatever variables a profile, a CI, Conda or Slurm sets, on this host or
# on a node, commands answer as without them.
# shellcheck disable=SC2016  # text in single quotes is expanded when a stub runs, or nowhere

setup() {
  load ../test_helper
  sandbox::make
  ln -s "$(command -v make)" "${BOX}/bin/make"
  printf '%s\n' 'head me@10.0.0.1' 'worker-0 me@10.0.0.2' >"${HERE}/env/nodes"
  mkdir "${BATS_TEST_TMPDIR}/shared"
  printf '%s\n' 'set -o noglob' 'cd() { return 1; }' 'sed() { echo odd; }' >"${BOX}/shell_init"
  stub_ssh
  stub printenv 'printf "%s\n" "$VERL_REGRESS_NODE_IP"'
  # In some locales I is not in [A-Z].
  stub sed "case \$LC_ALL in C | C.UTF-8) exec '$(command -v sed)' \"\$@\" ;; esac; echo \"sed in the locale \$LC_ALL\"; exit 1"
  # It answers only in the environment that is ours.
  stub python3 '[[ ${RAY_ADDRESS-}${RAY_AUTH_TOKEN-}${PYTHONHOME-}${PYTHONWARNINGS-}${GIT_DIR-} == "" && $* == "- ray "* ]] && echo 2.60.0'
}

# odd: NAME=VALUE of what shells, tools, CIs, Conda and Slurm set, each ended by a NUL.
odd() {
  local name file="${BOX}/shell_init"
  printf '%s\0' "BASH_ENV=${file}" "ENV=${file}" 'BASH_FUNC_cd%%=() { return 1; }' 'BASH_FUNC_grep%%=() { echo odd; }' 'BASH_FUNC_ssh%%=() { return 1; }' \
    BASH_COMPAT=3.2 BASH_XTRACEFD=1 BASHOPTS=dotglob:nocasematch:nullglob:xpg_echo SHELLOPTS=allexport:errexit:keyword:noclobber:noglob:nounset \
    POSIXLY_CORRECT=1 CDPATH=/:/tmp 'GLOBIGNORE=*' 'EXECIGNORE=*' FIGNORE=.sh FUNCNEST=1 TMOUT=1 IFS=e TIMEFORMAT=odd PS4='$(touch odd) ' \
    PROMPT_COMMAND=false OPTERR=0 OPTIND=7 REPLY=odd SECONDS=odd LINENO=7 SHELL=/bin/false HOSTNAME=odd COLUMNS=3 LINES=1 MAILCHECK=1 \
    LC_ALL=POSIX LANG=tr_TR.UTF-8 LANGUAGE=tr LC_CTYPE=tr_TR LC_NUMERIC=de_DE LC_COLLATE=ar_SA LC_MESSAGES=lv_LV LOCPATH=/nowhere NLSPATH=/nowhere \
    GREP_OPTIONS=-v GREP_COLOR=1 GREP_COLORS=odd TAR_OPTIONS=--odd TAPE=/dev/null GZIP=--odd XZ_OPT=--odd XZ_DEFAULTS=--odd ZSTD_CLEVEL=odd \
    BLOCK_SIZE=human BLOCKSIZE=7 DF_BLOCK_SIZE=1 DU_BLOCK_SIZE=1 LS_BLOCK_SIZE=1 QUOTING_STYLE=c TIME_STYLE=odd TABSIZE=odd _POSIX2_VERSION=1 \
    AWKPATH=/nowhere AWKLIBPATH=/nowhere JQ_COLORS=odd TMPDIR=/nowhere TMP=/nowhere TEMP=/nowhere TZ=odd PAGER=false EDITOR=false LESS=odd \
    GIT_DIR=/nowhere GIT_WORK_TREE=/nowhere GIT_INDEX_FILE=/nowhere GIT_CONFIG_COUNT=odd GIT_EXEC_PATH=/nowhere GIT_SSH_COMMAND=false GIT_TRACE=1 \
    PYTHONHOME=/nowhere PYTHONSTARTUP=/nowhere PYTHONWARNINGS=error PYTHONOPTIMIZE=2 PYTHONINSPECT=1 PYTHONIOENCODING=odd PYTHONUTF8=0 \
    PYTHONMALLOC=odd PYTHONVERBOSE=1 PYTHONBREAKPOINT=odd PYTHONPLATLIBDIR=odd PYTHONPYCACHEPREFIX=/nowhere \
    PIP_TARGET=/nowhere PIP_USER=1 PIP_PREFIX=/nowhere PIP_REQUIRE_VIRTUALENV=1 PIP_VERBOSE=3 \
    COMPOSE_FILE=odd COMPOSE_PROFILES=odd COMPOSE_PROJECT_NAME=odd BUILDX_BUILDER=odd BUILDKIT_HOST=odd DOCKER_BUILDKIT=0 DOCKER_DEFAULT_PLATFORM=odd/odd \
    RAY_ADDRESS=10.9.9.9:6379 RAY_AUTH_TOKEN=odd RAY_AUTH_MODE=disabled RAY_TMPDIR=/nowhere RAY_RUNTIME_ENV_HOOK=odd RAY_gcs_server_request_timeout_seconds=1 \
    CUDA_LAUNCH_BLOCKING=1 CUDA_INJECTION64_PATH=/nowhere VERL_REGRESS_TRUSTED_UIDS=7 VERL_REGRESS_NODE_IP=10.9.9.9 \
    SLURM_JOB_ID=odd SLURM_NTASKS=7 SLURM_CPUS_PER_TASK=1 SQUEUE_FORMAT=odd SQUEUE_STATES=odd SBATCH_ACCOUNT=odd SRUN_CPUS_PER_TASK=7 SALLOC_PARTITION=odd
  for name in CI GITHUB_ACTIONS GITHUB_WORKSPACE GITHUB_TOKEN RUNNER_TEMP GITLAB_CI CI_PROJECT_DIR JENKINS_URL BUILD_ID JOB_NAME WORKSPACE BUILDKITE \
    CONDA_PREFIX CONDA_SHLVL CONDA_EXE CONDA_DEFAULT_ENV _CE_CONDA VIRTUAL_ENV CC CXX CFLAGS LDFLAGS HOST AR NM SIZE DEBUG VERBOSE NAME VERSION; do
    printf '%s=odd\0' "$name"
  done
}

# check [NAME=VALUE...]: `make check` of nodes that exist already, which runs every kind of command here and there.
check() {
  run env -i -C "$HERE" HOME="${BOX}/home dir" PATH="${BOX}/bin" HOST_ROOT="${BOX}/root" WORKDIR="${BOX}/work dir" "$@" \
    "${BOX}/bin/make" --no-print-directory check NO_COLOR=1 PROFILE=cpu TRANSPORT=ssh SHARED_ROOT="${BATS_TEST_TMPDIR}/shared"
}

# assert_passed: what it prints without any variable of others, and no word more.
assert_passed() {
  diff - <(sed -E "s/[0-9.]+ s\$/… s/; s|${BATS_TEST_TMPDIR}/shared|/private|" <<<"$output") <<'SAID'
==      prerequisites of mvp11 (profile cpu, from the command line or environment)
ok      2 nodes answer: head worker-0 (from env/nodes)
ok      the cluster mvp11 is ours, or not there yet
ok      every node has Ray 2.54 or later
ok      every node has an address of its own: 10.0.0.1 10.0.0.2
ok      Ray's token will not be on /private
ok      5 of 5 checks passed
==      00_prereq_check: done in … s
SAID
}

@test "make check answers the same with all variables of others, here and on nodes" {
  local variables
  mapfile -d '' -t variables < <(odd)
  ((${#variables[@]} > 140))
  odd >"${BOX}/profile"
  check "${variables[@]}"
  assert_passed
}

@test "a clone has the repository's line ends, whatever git is configured to do" {
  local git=(git -C "${BOX}" -c user.name=me -c user.email=me@example.org)
  "${git[@]}" init --quiet .
  cp "${REPO}/.gitattributes" "${HERE}/scripts/00_prereq_check.sh" "$BOX"
  "${git[@]}" add .gitattributes 00_prereq_check.sh
  "${git[@]}" commit --quiet --message=scripts
  git -c core.autocrlf=true -c core.eol=crlf clone --quiet "$BOX" "${BOX}/clone"
  cmp "${BOX}/clone/00_prereq_check.sh" "${REPO}/scripts/00_prereq_check.sh"
}

# bats test_tags=slow
@test "make check answers the same with ten of these variables at a time" {
  local variables ten i
  mapfile -d '' -t variables < <(odd)
  for ((i = 0; i < ${#variables[@]}; i += 10)); do
    ten=("${variables[@]:i:10}")
    printf '%s\0' "${ten[@]}" >"${BOX}/profile"
    check "${ten[@]}"
    assert_passed || fail "${ten[*]}"
  done
}

# bats test_tags=slow
@test "a dry run sends the head the same words, whatever is set" {
  local variables
  printf 'doctor::gate() { :; }\n' >>"${HERE}/scripts/lib/doctor.bash" # it asks all nodes
  stub docker '[[ $1 != inspect ]] || echo true; [[ " $* " != *" submit "* ]] || { printf "%s\n" "$@" >"${BOX}/sent" && cat >/dev/null; }'
  mapfile -d '' -t variables < <(odd)
  sandbox::run DRY_RUN=1 scripts/44_submit_sdk.sh
  assert_status 0
  mv "${BOX}/sent" "${BOX}/expected"
  sandbox::run "${variables[@]}" DRY_RUN=1 scripts/44_submit_sdk.sh
  assert_status 0
  diff "${BOX}/sent" "${BOX}/expected"
}
