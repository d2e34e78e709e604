#!/usr/bin/env bats
# The transport contract on real containers, and the doctor on a cluster with Ray.

setup_file() {
  load container_helper
  container::use quick 18265
  container::cluster
}

setup() {
  load ../contract/transport_contract
  export TRANSPORT=container WORKERS=2 SHARED_ROOT=/private
}

@test "arguments, exit status, streams, put, get and spawn: as the contract says" {
  contract::all
}

@test "the gate passes healthy nodes, and the doctor finds two planted faults" {
  load container_helper
  run scripts/11_doctor.sh --gate
  assert_status 0
  run env PYTHONPATH=py:judge:maintain .venv/bin/python maintain/doctor.py try "one port blocked one way (the GCS's, from a worker)" \
    'a GPU in the head'
  assert_status 0
  [[ $(grep -c '"found": true' <<<"$output") == 2 ]]
}
