# Before and after all tests on real clusters (tests/bats/faults too): an earlier run must have no influence, and nothing is left
# behind.
# shellcheck shell=bash

SUITE_CLUSTERS=vrtest # prefix of the suite's clusters; no others are removed

setup_suite() {
  suite::down
  rm -rf "$(suite::repo)/build/container/workdir/shared"/{jobs,ray} "$(suite::repo)/build/container/workdir/secrets"
}

teardown_suite() { suite::down; }

suite::repo() { (cd "${BATS_TEST_DIRNAME:-$(dirname "${BASH_SOURCE[0]}")}/../../.." && pwd); }

suite::down() {
  local cluster
  for cluster in $(docker ps --all --filter label=verl-regress.cluster --format '{{.Label "verl-regress.cluster"}}' 2>/dev/null | sort -u); do
    [[ $cluster != "${SUITE_CLUSTERS}"-* ]] || make --no-print-directory -C "$(suite::repo)" down CLUSTER_NAME="$cluster" ADOPT=1 FORCE=1 >/dev/null 2>&1
  done
}
