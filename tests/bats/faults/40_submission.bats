#!/usr/bin/env bats
# The submitter is killed in the head at one moment after another. tests/py/test_submit_killed.py does it before each of its steps,
# with a fake Ray; here Ray is real.

setup_file() {
  load fault_helper
  fault::use submit 18292
  fault::cluster
  export OVERRIDES=data.train_files=/no/such.parquet # an accepted job ends without help, and is FAILED
}

teardown_file() {
  load fault_helper
  fault::use submit 18292
  fault::down
}

setup() { load fault_helper; }

# submit_killed ID FACT: `make submit` whose process in the head gets SIGKILL when FACT (Python, with the job directory `job` and
# Ray's `in_ray()`) is true. Prints what FACT saw: how far the submission was.
submit_killed() {
  SUBMISSION_ID=$1 timeout 120 scripts/40_submit_ppo_epoch1.sh >"${BATS_TEST_TMPDIR}/submit" 2>&1 3>&- &
  docker exec --interactive "${CLUSTER_NAME}-head" python3 - "$1" "$2" <<'END'
import os, signal, sys, time, urllib.error, urllib.request
from pathlib import Path
name, fact = sys.argv[1:]
job = Path(os.environ["SHARED_ROOT"], "jobs", name)
token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text().strip()

def in_ray():
    request = urllib.request.Request(f"http://127.0.0.1:8265/api/jobs/{name}", headers={"Authorization": f"Bearer {token}"})
    try:
        return urllib.request.urlopen(request, timeout=10).status == 200
    except urllib.error.HTTPError as error:
        assert error.code == 404, error
        return False

def submitter():
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"submit" in words and f"--submission-id={name}".encode() in words:
            return int(path.name)

end = time.monotonic() + 60
while not (pid := submitter()) or not eval(fact):
    assert time.monotonic() < end, f"{fact} never held"
    time.sleep(0.001)
os.kill(pid, signal.SIGKILL)
END
  ! wait "$!" || fail 'the submitter was not killed'
}

status_of() { LIMIT=1000 JSON=1 scripts/50_status.sh 2>/dev/null | jq -r --arg id "$1" '.jobs[] | select(.submission_id == $id) | .status'; }

# refused_again ID: the id is in use, whatever became of the job.
refused_again() {
  SUBMISSION_ID=$1 run scripts/40_submit_ppo_epoch1.sh
  assert_status 2
  assert_line "error   submission_id '$1' is taken: ${WORKDIR}/shared/jobs/$1 exists and is never reused; give another one, or leave it out to get a generated one\."
}

# followed ID STATUS LINE: what `make wait` reports for it.
followed() {
  JOB=$1 run timeout 240 scripts/52_wait.sh
  assert_status "$2"
  assert_line "$3"
}

FAILED='FAILED \(the trainer ended with exit status 1: FileNotFoundError: .*, before the first step\)\)'
NOWHERE='NOT_SUBMITTED \(the submitter has not reached Ray, or ended before it did\)'

@test "killed before Ray has the job: never submitted, the id stays taken, another one works" {
  local id line tries=0 fact
  fault::begin 'the submitter is killed before Ray has the job'
  for fact in 'job.is_dir()' '(job / "config/resolved.json").exists()' '(job / "config/code.json").exists()'; do
    tries=$((tries + 1))
    id="half-${tries}-$(date +%s)"
    submit_killed "$id" "$fact"
    [[ ! -e ${WORKDIR}/shared/jobs/${id}/state/submitted ]] || fail "${id}: too late"
    [[ $(status_of "$id") == NOT_SUBMITTED ]] || fail "${id} is $(status_of "$id")"
    JOB=$id run timeout 60 scripts/52_wait.sh
    assert_status 2
    line=$(grep -m 1 '^error ' <<<"$output")
    [[ $line == *"${NOWHERE//\\/}"* || $line == *"${id} was never submitted, because its submitter ended before "*": submit it again, with another id." ]] ||
      fail 'another sentence'
    refused_again "$id"
  done
  run scripts/40_submit_ppo_epoch1.sh
  assert_status 0
  followed "$(grep -xE 'ppo-codeA-[0-9TZ]+-[0-9a-f]{4}' <<<"$output")" 3 "error   .* ${FAILED}: read .*"
  fault::answered 2 "${line//"$id"/JOB}"
  fault::recovered "tries=${tries}"
}

@test "killed when Ray has the job, before and after that is written down: the job is what Ray and its launcher say" {
  local id line tries=0 fact
  fault::begin 'the submitter is killed when Ray has the job (whose data are not there)'
  for fact in 'in_ray()' '(job / "state/submitted").exists()'; do
    tries=$((tries + 1))
    id="whole-${tries}-$(date +%s)"
    submit_killed "$id" "$fact"
    [[ $(status_of "$id") =~ ^(PENDING|QUEUED|RUNNING|FAILED)$ ]] || fail "${id} is $(status_of "$id")"
    refused_again "$id"
    followed "$id" 3 "error   ${id} ${FAILED}: read 'make logs JOB=${id}'\."
    line=$(grep -m 1 "^error   ${id} FAILED" <<<"$output")
  done
  fault::answered 3 "${line//"$id"/JOB}"
  fault::recovered "tries=${tries}"
}
