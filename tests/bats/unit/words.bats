#!/usr/bin/env bats
# Unknown words are refused before anything happens: script arguments, and what make is given. Known ones arrive byte for byte, and
# neither make nor a shell interprets a value.

setup() {
  load ../test_helper
  sandbox::make
  ln -sf "$(real_python)" "${BOX}/bin/python3"
  ln -s "$(command -v make)" "${BOX}/bin/make"
  ln -s "$(command -v printenv)" "${BOX}/bin/printenv"
  stub docker
}

# with_recorder SCRIPT...: those scripts only record the knobs that they get, after the checks that every script starts with.
with_recorder() {
  local script
  for script in "$@"; do
    cat >"${HERE}/scripts/${script}.sh" <<'SH'
source "$(dirname "$0")/lib/regress.bash"
cli::accept '--engine --gate --quickstart' "$@"
knob::read
for knob in "${KNOB_NAMES[@]}"; do [[ ! -v $knob ]] || printf '%s=%s\0' "$knob" "${!knob}"; done >>"$RECORD"
printf '%s\n' "$0" >>"${RECORD}.scripts"
SH
  done
}

# make_in [VARIABLE=VALUE...] -- WORD...: make, in the copy, with an otherwise clean environment.
make_in() {
  local environment=()
  while [[ $1 != -- ]]; do environment+=("$1") && shift; done
  run env -i -C "$HERE" HOME="${BOX}/home dir" PATH="${BOX}/bin" TMPDIR="${BOX}/tmp" NO_COLOR=1 RECORD="${BOX}/record" \
    "${environment[@]}" "${BOX}/bin/make" --no-print-directory "${@:2}"
}

