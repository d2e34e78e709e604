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

@test "hostile words arrive as they are" { contract::hostile_words; }
@test "the exit status is the command's" { contract::exit_status; }
@test "stdin is handed through, and only where asked" { contract::stdin; }
@test "big output arrives whole" { contract::big_output; }
@test "put brings a directory whole, once, and get brings it back" { contract::put_and_get; }
@test "spawn outlives the caller and leaves log and exit status" { contract::spawn; }
