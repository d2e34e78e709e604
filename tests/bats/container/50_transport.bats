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

@test "hostile arguments arrive unchanged" { contract::hostile_words; }
@test "the exit status is the command's" { contract::exit_status; }
@test "stdin is passed on, but only if requested" { contract::stdin; }
@test "large output arrives complete" { contract::big_output; }
@test "put copies a directory once and completely, and get copies it back" { contract::put_and_get; }
@test "spawn outlives the caller and leaves log and exit status" { contract::spawn; }
