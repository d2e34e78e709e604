#!/usr/bin/env bats
# The submitter is killed in the head before and after Ray has the job. tests/submit/test_submit_killed.py does it before each of its steps,
# with a fake Ray; here Ray is real.

setup_file() {
  load fault_helper
  fault::use work 18295
  fault::cluster
  export OVERRIDES=data.train_files=/etc/hostname # an accepted job ends without help, and is FAILED
}

setup() { load fault_helper; }

# submit_killed ID FACT: `make submit` whose process in the head gets SIGKILL when FACT (Python, with the job directory `job` and
# Ray's `in_ray()`) is true. Prints what FACT saw: how far the submission was.
submit_killed() {
  SUBMISSION_ID=$1 timeout 120 scripts/42_submit_sft_minimal.sh >"${BATS_TEST_TMPDIR}/submit" 2>&1 3>&- &
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
        if b"submit" in words and any(f'"SUBMISSION_ID":["{name}"'.encode() in word for word in words):
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
  SUBMISSION_ID=$1 run scripts/42_submit_sft_minimal.sh
  assert_status 2
  assert_line "error   submission_id '$1' is taken: ${WORKDIR}/shared/jobs/$1 exists and is never reused; give another one, or leave it out to get a generated one\."
}

# followed ID STATUS LINE: what `make wait` reports for it.
followed() {
  JOB=$1 run timeout 240 scripts/52_wait.sh
  assert_status "$2"
  assert_line "$3"
}

FAILED='FAILED \(the trainer ended with exit status 1: ArrowInvalid: .*, before the first step\)\)'

@test "a submission is killed before and after Ray has the job, and is never half made" {
  local half whole
  half="half-$(date +%s)" whole="whole-$(date +%s)"
  fault::begin 'the submitter is killed before and after Ray has the job (whose data are not there)'
  submit_killed "$half" '(job / "config/code.json").exists()'
  [[ ! -e ${WORKDIR}/shared/jobs/${half}/state/submitted ]] || fail "${half}: too late"
  [[ $(status_of "$half") == NOT_SUBMITTED ]] || fail "${half} is $(status_of "$half")"
  JOB=$half run timeout 60 scripts/52_wait.sh
  assert_status 2
  refused_again "$half"

  submit_killed "$whole" 'in_ray()'
  [[ $(status_of "$whole") =~ ^(PENDING|QUEUED|RUNNING|FAILED)$ ]] || fail "${whole} is $(status_of "$whole")"
  refused_again "$whole"
  followed "$whole" 3 "error   ${whole} ${FAILED}: read 'make logs JOB=${whole}'\."
  fault::answered 3 "$(grep -m 1 "^error   ${whole} FAILED" <<<"$output" | sed "s/${whole}/JOB/g")"
  fault::recovered tries=2
}
