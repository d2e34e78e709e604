# Real containers, real Ray, real verl. Every file names its cluster with container::use and starts it itself, which takes a second
# if it is up already; .ci/run removes what is left. Copy 76_lifecycle.bats to start a new file.
# shellcheck shell=bash

bats_require_minimum_version 1.5.0
REPO=$(cd "${BATS_TEST_DIRNAME}/../../.." && pwd)
cd "$REPO" || exit 1

# container::use NAME PORT [PREFIX]: the cluster of this file, next to whatever the user of this machine runs, in the workdir of its suite.
container::use() {
  export PROFILE=cpu NO_COLOR=1 CLUSTER_NAME="${3:-vrtest}-$1" DASHBOARD_PORT="$2" WORKDIR="${REPO}/build/${BATS_TEST_DIRNAME##*/}/workdir"
  unset CODE_ID WORKLOAD JOB WAIT
  container::seed "${WORKDIR}/shared" "${WORKDIR}/cache"
}

# container::seed SHARED [CACHE]: data and models that the container tests have prepared, if any, which takes half a minute; `make prepare`
# makes what is missing.
container::seed() {
  local from="${REPO}/build/container/workdir"
  [[ -d ${from}/shared/common/models && ! -e $1/common/models ]] || return 0
  mkdir -p "$1/common"
  cp -a "${from}/shared/datasets" "$1"
  cp -a "${from}/shared/common/models" "$1/common"
  [[ $# == 1 || ! -d ${from}/cache ]] || cp -a "${from}/cache" "$2"
}

# container::cluster: two workers are ALIVE; data, model and codeA exist.
container::cluster() {
  container::is_ready || container::quietly up make --no-print-directory up prepare snapshot CODE_ID=codeA
}

# container::is_ready: an earlier file has left it so, and Ray says that all its nodes are there.
container::is_ready() {
  [[ -d ${WORKDIR}/shared/common/models/tiny-qwen2 && -d ${WORKDIR}/shared/common/code/verl/codeA ]] &&
    [[ $(container::api '/api/v0/nodes?filter_keys=state&filter_predicates=%3D&filter_values=ALIVE' 2>/dev/null | jq .data.result.num_filtered) == 3 ]]
}

# container::quietly NAME COMMAND...: its output is in the file's directory, as NAME; if it fails, the end of it is shown.
container::quietly() {
  local file="${BATS_FILE_TMPDIR}/$1"
  "${@:2}" >"$file" 2>&1 || {
    container::show_end "$file"
    return 1
  }
}

# container::show_end FILE: as comments of the report, where a line that begins with "ok" would count as a test.
container::show_end() { tail -n 40 "$1" | sed 's/^/# /' >&3; }

# container::listing: every path and content under the shared root except the helper, to check that nothing was created.
container::listing() {
  (cd "${WORKDIR}/shared" && find . -path ./common/code/verl_regress -prune -o -path ./ray -prune -o -path ./jobs/.lock -o -type f -print0 | sort -z | xargs -0 sha256sum)
}

# container::ended PID FILE: waits for the end of a command in the background, which writes into FILE; sets status and output.
container::ended() {
  status=0
  wait "$1" || status=$?
  output=$(<"$2")
}

# container::jobs: the submission ids there are, one per line.
container::jobs() { ls "${WORKDIR}/shared/jobs"; }

# container::api PATH: Ray's own answer, from inside the head with the token; not through our status code.
container::api() {
  docker exec "${CLUSTER_NAME}-head" python3 -c '
import sys, urllib.request
token = open("/run/secrets/ray_token").read().strip()
request = urllib.request.Request("http://127.0.0.1:8265" + sys.argv[1], headers={"Authorization": "Bearer " + token})
print(urllib.request.urlopen(request, timeout=60).read().decode())' "$1"
}

container::ip() { docker inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "${CLUSTER_NAME}-$1"; }

# Assertions; each prints what it saw.
fail() {
  printf '%s\n--- output\n%s\n' "$1" "${output:-}" >&2
  return 1
}
assert_status() { [[ ${status-} == "$1" ]] || fail "exit status ${status-}, not $1"; }
assert_line() { grep -qE -- "^$1\$" <<<"${output-}" || fail "no line like: $1"; }
