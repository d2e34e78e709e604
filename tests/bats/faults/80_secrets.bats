#!/usr/bin/env bats
# The secrets of a job: they reach its processes, are in no other place while it runs and nowhere after it, however it ended; and hostile
# values: verl, its driver and its Ray actors get them byte for byte. Then Ray's token: what the ports of a cluster answer without it.

setup_file() {
  load fault_helper
  fault::use work 18295
  fault::cluster
  container::quietly printing secret::printing_code
}

# secret::printing_code: the snapshot codeKey: a verl that prints API_KEY in each process that imports it.
secret::printing_code() {
  local tree="${BATS_FILE_TMPDIR}/tree"
  cp -r "${WORKDIR}/cache/verl/pypi-0.9.1" "$tree" &&
    printf 'import os as _os\n\nprint("key", _os.environ.get("API_KEY"), flush=True)\n' >>"${tree}/verl/__init__.py" &&
    make --no-print-directory snapshot CODE_ID=codeKey VERL_SOURCE="path:${tree}"
}

setup() { load fault_helper; }

# secret::submit NAME STEPS: a job with the secret API_KEY, which its trainer prints, up to its first step; no command follows it. Sets
# JOB, JOB_DIR, CANARY (its value, which no command gets as an argument) and FILE, the file with it.
secret::submit() {
  local spec="${BATS_TEST_TMPDIR}/spec.yaml"
  fault::begin "$1"
  secret::new
  {
    cat jobspecs/sft.yaml
    printf 'secrets:\n  - name: API_KEY\n'
  } >"$spec"
  JOB=$(API_KEY=$CANARY CODE_ID=codeKey OVERRIDES="${FAULT_EPOCHS} trainer.total_training_steps=$2" scripts/44_submit_sdk.sh "$spec" 2>"${BATS_TEST_TMPDIR}/submit") ||
    fail "$(<"${BATS_TEST_TMPDIR}/submit")"
  secret::is_of "$JOB"
  wait::until 600 secret::is_over fault::has_step 1 || fail "${JOB} did not come to its first step: $(tail -n 20 "${JOB_DIR}/logs/driver.log")"
  grep -qxF 'key <secret API_KEY>' "${JOB_DIR}/logs/driver.log" ||
    fail "driver.log has no line 'key <secret API_KEY>': $(grep '^key' "${JOB_DIR}/logs/driver.log")"
}

# secret::new: sets CANARY.
secret::new() { CANARY=$(head -c 20 /dev/urandom | od -An -vtx1 | tr -d ' \n'); }

# secret::is_of ID: sets JOB, JOB_DIR and FILE.
secret::is_of() {
  JOB=$1 JOB_DIR="${WORKDIR}/shared/jobs/$1" FILE="${WORKDIR}/shared/secrets/${CLUSTER_NAME}/$1"
  export JOB JOB_DIR
}

secret::is_over() { [[ -s ${JOB_DIR}/state/ended ]]; }

secret::is_gone() { [[ ! -e $FILE ]]; }

# secret::search NODE DIRECTORY...: sets output; fails if nothing was searched.
secret::search() {
  output=$(printf '%s' "$CANARY" | docker exec --interactive "${CLUSTER_NAME}-$1" python3 -c "$(<tests/bats/faults/search.py)" "${@:2}")
  assert_line 'checked [1-9][0-9]* files and [1-9][0-9]* processes'
}

# secret::nowhere DIRECTORY...: not there, nor on any node's own disk or in its process list, nor in any answer of Ray.
secret::nowhere() {
  local node path answers="${BATS_TEST_TMPDIR}/answers" number=0
  for node in head worker-0 worker-1; do
    secret::search "$node" /tmp/ray "$@"
    [[ $output != *FOUND* ]] || fail "it is on ${node}"
  done
  mkdir -p "$answers"
  for path in /api/jobs/ "/api/jobs/${JOB}" "/api/jobs/${JOB}/logs" '/api/v0/actors?limit=1000&detail=1' \
    '/api/v0/tasks?limit=1000&detail=1' '/api/v0/runtime_envs?limit=1000&detail=1'; do
    number=$((number + 1))
    container::api "$path" >"${answers}/${number}"
    [[ -s ${answers}/${number} ]] || fail "no answer about ${path}"
  done
  output=$(printf '%s' "$CANARY" | "${REPO}/.venv/bin/python" tests/bats/faults/search.py "$answers")
  assert_line "checked ${number} files and [1-9][0-9]* processes"
  [[ $output != *FOUND* ]] || fail 'Ray tells it, or the process list of this machine does'
}

