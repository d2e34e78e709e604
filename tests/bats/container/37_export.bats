#!/usr/bin/env bats
# `make export`: the jobs of two of its files are run. What all files contain: tests/export/test_job.py.

setup_file() {
  load container_helper
  container::use quick 18265
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
  exports kuberay WORKLOAD=sft OVERRIDES=data.train_files=/etc/hostname # verl itself ends it
  run docker exec --interactive "${CLUSTER_NAME}-head" python3 -c "$(<tests/bats/container/kuberay_submit.py)" <"$FILE"
  assert_status 0
  assert_line FAILED
  assert_line 'MVP_PRECHECK_MARKER: codeA'
  assert_line '.*ArrowInvalid: .*'
}
