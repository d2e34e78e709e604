#!/usr/bin/env bats
# `make export`: each file is checked by the parser of the place that it is for, and the jobs of two of them are run.

setup_file() {
  load container_helper
  container::use quick 18265
  export DSTACK="${BATS_FILE_TMPDIR}/dstack"
  {
    python3 -m venv "$DSTACK" && "${DSTACK}/bin/pip" install -qq --disable-pip-version-check dstack==0.22.5
    printf '%d\n' "$?" >"${DSTACK}.status"
  } >"${DSTACK}.log" 2>&1 3>&- & # half a minute, beside the tests before the one that needs it
  container::cluster
}

setup() { load container_helper; }

# exports TO [KNOB=VALUE...]: writes ${FILE}; nothing is created.
exports() {
  local before to=$1
  shift
  FILE="${BATS_TEST_TMPDIR}/${to}.yaml"
  before=$(container::listing)
  make --silent export "TO=${to}" "$@" >"$FILE" 2>"${FILE}.err" || fail "$(<"${FILE}.err")"
  [[ $(container::listing) == "$before" ]] || fail 'an export has created files'
}

@test "a Compose project trains, ends with the job's status, and hides its token" {
  local id name
  exports compose WORKLOAD=sft OVERRIDES=trainer.total_training_steps=2
  name=$(sed -n 's/^name: //p' "$FILE")
  RAY_AUTH_TOKEN=$(od -An -vtx1 -N32 /dev/urandom | tr -d ' \n')
  export RAY_AUTH_TOKEN
  docker compose --file "$FILE" config --quiet
  run timeout 500 docker compose --file "$FILE" up --exit-code-from head
  docker compose --file "$FILE" down 2>/dev/null
  assert_status 0
  assert_line '.*ok      sft-codeA-.* SUCCEEDED \(the trainer ended\)'
  assert_line '.*ok      head is ALIVE at .*: CPU 0, GPU 0'
  [[ $output != *"$RAY_AUTH_TOKEN"* ]] || fail 'the token was printed'
  [[ -z $(docker ps --all --quiet --filter "label=com.docker.compose.project=${name}") ]]
  id=$(jq -r .said.submission_id "${WORKDIR}"/shared/jobs/sft-*/config/asked.json | grep -i "^${name}\$")
  grep -q '^MVP_PRECHECK_MARKER: codeA$' "${WORKDIR}/shared/jobs/${id}/logs/driver.log"
  ! grep -rqF "$RAY_AUTH_TOKEN" "${WORKDIR}/shared/jobs/${id}" "${WORKDIR}/shared/ray/${name}" || fail 'the token is in a record'
  run make --silent jobs
  assert_line "${id} +sft +codeA +SUCCEEDED .*"
}

@test "an exported RayJob runs a job on a head that KubeRay would start" {
  exports kuberay WORKLOAD=sft OVERRIDES=trainer.total_training_steps=2
  run docker exec --interactive "${CLUSTER_NAME}-head" python3 -c "$(<tests/bats/container/kuberay_submit.py)" <"$FILE"
  assert_status 0
  assert_line SUCCEEDED
  assert_line 'MVP_PRECHECK_MARKER: codeA'
}

@test "dstack's own parser takes the task of three nodes" {
  source scripts/lib/wait.bash
  wait::until 300 - test -s "${DSTACK}.status"
  [[ $(<"${DSTACK}.status") == 0 ]] || fail "$(<"${DSTACK}.log")"
  exports dstack WORKLOAD=ppo
  run "${DSTACK}/bin/python" - "$FILE" <<'PY'
import sys, yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
task = parse_apply_configuration(yaml.safe_load(open(sys.argv[1])))
print(type(task).__name__, task.nodes)
PY
  assert_status 0
  assert_line 'TaskConfiguration 3'
}