# secret::reached: every process that reports its verl modules, the driver and each of Ray's actors, has it.
secret::reached() {
  local ray_job report actors reached=0
  ray_job=$(container::api "/api/jobs/${JOB}" | jq -r .job_id)
  for report in "${JOB_DIR}"/state/reports/identity-*.json; do
    [[ $(jq -r .job_id "$report") == "$ray_job" ]] || continue # for Ray, its supervisor is an actor of another job
    jq -e '.names == ["API_KEY"]' "${report%/*}/secrets-${report##*/identity-}" >/dev/null || fail "${report##*/} did not get it"
    reached=$((reached + 1))
  done
  actors=$(jq .actors "${JOB_DIR}/state/identity")
  ((actors > 0 && reached > actors)) || fail "${reached} processes got it; there were ${actors} actors and a driver"
  printf '# %s processes got it\n' "$reached" >&3
}

@test "a launcher with a secret is killed: LOST, and the secret's file goes at once" {
  secret::submit 'the launcher of a job with a secret is killed -9' 4000
  [[ $(stat -c '%a %s' "$FILE") == 600\ [1-9]* ]] || fail "its file is $(stat -c '%a %s' "$FILE")"
  secret::search head "${SHARED_ROOT}/secrets/${CLUSTER_NAME}"
  # First show that the search finds what is there.
  [[ $(grep FOUND <<<"$output") == "FOUND ${SHARED_ROOT}/secrets/${CLUSTER_NAME}/${JOB}" ]] || fail 'it is elsewhere, or the search is blind'
  scripts/55_debug.sh >"${BATS_TEST_TMPDIR}/debug" 2>&1
  secret::nowhere "${SHARED_ROOT}/jobs/${JOB}" "${SHARED_ROOT}/ray/${CLUSTER_NAME}"
  ! secret::is_over || fail 'the job ended before everything was searched: it is to have more steps'
  fault::inject fault::kill '^python3 .*run\.py launch'
  # No command has asked for the job's state: the keeper removes the file.
  wait::until 30 - secret::is_gone || fail "${FILE} is there still"
  fault::follow
  fault::reports 7 "error   ${JOB} LOST \(the launcher on worker-[01] was ended by SIGKILL before it could record an end\): read 'make logs JOB=${JOB}'\."
  fault::nothing_left
  fault::asking_changes_nothing
  secret::nowhere "${SHARED_ROOT}/jobs/${JOB}" "${SHARED_ROOT}/secrets/${CLUSTER_NAME}"
  fault::recovered
}

round_trip() { "${REPO}/.venv/bin/python" "${REPO}/tests/bats/faults/round_trip.py" "$@"; }

@test "hostile values and a secret reach verl unchanged, and no file keeps the secret" {
  round_trip make "$BATS_TEST_TMPDIR" "${WORKDIR}/shared"
  secret::new
  # Through make, which passes the environment on unchanged.
  API_KEY=$CANARY CODE_ID=codeKey OVERRIDES=$(<"${BATS_TEST_TMPDIR}/environment") OVERRIDES_FILE="${BATS_TEST_TMPDIR}/file" \
    run make --no-print-directory submit WAIT=1 SUBMISSION_ID="round-trip-${EPOCHSECONDS}" JOBSPEC="${BATS_TEST_TMPDIR}/spec.json"
  assert_status 0
  secret::is_of "$(grep -xE 'round-trip-[0-9]+' <<<"$output")"
  run round_trip check "$JOB_DIR"
  assert_status 0
  printf '# %s\n' "$output" >&3
  [[ -z $(find "${WORKDIR}/shared" -name CANARY) ]] || fail 'a shell read a value'
  fault::record kind=input 'name=hostile values through a real job: driver, actors, reward function' tries=7 status=0 "sentence=ok ${output}"
  secret::is_gone || fail "${FILE} is there still"
  secret::reached
  secret::nowhere "${SHARED_ROOT}/jobs/${JOB}" "${SHARED_ROOT}/ray/${CLUSTER_NAME}" "${SHARED_ROOT}/secrets/${CLUSTER_NAME}"
}

# ports::of NODE: "ADDRESS:PORT" of each TCP port there that other hosts might reach (proc(5): 0A is listening).
ports::of() {
  docker exec --interactive "${CLUSTER_NAME}-$1" python3 - "$(container::ip "$1")" <<'END'
import sys
from pathlib import Path
rows = [line.split() for table in ("tcp", "tcp6") for line in Path("/proc/net", table).read_text().splitlines()[1:]]
local = [row[1].split(":") for row in rows if row[3] == "0A"]
loopback = ("7F", "00000000000000000000000001000000")
for port in sorted({int(port, 16) for address, port in local if not address.endswith(loopback)}):
    print(f"{sys.argv[1]}:{port}")
END
}

