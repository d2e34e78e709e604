#!/usr/bin/env bats
# Ray's head dies under a job, with a GCS that is kept on disk. (In memory: 50_cluster.bats.)

setup_file() {
  load fault_helper
  fault::use head 18291
  export GCS_STORAGE=rocksdb
  fault::cluster
}

teardown_file() {
  load fault_helper
  fault::use head 18291
  fault::down
}

setup() { load fault_helper; }

# in_ray: the jobs that Ray itself lists, with their status, one per line.
in_ray() { container::api /api/jobs/ | jq -r '.[] | "\(.submission_id) \(.status) \(.driver_info.node_ip_address)"' | sort; }

@test "GCS_STORAGE=rocksdb: the head is killed, its container removed even, and history and job live on" {
  local before steps
  UNREACHABLE_TIMEOUT=300 fault::train 'the head container is removed, GCS on disk' 60
  before=$(in_ray)
  grep -q "^${JOB} RUNNING " <<<"$before" || fail "Ray knows: ${before}"
  fault::inject docker rm --force vrfault-head-head

  # Without this refusal a forgotten knob would lose all of it.
  run env GCS_STORAGE=memory make --no-print-directory up
  [[ $status != 0 ]] || fail 'taken'
  assert_line "error   GCS_STORAGE=memory \(from the command line or environment\) would forget what the GCS of vrfault-head has kept on disk: set GCS_STORAGE=rocksdb as before, or 'make down' first\."

  run make --no-print-directory up
  assert_status 0
  assert_line 'changed head: Ray started'
  assert_line 'ok      worker-0: Ray is ALIVE in this cluster'
  assert_line 'ok      worker-1: Ray is ALIVE in this cluster'
  [[ $(in_ray | cut -d' ' -f1) == "$(cut -d' ' -f1 <<<"$before")" ]] || fail "before ${before}, after $(in_ray)"

  fault::reports 0 "ok      ${JOB} SUCCEEDED \(the trainer ended\)"
  steps=$(jq -r .step "${JOB_DIR}/logs/metrics.jsonl" | uniq | paste -sd' ')
  [[ $steps == "$(seq -s' ' 60)" ]] || fail "steps ${steps}"
  grep -q "^${JOB} SUCCEEDED " <<<"$(in_ray)" || fail "Ray knows: $(in_ray)"
  fault::recovered
}

@test "make down forgets what the GCS had kept" {
  [[ -s ${WORKDIR}/gcs/vrfault-head/session_name ]]
  run make --no-print-directory down FORCE=1
  assert_status 0
  [[ ! -e ${WORKDIR}/gcs/vrfault-head ]]
  run env GCS_STORAGE=memory make --no-print-directory up
  assert_status 0
  [[ ! -e ${WORKDIR}/gcs/vrfault-head/session_name ]]
}
