#!/usr/bin/env bats
# What a submission sends to the head: each knob as one word, byte for byte, which no shell interprets.

setup() {
  load ../test_helper
  sandbox::make
  printf 'doctor::gate() { :; }\n' >>"${HERE}/scripts/lib/doctor.bash" # it asks all nodes, and here are none
  # An engine whose head has the helper, and records what it gets: the words, each ended by a NUL, and the stream.
  stub docker - <<'SH'
    case "$1" in
      inspect) echo true ;;
      exec)
        [[ " $* " == *" submit "* ]] || exit 0
        printf '%s\0' "$@" >"${BOX}/words"
        cat >"${BOX}/stream"
        ;;
    esac
SH
}

# sent [OPTION | KNOB]: the values that the submission got for that option or knob; without one, its options.
sent() {
  local word
  if [[ ${1-} == [A-Z]* ]]; then
    "${REPO}/.venv/bin/python" -c 'import json, sys
knobs = next(word[8:] for word in open(sys.argv[1]).read().split("\0") if word.startswith("--knobs="))
print(json.loads(knobs, strict=False).get(sys.argv[2], [""])[0], end=".")' "${BOX}/words" "$1"
    return
  fi
  while IFS= read -r -d '' word; do
    [[ $# -gt 0 || $word != --* ]] || printf '%s ' "${word%%=*}"
    [[ $# == 0 || $word != "$1="* ]] || printf '%s.' "${word#*=}" # the dot keeps newlines at the end
  done <"${BOX}/words"
}

@test "CODE_ID=auto is the snapshot of VERL_SOURCE, named by its tree" {
  # shellcheck disable=SC2016  # expanded when the script runs
  printf 'snapshot::ensure() { echo "$1 of $2"; }\n' >>"${HERE}/scripts/lib/snapshot.bash"
  sandbox::run CODE_ID=auto VERL_SOURCE=path:/my/verl scripts/44_submit_sdk.sh
  assert_status 0
  [[ $(sent CODE_ID) == 'verl-{tree} of path:/my/verl.' ]] || fail "$(sent CODE_ID)"
  sandbox::run CODE_ID=auto VERL_SOURCE=path:/my/verl scripts/31_snapshot_verl_code.sh
  assert_line 'verl-{tree} of path:/my/verl'
  # What cannot be taken is not submitted with the code of another job.
  rm "${BOX}/words"
  printf 'snapshot::ensure() { exit 8; }\n' >>"${HERE}/scripts/lib/snapshot.bash"
  sandbox::run CODE_ID=auto PERTURBED=1 scripts/44_submit_sdk.sh
  assert_status 8
  [[ ! -e ${BOX}/words ]]
}

@test "a JobSpec of a megabyte is refused by its size, before it is sent or read" {
  head -c 1000000 /dev/zero | tr '\0' '#' >"${HERE}/big.yaml"
  sandbox::run scripts/44_submit_sdk.sh big.yaml
  assert_error 2 "the JobSpec 'big.yaml' has 1000000 bytes, and at most 262144 are read: is it the right file?"
  [[ ! -e ${BOX}/words ]]
}

# bats test_tags=slow
@test "every script that submits passes on the knobs that are set for a job" {
  for script in 40_submit_ppo_epoch1 41_submit_grpo_epoch1 42_submit_sft_minimal 44_submit_sdk '43_submit_jobspec jobspecs/ppo.yaml'; do
    read -ra words <<<"$script"
    sandbox::run DETERMINISTIC=yes TRAIN_SEED=0 ALLOW_PLAIN_SECRETS=1 "scripts/${words[0]}.sh" "${words[@]:1}"
    assert_status 0
    [[ $(sent DETERMINISTIC) == 1. && $(sent ALLOW_PLAIN_SECRETS) == 1. && $(sent TRAIN_SEED) == 0. ]] || fail "$script"
    sandbox::run DETERMINISTIC=no SEED=5 PERTURBED=1 "scripts/${words[0]}.sh" "${words[@]:1}"
    assert_status 0
    [[ $(sent DETERMINISTIC)$(sent ALLOW_PLAIN_SECRETS)$(sent TRAIN_SEED) == ... ]] || fail "${script} without"
    [[ $(sent PROFILE) == cpu. && $(sent) != *--perturbed* ]] || fail "${script} without"
  done
}

@test "a JobSpec typed outside the checkout is read there, or else from the checkout" {
  mkdir "${BOX}/elsewhere"
  printf 'workload: sft\n' >"${BOX}/elsewhere/my.yaml"
  for spec in my.yaml jobspecs/ppo.yaml; do
    run env -C "${BOX}/elsewhere" -i HOME="${BOX}/home dir" PATH="${BOX}/bin" TMPDIR="${BOX}/tmp" PROFILE=cpu "${BOX}/bin/bash" \
      '../the repo/scripts/44_submit_sdk.sh' "$spec"
    assert_status 0
    tar -xOf "${BOX}/stream" job_spec | diff - "$(cd "$HERE" && realpath -e "${BOX}/elsewhere/${spec}" 2>/dev/null || realpath "${HERE}/${spec}")"
  done
}

# The values: text that a shell would run, split, expand or take for an option; none of them may be run.
hostile() {
  # shellcheck disable=SC2016  # hostile on purpose
  printf '%s\0' '$(touch ran)' '`touch ran`' ';touch ran;' '&& touch ran' '$(touch${IFS}ran)' '${HOME}' '$$' "it's" 'two  spaces' \
    ' led and trailed ' 'a"b' $'back\\slash\\' '*' '~' '{a,b}' '-rf' '--help' '=' '#' '!!' '%s%n' 'é💥' $'two\nlines' $'\a\e[2J' 'a[$(touch ran)]'
}

# promise: passes a value to a shell, or lets make expand it
# bats test_tags=slow
@test "hostile values of six knobs arrive unchanged, and nothing in them is run" {
  while IFS= read -r -d '' value; do
    rm -f "${BOX}/words"
    spec="${BOX}/${value//\//_}.yaml"
    printf 'workload: ppo\n# %s\n' "$value" >"$spec"
    printf '%s' "$value" >"${BOX}/over"
    sandbox::run "OVERRIDES=${value}" "SUBMISSION_ID=${value}" "CODE_ID=${value}" "MODEL=${value}" "DATASET=${value}" \
      "OVERRIDES_FILE=${BOX}/over" scripts/44_submit_sdk.sh "$spec"
    assert_status 0
    for knob in OVERRIDES SUBMISSION_ID CODE_ID MODEL DATASET; do
      [[ $(sent "$knob") == "${value}." ]] || fail "${knob}: '$(sent "$knob")' is not '${value}.'"
    done
    [[ $(sent --spec-name) == "${spec}." ]] || fail 'another name of the JobSpec'
    diff "$spec" <(tar -xOf "${BOX}/stream" job_spec)
    diff "${BOX}/over" <(tar -xOf "${BOX}/stream" overrides)
  done < <(hostile)
  [[ -z $(find "$BATS_TEST_TMPDIR" -name ran) ]] || fail 'a value was run'
}

@test "a dry run sends the request alone: no secret, no doctor, nothing to follow" {
  local script args count=0
  # shellcheck disable=SC2016  # expanded when the script runs
  for say in doctor::gate secret::read_of secret::read_all job::follow; do printf '%s() { echo "called %s"; }\n' "$say" "$say"; done >>"${HERE}/scripts/lib/job.bash"
  for script in "${HERE}"/scripts/[0-9]*.sh; do
    grep -q '^# .*DRY_RUN' "$script" && [[ $script != *slurm.sh ]] || continue # that one has no head to ask
    count=$((count + 1))
    args=() && [[ $script != *jobspec.sh ]] || args=(jobspecs/sft.yaml)
    : >"$CALLS"
    sandbox::run DRY_RUN=yes WAIT=1 JOB=me "scripts/${script##*/}" "${args[@]}"
    assert_status 0
    refute_text 'called '
    ! grep -E -- '--(announce|secrets)' "$CALLS" || fail "$script"
    ! grep -E ' (submit|resume|retry|gc) ' "$CALLS" | grep -vE -- '"DRY_RUN": ?\["1"|--dry-run' || fail "$script"
  done
  ((count == 5)) || fail "${count} scripts"
}

# promise: runs a reward function to check it
@test "a reward function is called only if REWARD_CHECK=1 asks for it" {
  local asked
  printf 'job::_check_reward() { echo called; }\n' >>"${HERE}/scripts/lib/job.bash"
  for asked in '' 1; do
    sandbox::run "REWARD_CHECK=${asked}" scripts/44_submit_sdk.sh
    assert_status 0
    [[ $(grep -c '^called$' <<<"$output") == "${asked:-0}" ]] || fail "REWARD_CHECK=${asked}"
  done
}

# promise: turns Ray's debugger on for a job that did not ask for it
@test "only a job with the debugger gets the address where debugpy listens" {
  local asked
  printf 'nodes::debugger_host() { echo 127.0.0.1; }\n' >>"${HERE}/scripts/lib/lifecycle/container.bash"
  for asked in 0 post-mortem; do
    sandbox::run "DEBUGGER=${asked}" scripts/44_submit_sdk.sh
    assert_status 0
    [[ $(sent --debugger-host) == "$([[ $asked == 0 ]] || echo 127.0.0.1.)" ]] || fail "DEBUGGER=${asked}"
  done
}

@test "an address that may have a password is not sent" {
  local url=https://me:pw@example.org/verl
  sandbox::run "VERL_REPO=git:${url}" "VERL_SOURCE=git:${url}@main" "CODE_A=git:${url}@a" "CODE_B=git:${url}@b" "TORCH_INDEX_URL=${url}" \
    MODEL=mine scripts/44_submit_sdk.sh
  assert_status 0
  [[ $(sent MODEL) == mine. ]] || fail "$(sent MODEL)"
  ! grep -qaF me:pw@ "${BOX}/words" || fail 'the head got the password'
}
