#!/usr/bin/env bats
# The transport contract on real containers.

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