# arrived KNOB: its value in the last script, and a dot that keeps newlines at its end.
arrived() {
  local entry value=''
  while IFS= read -r -d '' entry; do [[ $entry != "$1="* ]] || value=${entry#*=}; done <"${BOX}/record"
  printf '%s.' "$value"
}

# promise: guesses a misspelt argument, knob or target
@test "an unknown script argument is refused, without what may be a secret" {
  while IFS='|' read -r script argument sentence; do
    sandbox::run "scripts/${script}" "$argument"
    assert_status 2
    [[ ${lines[0]} == "error   '${argument%%=*}${sentence}" ]] || fail "not: '${argument%%=*}${sentence}"
  done <<'CASES'
70_gc.sh|--keep=1|=…' is not an argument of 70_gc.sh: see --help, and give knobs before the command, as in 'WORKERS=3 ...'.
44_submit_sdk.sh|WANDB_API_KEY=secret|=…' is not an argument of 44_submit_sdk.sh: see --help, and give knobs before the command, as in 'WORKERS=3 ...'.
dev/knob_table.sh|--wirte|' is not an argument of knob_table.sh: see --help.
CASES
  sandbox::run scripts/44_submit_sdk.sh one.yaml two.yaml
  assert_error 2 '44_submit_sdk.sh takes one argument and got 2: see --help.'
  refute_called docker
}

# promise: guesses a misspelt argument, knob or target
@test "make: a knob that does not exist is refused by name, never with its value" {
  with_recorder 50_status
  while IFS='|' read -r given sentence; do
    make_in -- status "$given"
    assert_error 2 "${given%%=*} (on make's command line) is ${sentence}."
    refute_text geheim
  done <<'CASES'
WORKER=3|not a knob: did you mean WORKERS? Use the knobs of env/defaults.env; export other variables, such as secrets, before you run the command
HF_TOKEN=geheim|not a knob: use the knobs of env/defaults.env; export other variables, such as secrets, before you run the command
FOO=$(shell touch ran)|not a knob: use the knobs of env/defaults.env; export other variables, such as secrets, before you run the command
NCCL_DEBUG=INFO|no longer a knob: the workers get it from a line 'export NCCL_DEBUG=…' in env/local.env
CASES
  [[ ! -e ${BOX}/record && -z $(find "$BATS_TEST_TMPDIR" -name ran) ]]
}

@test "make: a knob that other programs use counts only on the command line" {
  with_recorder 30_prepare_data_and_model
  make_in SEED=none JSON=yes WORKERS=4 -- prepare SEED=7 DATASET=sums
  assert_status 0
  [[ $(arrived SEED)$(arrived DATASET)$(arrived JSON)$(arrived WORKERS) == 7.sums..4. ]] || fail 'others'
  # shellcheck disable=SC2016  # expanded by that script
  printf '%s\n' 'source "$(dirname "$0")/lib/regress.bash"' cli::begin env::load 'echo "SEED=${SEED} JSON=${JSON}"' >"${HERE}/scripts/58_jobs.sh"
  make_in PROFILE=cpu NCCL_DEBUG=info TOKENIZERS_PARALLELISM=True SEED=none JSON=yes -- jobs
  assert_status 0
  assert_line 'SEED=1 JSON='
  refute_text warning
}

# bats test_tags=slow
@test "make: every target refuses unknown knobs of the command line and env/local.env" {
  local target targets
  mapfile -t targets < <(sed -nE 's/^([a-z][a-z-]*):.*## .*/\1/p' "${HERE}/Makefile")
  ((${#targets[@]} > 20))
  for target in "${targets[@]}"; do
    make_in -- "$target" WORKER=3
    assert_status 2
    [[ $output == "error   WORKER (on make's command line) is not a knob: "* ]] || fail "make ${target}"
  done
  printf 'WORKER=3\n' >"${HERE}/env/local.env"
  for target in "${targets[@]}"; do
    make_in -- "$target"
    assert_status 2
    [[ $output == 'error   WORKER (line 1 of env/local.env) is not a knob: '* ]] || fail "make ${target}"
  done
  refute_called docker
  rm "${HERE}/env/local.env"
  make_in WORKER=3 workers=3 -- version
  assert_status 0
}

# promise: guesses a misspelt argument, knob or target
@test "make: a word that is no target is refused before the first target runs" {
  with_recorder 50_status
  mkdir "${HERE}/tests"
  make_in -- status prepar
  assert_error 2 "'prepar' is not a target of make: did you mean prepare? Use one of those that 'make' lists."
  make_in -- tests
  assert_error 2 "'tests' is not a target of make: did you mean test? Use one of those that 'make' lists."
  make_in -- -k nonsense status
  assert_error 2 "'nonsense' is not a target of make: use one of those that 'make' lists."
  [[ ! -e ${BOX}/record ]]
}

@test "make: variables of make, the shell and tools are accepted; scripts know which" {
  with_recorder 50_status
  # shellcheck disable=SC2016  # expanded by that script
  printf '%s\n' 'printf "given: %s\n" "$MAKE_GIVEN"' >>"${HERE}/scripts/50_status.sh"
  make_in -- status SHELL=/bin/bash PATH="${BOX}/bin" LANG=C LC_ALL=C TERM=dumb NO_COLOR=1 CI=1 CONTAINER_HOST=unix:///x DOCKER_HOST=unix:///x \
    PIP_INDEX_URL=x HF_HOME=/x https_proxy=x NO_PROXY=x MAKEFLAGS=-s LIMIT=1
  assert_status 0
  [[ $output == 'given: '*LIMIT* && $output == *https_proxy* ]] || fail 'another list'
}

# promise: passes a value to a shell, or lets make expand it
# bats test_tags=slow
@test "make: every knob arrives byte for byte, and neither make nor a shell reads it" {
  with_recorder 44_submit_sdk
  tried=0
  while IFS= read -r -d '' value; do
    rm -f "${BOX}/record"
    make_in -- submit "OVERRIDES=${value}" "JOBSPEC=${value}" "MODEL=${value}" "CODE_ID=${value}"
    assert_status 0
    for knob in OVERRIDES JOBSPEC MODEL CODE_ID; do
      [[ $(arrived "$knob") == "${value}." ]] || fail "${knob}: '$(arrived "$knob")' is not '${value}.'"
      tried=$((tried + 1))
    done
    rm -f "${BOX}/record"
    make_in "OVERRIDES=${value}" -- submit
    [[ $(arrived OVERRIDES) == "${value}." ]] || fail "from the environment: '$(arrived OVERRIDES)' is not '${value}.'"
  done < <(
    # shellcheck disable=SC2016  # hostile on purpose
    printf '%s\0' '$(shell touch ran)' 'a=${b}' '$$' '$(touch ran)' '`touch ran`' 'x.yaml; touch ran' 'my dir/x.yaml' '$' '$(error x)' \
      "it's" 'a"b' 'a#b' 'a # b' 'back\\slash'\\ $'two\nlines' $'a\n\ttouch ran' 'behind  ' '*' '${' '%' ':=' '@x' '-x' '!touch ran' 'é💥' ''
  )
  [[ -z $(find "$BATS_TEST_TMPDIR" -name ran) ]] || fail 'a value was run'
  printf '# %d values, none run\n' "$tried" >&3
  ((tried >= 100))
}

# bats test_tags=slow
@test "make quickstart: waits unless WAIT is given, with the user's profile" {
  with_recorder dev/bootstrap_host 05_choose_gpus 10_build_image 00_prereq_check 01_up 20_start_head 12_install_py_deps 11_doctor 21_start_workers \
    30_prepare_data_and_model 31_snapshot_verl_code 44_submit_sdk 53_fidelity 50_status dev/phases
  sed -i 's|/lib/regress|/../lib/regress|' "${HERE}"/scripts/dev/{bootstrap_host,phases}.sh
  make_in PROFILE=gpu -- quickstart
  assert_status 0
  [[ $(arrived PROFILE)$(arrived WAIT) == gpu.1. ]]
  rm "${BOX}/record"
  make_in -- quickstart PROFILE=gpu WAIT=
  [[ $(arrived PROFILE)$(arrived WAIT) == gpu.. ]]
}

@test "a wrong value ends each target with one sentence and status 2 before it begins" {
  for target in check quickstart up; do
    make_in -- "$target" WORKERS=0
    assert_error 2 "WORKERS='0' (from the command line or environment) is not usable: use a whole number from 1 to 99."
  done
  refute_called docker
  [[ ! -e ${HERE}/.venv && ! -e ${HERE}/workdir ]]
}