# ports::ask NETWORK PLACE...: from a separate container in that network, without a token. Sets output.
ports::ask() {
  output=$(docker run --rm --interactive --network "$1" "$IMAGE" python3 - "${@:2}" <tests/bats/faults/ports.py)
}

# ports::of_kind KIND: the ports that answered like that, one per line.
ports::of_kind() { awk -v kind="$1" '$1 == kind { print $2 }' <<<"$output" | sort -u; }

@test "without the token, ports answer 401 or no HTTP, and nothing on other networks" {
  fault::begin 'every port of the cluster is asked without the token'
  IMAGE=$(scripts/10_build_image.sh --name 2>/dev/null)
  head=$(container::ip head)
  for node in head worker-0 worker-1; do ports::of "$node"; done >"${BATS_TEST_TMPDIR}/ports"
  mapfile -t ports <"${BATS_TEST_TMPDIR}/ports"
  for place in "${head}:8265" "${head}:6379" "${head}:52365" "$(container::ip worker-0):52365" "$(container::ip worker-1):52365"; do
    grep -qxF "$place" "${BATS_TEST_TMPDIR}/ports" || fail "nobody listens on ${place}"
  done

  # Another network of the engine.
  ports::ask bridge "${ports[@]}"
  [[ $(grep -c '^closed ' <<<"$output") == $((5 * ${#ports[@]})) ]] || fail 'something answers another network'

  # The cluster's own network.
  ports::ask "${CLUSTER_NAME}_ray" "${ports[@]}"
  ! grep -qE '^(open|empty) ' <<<"$output" || fail 'something answers without the token'
  assert_line "401 ${head}:8265 /api/jobs/"
  for node in head worker-0 worker-1; do
    assert_line "401 $(container::ip "$node"):52365 /"
    # The agent's metrics on each node; on the head the autoscaler's monitor and the dashboard have some too.
    metrics=$(ports::of_kind metrics | grep -F "$(container::ip "$node"):") || fail "no metrics of ${node}"
    if [[ $node == head ]]; then
      [[ $(grep -cxE '.*:(44217|44227)' <<<"$metrics") == 2 ]] || fail "metrics of the head: ${metrics}"
      metrics=$(grep -vxE '.*:(44217|44227)' <<<"$metrics") || fail "no metrics of the head's agent"
    fi
    [[ $(wc -l <<<"$metrics") == 1 && -n $metrics ]] || fail "metrics of ${node}: ${metrics}"
  done
  [[ $(grep '^page ' <<<"$output") == "page ${head}:8265 /" ]] || fail 'other pages than the empty first one of the dashboard'
  run docker run --rm --network "${CLUSTER_NAME}_ray" "$IMAGE" timeout 60 ray status --address "${head}:6379"
  [[ $status != 0 && $output != *'Node status'* ]] || fail 'the GCS answers without the token'

  # This machine: one port of one node is published, on one address, and needs the token too.
  [[ $(docker port "${CLUSTER_NAME}-head") == "8265/tcp -> 127.0.0.1:${DASHBOARD_PORT}" ]] || fail "$(docker port "${CLUSTER_NAME}-head")"
  [[ -z $(docker port "${CLUSTER_NAME}-worker-0")$(docker port "${CLUSTER_NAME}-worker-1") ]] || fail 'a worker publishes a port'
  mapfile -t own < <(hostname -I | tr ' ' '\n' | grep -F .)
  ((${#own[@]} > 0)) || fail 'this machine has no address of its own'
  output=$("${REPO}/.venv/bin/python" tests/bats/faults/ports.py "127.0.0.1:${DASHBOARD_PORT}" "${own[@]/%/:${DASHBOARD_PORT}}")
  assert_line "401 127\.0\.0\.1:${DASHBOARD_PORT} /api/jobs/"
  [[ $(grep -c '^closed ' <<<"$output") == $((5 * ${#own[@]})) ]] || fail 'the dashboard answers on another address of this machine'

  fault::answered 0 "${#ports[@]} ports: nothing from another network and from this machine's other addresses; 401 or no HTTP from the same network, but for metrics and an empty page"
  fault::recovered "tries=${#ports[@]}"
}
