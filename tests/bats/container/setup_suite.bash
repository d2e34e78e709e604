# Before and after all tests on real clusters (tests/bats/faults and platforms too): an earlier run must have no influence, and nothing
# is left behind. Each suite has its own clusters and workdir, so that two can run at the same time.
# shellcheck shell=bash

SUITE_CLUSTERS=vrtest # prefix of the suite's clusters; no others are removed

setup_suite() {
  local workdir
  workdir="$(suite::repo)/build/${BATS_TEST_DIRNAME##*/}/workdir"
  suite::down
  rm -rf "${workdir}/shared"/{jobs,queue,ray,verify,bisect,acceptance} "${workdir}/secrets"
}

teardown_suite() { suite::down; }

suite::repo() { (cd "${BATS_TEST_DIRNAME:-$(dirname "${BASH_SOURCE[0]}")}/../../.." && pwd); }

suite::down() {
  local cluster
  # shellcheck disable=SC2016  # expanded in the other shell: strict mode is not for bats itself
  for cluster in $(bash -c 'source "$1/scripts/lib/regress.bash"; source "$1/scripts/dev/host.bash"; host::list_clusters' list "$(suite::repo)"); do
    [[ $cluster != "${SUITE_CLUSTERS}"-* ]] || make --no-print-directory -C "$(suite::repo)" down CLUSTER_NAME="$cluster" ADOPT=1 FORCE=1 >/dev/null 2>&1
  done
}
