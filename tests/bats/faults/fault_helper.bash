# Faults on a real cluster with a real job. One test is one fault:
#
#   fault::train 'the driver is killed' 6        an SFT job of six steps, followed by `make wait`; returns after its first step
#   fault::inject docker exec …                  the fault; the clock starts here
#   fault::reports 3 'error   …'                 `make wait` exits with this status and line (an extended regular expression)
#   fault::recovered                             `make up` repairs the cluster, finished jobs are unchanged, the record is written
# shellcheck shell=bash
source "${BASH_SOURCE[0]%/*}/../container/container_helper.bash"
source "${BASH_SOURCE[0]%/*}/../container/weights.bash"
source "${REPO}/scripts/lib/wait.bash"

# One JSON object per line; maintain/reliability.py makes maintain/reliability.md of them.
FAULT_RECORD="${REPO}/build/reports/reliability.jsonl"

# fault::use NAME PORT: the cluster of this file, vrfault-NAME.
fault::use() {
  container::use "$1" "$2" vrfault
  export SHARED_ROOT=/private
}

# fault::cluster: two workers are ALIVE; data, model, codeA and a job that is over exist: no fault may change that job.
fault::cluster() {
  container::cluster
  [[ -n $(fault::finished) ]] ||
    WAIT=1 OVERRIDES=data.train_files=/etc/hostname scripts/42_submit_sft_minimal.sh >"${BATS_FILE_TMPDIR}/first" 2>&1 || [[ $? == 3 ]]
}

# fault::down: removes the cluster of this file; for teardown_file.
fault::down() { make --no-print-directory down FORCE=1 >/dev/null 2>&1; }

# fault::train NAME STEPS [OVERRIDE...]: see above.
fault::train() {
  fault::submit "$@"
  fault::await fault::has_step 1
}

# The trainer ends after total_epochs, whatever total_training_steps says.
FAULT_EPOCHS='trainer.total_epochs=999'

# fault::submit NAME STEPS [OVERRIDE...]: the same, and returns at once. Sets JOB and JOB_DIR.
fault::submit() {
  local steps=$2
  FAULT=$1
  fault::before
  JOB=$(OVERRIDES="${FAULT_EPOCHS} trainer.total_training_steps=${steps} ${*:3}" scripts/42_submit_sft_minimal.sh 2>"${BATS_TEST_TMPDIR}/submit") ||
    fail "$(<"${BATS_TEST_TMPDIR}/submit")"
  JOB_DIR="${WORKDIR}/shared/jobs/${JOB}"
  export JOB JOB_DIR
  fault::follow
}

# fault::await FACT...: waits until it is true for JOB, but not beyond the job's end.
fault::await() {
  wait::until 600 fault::has_reported "$@" || fail "$*: it did not come to that: $(<"${BATS_TEST_TMPDIR}/printed")"
}

# fault::before: records the finished jobs, for tests that create their job in another way.
fault::before() {
  fault::finished >"${BATS_TEST_TMPDIR}/finished"
  [[ -s ${BATS_TEST_TMPDIR}/finished ]] || fail 'no finished job: there is nothing that the fault could harm'
  BEFORE=$(fault::digest)
}

# fault::begin NAME: for a fault without a job, or with a job that is created in another way: the clock starts here.
fault::begin() {
  FAULT=$1
  unset JOB
  fault::before
  INJECTED=$EPOCHREALTIME
}

# fault::answered STATUS LINE: what was reported for it, now.
fault::answered() { status=$1 LINE=$2 SECONDS_TO_TELL=$(fault::_since "$INJECTED"); }

# fault::follow: `make wait` for JOB in the background, as from another terminal.
fault::follow() {
  timeout 1200 scripts/52_wait.sh >"${BATS_TEST_TMPDIR}/printed" 2>&1 3>&- &
  FOLLOWER=$!
}

fault::has_reported() { ! kill -0 "$FOLLOWER" 2>/dev/null; }

# fault::has_step N: the job's own metrics contain that step, and its weights have changed.
fault::has_step() {
  grep -qs "\"step\": *$1[,}]" "${JOB_DIR}/logs/metrics.jsonl" && weights::changed "$JOB_DIR"
}

# fault::inject COMMAND...: runs it, and records the time.
fault::inject() {
  INJECTED=$EPOCHREALTIME
  "$@"
}

# fault::kill PATTERN [NODE]: SIGKILL to the one process of JOB whose command line matches it, on any node.
fault::kill() {
  local node killed=0
  for node in ${2:-worker-0 worker-1}; do
    killed=$((killed + $(fault::_processes "$node" "$1" kill | wc -l)))
  done
  ((killed == 1)) || fail "${killed} processes of ${JOB} are like '$1', not one"
}

# fault::_processes NODE PATTERN [kill]: pid and command line of the job's processes there that match PATTERN. A worker that Ray
# keeps for the next job (ray::IDLE) no longer belongs to the job.
fault::_processes() {
  docker exec --interactive "${CLUSTER_NAME}-$1" python3 - "${SHARED_ROOT}/jobs/${JOB}" "${@:2}" <<'END'
import os, re, signal, sys
from pathlib import Path
job, pattern, *kill = sys.argv[1:]
for path in Path("/proc").glob("[0-9]*"):
    try:
        command, environ = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        continue
    text = command.replace(b"\0", b" ").decode("utf-8", "replace").strip()
    if f"VERL_REGRESS_JOB_DIR={job}".encode() in environ.split(b"\0") and re.search(pattern, text) and text != "ray::IDLE":
        if kill:
            os.kill(int(path.name), signal.SIGKILL)
        print(path.name, text)
END
}

