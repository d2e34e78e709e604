#!/usr/bin/env bats
# What a submission sends to the head for a knob that is one word.

setup() {
  load ../test_helper
  sandbox::make
  # An engine whose head has the helper, and records the words that it gets, one per line.
  stub docker - <<'SH'
    case "$1" in
      inspect) echo true ;;
      exec)
        [[ " $* " == *" submit "* ]] || exit 0
        printf '%s\n' "$@" >"${BOX}/words"
        cat >/dev/null
        ;;
    esac
SH
}

# is_sent WORD: the submission got that word, once.
is_sent() { [[ $(grep -cxF -- "$1" "${BOX}/words") == 1 ]]; }

# bats test_tags=slow
@test "every script that submits passes DETERMINISTIC on if it is 1, and only then" {
  for script in 40_submit_ppo_epoch1 41_submit_grpo_epoch1 42_submit_sft_minimal 44_submit_sdk '43_submit_jobspec jobspecs/ppo.yaml'; do
    read -ra words <<<"$script"
    for value in 1 yes; do
      rm -f "${BOX}/words"
      sandbox::run DETERMINISTIC="$value" "scripts/${words[0]}.sh" "${words[@]:1}"
      assert_status 0
      is_sent --deterministic || fail "${script} with DETERMINISTIC=${value}"
    done
    for value in '' 0 no; do
      rm -f "${BOX}/words"
      sandbox::run DETERMINISTIC="$value" "scripts/${words[0]}.sh" "${words[@]:1}"
      assert_status 0
      is_sent --profile=cpu || fail "${script} submitted nothing"
      ! is_sent --deterministic || fail "${script} with DETERMINISTIC=${value}"
    done
  done
}

@test "CODE_ID=auto is the snapshot of VERL_SOURCE, named by its tree" {
  # shellcheck disable=SC2016  # expanded when the script runs
  printf 'snapshot::ensure() { echo "$1 of $2"; }\n' >>"${HERE}/scripts/lib/snapshot.bash"
  sandbox::run CODE_ID=auto VERL_SOURCE=path:/my/verl scripts/44_submit_sdk.sh
  assert_status 0
  is_sent '--code-id=verl-{tree} of path:/my/verl' || fail "$(<"${BOX}/words")"
  sandbox::run CODE_ID=auto VERL_SOURCE=path:/my/verl scripts/31_snapshot_verl_code.sh
  assert_line 'verl-{tree} of path:/my/verl'
}

@test "a JobSpec of a megabyte is refused by its size, before it is sent or read" {
  head -c 1000000 /dev/zero | tr '\0' '#' >"${HERE}/big.yaml"
  sandbox::run scripts/44_submit_sdk.sh big.yaml
  assert_status 2
  assert_line "error   the JobSpec 'big.yaml' has 1000000 bytes, and at most 262144 are read: is it the right file?"
  [[ ! -e ${BOX}/words ]]
}

# bats test_tags=slow
@test "Ctrl-C while a job is being submitted, and once more: the id is said, then that the job is submitted" {
  sed -i 's/^ *cat >.dev.null$/cat >\/dev\/null; sleep 1; echo my-id; sleep 1; echo my-id/' "${BOX}/bin/docker" # rule-ok: the head takes its time
  run "$(real_python)" - "$BOX" "$HERE" <<'PYTHON'
import os, signal, subprocess, sys, time
box, here = sys.argv[1:]
environ = {"HOME": box, "PATH": f"{box}/bin", "TMPDIR": f"{box}/tmp", "HOST_ROOT": f"{box}/root", "PROFILE": "cpu", "WORKDIR": f"{box}/work"}
undo = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell in the background ignores it
job = subprocess.Popen([f"{box}/bin/bash", "scripts/44_submit_sdk.sh"], cwd=here, env=environ, start_new_session=True, preexec_fn=undo)
while not os.path.exists(f"{box}/words"):
    time.sleep(0.01)
for _ in range(3):
    os.killpg(job.pid, signal.SIGINT)
    time.sleep(0.2)
sys.exit(job.wait())
PYTHON
  assert_status 130
  said=$(grep -n my-id <<<"$output" | cut -d: -f2-)
  [[ $said == "        my-id is being submitted: 'make wait JOB=my-id' follows it, 'make stop JOB=my-id' ends it"$'\n''        my-id is submitted and keeps running' ]] || fail 'something else was said'
}

# bats test_tags=slow
@test "every script that submits passes TRAIN_SEED and PERTURBED on if they are set, and only then" {
  for script in 40_submit_ppo_epoch1 41_submit_grpo_epoch1 42_submit_sft_minimal 44_submit_sdk '43_submit_jobspec jobspecs/ppo.yaml'; do
    read -ra words <<<"$script"
    for value in 0 2147483647; do
      rm -f "${BOX}/words"
      sandbox::run TRAIN_SEED="$value" PERTURBED=1 "scripts/${words[0]}.sh" "${words[@]:1}"
      assert_status 0
      is_sent "--seed=${value}" || fail "${script} with TRAIN_SEED=${value}"
      is_sent --perturbed || fail "${script} with PERTURBED=1"
    done
    rm -f "${BOX}/words"
    sandbox::run SEED=5 PERTURBED=0 "scripts/${words[0]}.sh" "${words[@]:1}"
    assert_status 0
    is_sent --profile=cpu || fail "${script} submitted nothing"
    ! grep -qE -- '^--(seed|perturbed)' "${BOX}/words" || fail "${script} without TRAIN_SEED and PERTURBED"
  done
}

@test "TRAIN_SEED is a whole number that torch, numpy and vLLM take" {
  for value in -1 2147483648 1e3 three; do
    sandbox::run TRAIN_SEED="$value" scripts/44_submit_sdk.sh
    assert_status 2
    assert_line "error   TRAIN_SEED='${value}' (from the command line or environment) is not usable: use a whole number from 0 to 2147483647, or leave it empty."
    [[ ! -e "${BOX}/words" ]] || fail 'it was submitted'
  done
}

@test "DETERMINISTIC is a boolean" {
  sandbox::run DETERMINISTIC=full scripts/44_submit_sdk.sh
  assert_status 2
  assert_line "error   DETERMINISTIC='full' (from the command line or environment) is not usable: use 1, true, yes or on, or 0, false, no, off or nothing."
  [[ ! -e "${BOX}/words" ]] || fail 'it was submitted'
}
