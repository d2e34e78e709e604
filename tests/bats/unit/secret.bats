#!/usr/bin/env bats
# The values of a JobSpec's secrets on their way from this machine to the head's stdin; this machine's own Python plays the head.

setup() {
  bats_require_minimum_version 1.5.0
  REPO=$(cd "${BATS_TEST_DIRNAME}/../../.." && pwd)
  SPEC="${BATS_TEST_TMPDIR}/my spec.yaml"
  export HOME="${BATS_TEST_TMPDIR}/my home" PYTHONDONTWRITEBYTECODE=1
  mkdir -p "$HOME"
  unset MAKEFLAGS MAKE_GIVEN
}

# spec LINE...: a JobSpec with these secrets.
spec() { printf '%s\n' 'workload: ppo' 'secrets:' "$@" >"$SPEC"; }

# sent [BASH OPTION...]: what would go to the head in front of the tar, with | for each NUL. Messages go to stderr.
sent() {
  # shellcheck disable=SC2016  # expanded by the shell that is started here
  run --separate-stderr bash "$@" -c '
    source "$1/scripts/lib/regress.bash" && cli::begin && ENV_ORIGIN[WORKLOAD]=env
    export WORKLOAD=ppo && NOT_EXPORTED=sk-not-exported
    helper::run_in() { shift && "${REPO_DIR}/.venv/bin/python" "${REPO_DIR}/py/run.py" --shared-root / "$@"; }
    eval "$3"
    open=(/proc/$$/fd/*)
    secret::read_all "my.yaml" helper::run_in head secrets --spec-name "my.yaml" <"$2"
    left=(/proc/$$/fd/*) && [[ ${left[*]} == "${open[*]}" ]] || exit 9 # a file is still open
    secret::print_all | tr "\0" "|"' scripts/any "$REPO" "$SPEC" "${FIRST-}"
}

refused() {
  [[ $status == 2 && -z $output ]] || { printf '%s: %s\n%s\n' "$status" "$output" "$stderr" >&2 && false; }
  grep -qxF -- "error   $1" <<<"$stderr" || { printf 'no line: %s\n%s\n' "$1" "$stderr" >&2 && false; }
  [[ $stderr != *0123456789* ]]
}

# refused_file FILE REST: "FILE, the file of the secret API_KEY (from my.yaml), REST".
refused_file() { refused "$1, the file of the secret API_KEY (from my.yaml), $2"; }

@test "a variable and a file arrive unchanged, except for the newline at the file's end" {
  spec '- name: API_KEY' '- {name: HF_TOKEN, file: ~/to ken}' '- {name: PEM, file: ~/pem}'
  # shellcheck disable=SC2016  # nothing is expanded, which is the point
  local hostile='hf_$(touch x)`"\n'
  printf '%s\n' "$hostile" >"${HOME}/to ken"
  printf 'one\ntwo  \n\n' >"${HOME}/pem"
  API_KEY=$'sk=01\n2 *' sent
  [[ $status == 0 ]]
  [[ $output == *"HF_TOKEN=${hostile}|"* ]]
  [[ $output == *$'API_KEY=sk=01\n2 *|'* && $output == *$'PEM=one\ntwo  |'* && $output == *'||' ]]
}

# promise: writes a secret into a file of the job, a log, an argument, an export or Ray
@test "a trace of the script (set -x) does not show them" {
  spec '- name: API_KEY' '- {name: HF_TOKEN, file: ~/token}'
  printf 'hf_0123456789\n' >"${HOME}/token"
  API_KEY=sk-0123456789 sent -x
  [[ $status == 0 && $output == *sk-0123456789* && $output == *hf_0123456789* ]]
  [[ $stderr == *'secret::read_all'* && $stderr != *0123456789* ]]
}

@test "a JobSpec without secrets sends nothing" {
  printf 'workload: ppo\n' >"$SPEC"
  sent
  [[ $status == 0 && -z $output ]]
}

# bats test_tags=slow
@test "a variable that is not in the environment, or only in our own script" {
  spec '- name: API_KEY'
  sent
  refused "The secret API_KEY (from my.yaml) is not in the environment: export API_KEY before you run make, or give it a 'file: PATH' in the JobSpec."
  for name in NOT_EXPORTED WORKLOAD _SECRET_VALUES; do
    spec "- name: ${name}"
    sent
    refused "The secret ${name} (from my.yaml) is not in the environment: export ${name} before you run make, or give it a 'file: PATH' in the JobSpec."
  done
}

@test "a variable on make's command line" {
  spec '- name: API_KEY'
  MAKE_GIVEN='WAIT API_KEY' API_KEY=sk-0123456789 sent
  refused "The secret API_KEY (from my.yaml) is on make's command line, where the process list and the shell's history show it: export it instead, and replace the secret."
}

# bats test_tags=slow
@test "a file that is not there; its name may be a value, and is not repeated" {
  spec '- {name: API_KEY, file: sk-0123456789}'
  sent
  refused 'The file of the secret API_KEY (from my.yaml) is not a readable file on this machine: name one that is.'
}

# promise: gives your token or secrets to another user of the shared root who writes the JobSpec
# bats test_tags=slow
@test "a file of another user stays on this machine, and one too large is only named" {
  local theirs=/etc/passwd owner=0
  if ((EUID == 0)); then
    theirs="${HOME}/theirs" owner=4242
    printf x >"$theirs" && chown "$owner" "$theirs"
  fi
  spec "- {name: API_KEY, file: '${theirs}'}"
  sent
  refused "The file of the secret API_KEY (from my.yaml) belongs to user ${owner}, not to you: name a file of your own."
  spec '- {name: API_KEY, file: ~/large}'
  head -c 99999 /dev/zero | tr '\0' x >"${HOME}/large"
  sent
  [[ $status == 0 && ${#output} == 65547 ]]
  printf 'sk-\0-123' >"${HOME}/large"
  sent
  refused 'The file of the secret API_KEY (from my.yaml) has a NUL byte, which no environment variable can contain: name a text file.'
  if ((EUID == 0)); then
    spec '- {name: API_KEY, file: /etc/passwd}'
    sent
    refused_file /etc/passwd 'is where root owns the files of the system: name a file in a directory of your own.'
  fi
}

# promise: gives your token or secrets to another user of the shared root who writes the JobSpec
# bats test_tags=slow
@test "a file behind a link is refused with the real path; HOME may be a link" {
  mkdir -p "${HOME}/real/deep"
  printf 'sk-0123456789\n' >"${HOME}/real/deep/key"
  ln -s real "${HOME}/link"
  spec '- {name: API_KEY, file: ~/link/deep/key}'
  sent
  refused_file "${HOME}/link/deep/key" "is a link or behind one, which may lead anywhere: name ${HOME}/real/deep/key if that is what you want to send."
  ln -s "${HOME}/real" "${BATS_TEST_TMPDIR}/home"
  # shellcheck disable=SC2088  # the tilde is for the JobSpec
  for file in '~/deep/key' key; do
    spec "- {name: API_KEY, file: ${file}}"
    cd "${BATS_TEST_TMPDIR}/home/deep"
    HOME="${BATS_TEST_TMPDIR}/home" sent
    [[ $status == 0 && $output == 'API_KEY=sk-0123456789||' ]]
  done
}

@test "a JobSpec that the schema refuses is refused before any value is read" {
  spec '- {name: API_KEY, value: sk-0123456789}'
  sent
  refused "secrets[0] in my.yaml is not usable: secrets is a list of names, each '- name: WANDB_API_KEY' (upper case, the variable of that name) or also with 'file: PATH' (a file on this machine), and never has a value."
}

@test "the secrets of a session are in no trace" {
  spec '- {name: API_KEY}'
  # shellcheck disable=SC2016  # expanded by the shell that is started here
  run --separate-stderr env API_KEY=sk-0123456789 BASH_ENV= bash -x -c '
    source "$1/scripts/lib/regress.bash" && cli::begin
    helper::run_in() { printf "API_KEY\0\0"; }
    cli::temp_dir VERIFY_FILES && VERIFY_SECRETS=() VERIFY_MEMBERS=() VERIFY_ARGS=()
    verify::_collect_spec "$2"
    { verify::_feed && : after; } | tr "\0" "|" | head -c 40' scripts/any "$REPO" "$SPEC"
  [[ $output == 'API_KEY=sk-0123456789||job_spec0'* ]]
  [[ $stderr != *sk-0* && $stderr != *"$(printf sk-0 | base64)"* && $stderr == *': after'* ]]
}