# fault::reports STATUS LINE: waits for `make wait` to end. Sets status, output, LINE and SECONDS_TO_TELL.
fault::reports() {
  container::ended "$FOLLOWER" "${BATS_TEST_TMPDIR}/printed"
  SECONDS_TO_TELL=$(fault::_since "$INJECTED")
  assert_status "$1"
  assert_line "$2"
  LINE=$(grep -m 1 -E -- "^$2\$" <<<"$output")
  printf '# %s: reported after %s s: %s\n' "$FAULT" "$SECONDS_TO_TELL" "$LINE" >&3
}

# fault::recovered [KEY=VALUE...]: see above; adds further words to the record.
fault::recovered() {
  local began=$EPOCHREALTIME up=0 seconds after sentence=${LINE//"$JOB"/JOB}
  sentence=${sentence//"${BATS_FILE_TMPDIR}/"/}
  make --no-print-directory up >"${BATS_TEST_TMPDIR}/up" 2>&1 || up=$?
  seconds=$(fault::_since "$began")
  after=$(fault::digest)
  fault::record "name=${FAULT}" "status=${status}" "sentence=${sentence//"${WORKDIR}/"/workdir/}" "seconds=${SECONDS_TO_TELL}" \
    "files_before=${BEFORE% *}" "hash_before=${BEFORE#* }" "files_after=${after% *}" "hash_after=${after#* }" \
    "up_status=${up}" "up_seconds=${seconds}" "$@"
  [[ $up == 0 ]] || fail "make up ended with ${up}: $(tail -n 30 "${BATS_TEST_TMPDIR}/up")"
  [[ $after == "$BEFORE" && $after =~ ^[1-9][0-9]*' '[0-9a-f]{16}$ ]] || fail "finished jobs changed: before ${BEFORE}, after ${after}"
}

# fault::find_driver: sets DRIVER and OTHER, the workers with and without the job's launcher.
fault::find_driver() {
  DRIVER=$(jq -r .node "${JOB_DIR}/state/started")
  [[ $DRIVER == worker-[01] ]] || fail "the launcher says that it runs on ${DRIVER}"
  export OTHER=worker-$((1 - ${DRIVER#worker-}))
}

# fault::nothing_left: no process of JOB runs on any node.
fault::nothing_left() {
  wait::until 60 - fault::_is_nothing_left || fail "left of ${JOB}: $(<"${BATS_TEST_TMPDIR}/left")"
}

fault::_is_nothing_left() {
  local node
  for node in head worker-0 worker-1; do fault::_processes "$node" .; done >"${BATS_TEST_TMPDIR}/left"
  [[ ! -s ${BATS_TEST_TMPDIR}/left ]]
}

# fault::asking_changes_nothing: no file in WORKDIR changes by `make status jobs logs`, the files of secrets included; but for the
# bytecode of the helper's modules, which the first that loads them writes.
fault::asking_changes_nothing() {
  local stamp="${BATS_TEST_TMPDIR}/stamp" changed
  touch "$stamp"
  make --no-print-directory status jobs logs JOB="$JOB" >"${BATS_TEST_TMPDIR}/asked" 2>&1 || fail "$(<"${BATS_TEST_TMPDIR}/asked")"
  grep -qE "^${JOB} .* LOST " "${BATS_TEST_TMPDIR}/asked" || fail "the job is not shown as LOST: $(<"${BATS_TEST_TMPDIR}/asked")"
  changed=$(find "$WORKDIR" -name __pycache__ -prune -o -newer "$stamp" -printf '%P\n' | grep -vE '^shared/common/code/verl_regress/' || true)
  [[ -z $changed ]] || fail "make status jobs logs changed ${changed}"
}

# fault::finished: the jobs whose end is known to the launcher and to Ray's clients, one per line: no process writes there any more.
fault::finished() {
  local job
  for job in "${WORKDIR}/shared/jobs"/*; do
    [[ -s ${job}/state/ended && $(jq -r .status "${job}/state/observed" 2>/dev/null) =~ ^(SUCCEEDED|FAILED|STOPPED)$ ]] || continue
    printf '%s\n' "${job##*/}"
  done
}

# fault::digest: "FILES HASH" over all that was finished at fault::before.
fault::digest() {
  (
    cd "${WORKDIR}/shared/jobs" || return
    tr '\n' '\0' <"${BATS_TEST_TMPDIR}/finished" | xargs -0 -I{} find ./{} -type f -print0 | sort -z | xargs -0 sha256sum
  ) >"${BATS_TEST_TMPDIR}/digest"
  printf '%d %s\n' "$(wc -l <"${BATS_TEST_TMPDIR}/digest")" "$(sha256sum <"${BATS_TEST_TMPDIR}/digest" | cut -c 1-16)"
}

# fault::record KEY=VALUE...: one line of the record. Keys: kind (fault, input or load; default: fault), name, tries (default: 1),
# status, sentence, seconds (until the right answer), files_before, hash_before, files_after, hash_after (finished jobs), up_status,
# up_seconds (`make up` afterwards).
fault::record() {
  mkdir -p "${FAULT_RECORD%/*}"
  jq --null-input --compact-output '$ARGS.positional
    | map(capture("^(?<key>[a-z_]+)=(?<value>.*)$"; "s"))
    | map(if .key | test("^(tries|status|files_.*|up_.*|seconds)$") then .value |= tonumber else . end)
    | from_entries' --args kind=fault tries=1 "$@" >>"$FAULT_RECORD"
}

fault::_since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }
