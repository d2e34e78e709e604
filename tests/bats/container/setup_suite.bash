# Before and after all tests on real clusters (tests/bats/faults and platforms too): an earlier run must have no influence, and nothing
# is left behind. Each suite has its own clusters and workdir, so that two can run at the same time.
# shellcheck shell=bash

SUITE_CLUSTERS=vrtest # prefix of the suite's clusters; no others are removed

setup_suite() {
  local workdir
  workdir="$(suite::repo)/build/${BATS_TEST_DIRNAME##*/}/workdir"
  suite::down
  rm -rf "${workdir}/shared"/{jobs,queue,ray,verify,bisect,acceptance} "${workdir}"/{secrets,clusters}
}

teardown_suite() { suite::down; }

suite::repo() { (cd "${BATS_TEST_DIRNAME:-$(dirname "${BASH_SOURCE[0]}")}/../../.." && pwd); }

suite::down() {
  # shellcheck disable=SC2016  # expanded in the other shell: strict mode is not for bats itself
  bash -c 'source "$1/scripts/lib/regress.bash"; source "$1/scripts/dev/host.bash"; set +e; host::remove_clusters $(host::list_clusters | grep "^$2-")' down "$(suite::repo)" "$SUITE_CLUSTERS" >/dev/null 2>&1 || true
}
