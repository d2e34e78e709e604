#!/usr/bin/env bats
# `make export`: each file is checked by the parser of the place that it is for, and the jobs of two of them are run.

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

@test "dstack's own parser takes the task of every workload" {
  python3 -m venv "${BATS_TEST_TMPDIR}/dstack"
  "${BATS_TEST_TMPDIR}/dstack/bin/pip" install -qq --disable-pip-version-check dstack==0.22.5
  for workload in ppo grpo sft; do
    exports dstack WORKLOAD="$workload"
    run "${BATS_TEST_TMPDIR}/dstack/bin/python" - "$FILE" <<'PY'
import sys, yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
task = parse_apply_configuration(yaml.safe_load(open(sys.argv[1])))
print(type(task).__name__, task.nodes)
PY
    assert_status 0
    assert_line 'TaskConfiguration 3'
  done
}

@test "a dstack task's commands train on three nodes with the variables that dstack sets" {
  local rank net="${CLUSTER_NAME}-dstack" commands
  exports dstack WORKLOAD=sft OVERRIDES=trainer.total_training_steps=2
  commands=$(.venv/bin/python -c 'import sys, yaml; print(yaml.safe_load(sys.stdin)["commands"][0])' <"$FILE")
  sed -n 's/^- \([A-Z_]*=.*\)/\1/p' "$FILE" >"${FILE}.env"
  RAY_AUTH_TOKEN=$(od -An -vtx1 -N32 /dev/urandom | tr -d ' \n')
  export RAY_AUTH_TOKEN
  docker network create --label "verl-regress.cluster=${CLUSTER_NAME}-dstack" --subnet 172.31.78.0/24 "$net" >/dev/null
  for rank in 0 1 2; do
    docker run --detach --init --name "${net}-${rank}" --label "verl-regress.cluster=${CLUSTER_NAME}-dstack" --network "$net" --ip "172.31.78.1${rank}" \
      --user "$(sed -n 's/^user: //p' "$FILE")" --shm-size 2g --env-file "${FILE}.env" --env RAY_AUTH_TOKEN --env DSTACK_NODE_RANK="$rank" --env DSTACK_NODES_NUM=3 \
      --env DSTACK_MASTER_NODE_IP=172.31.78.10 --env DSTACK_NODES_IPS=$'172.31.78.10\n172.31.78.11\n172.31.78.12' \
      --volume "${WORKDIR}/shared:/private" "$(sed -n 's/^image: //p' "$FILE")" bash -i -c "$commands" >/dev/null
  done
  run timeout 500 docker wait "${net}-0"
  local ended=$output
  run docker logs "${net}-0"
  docker rm --force "${net}-0" "${net}-1" "${net}-2" >/dev/null
  docker network rm "$net" >/dev/null
  [[ $ended == 0 ]] || fail "the head ended with ${ended}"
  assert_line 'ok      sft-codeA-.* SUCCEEDED \(the trainer ended\)'
  assert_line ' *driver_info.node_ip_address: 172.31.78.1[12]'
}

@test "a Compose project trains, ends with the job's status, and shows its token nowhere" {
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
  # The second run of the same file finds the job's directory.
  run timeout 200 docker compose --file "$FILE" up --exit-code-from head
  docker compose --file "$FILE" down 2>/dev/null
  assert_status 2
  assert_line ".*error   submission_id '${id}' is taken: .* exists and is never reused; give another one, or leave it out to get a generated one."
}

@test "a RayJob's init container, entrypoint, environment and resources run a job on a head that KubeRay would start" {
  exports kuberay WORKLOAD=sft OVERRIDES=trainer.total_training_steps=2
  run docker exec --interactive "${CLUSTER_NAME}-head" python3 -c "$(<tests/bats/container/kuberay_submit.py)" <"$FILE"
  assert_status 0
  assert_line SUCCEEDED
  assert_line 'MVP_PRECHECK_MARKER: codeA'
}
