#!/usr/bin/env bats
# The knobs that a running cluster was made with: what is kept, and what has changed since. How that is said: owner.bats.

setup() {
  load ../test_helper
  sandbox::make
  # shellcheck disable=SC2016  # expanded when the script runs
  printf '%s\n' 'source "$(dirname "$0")/lib/regress.bash"' env::load_knobs '"$@"' >"${HERE}/scripts/verb.sh"
  KEPT="${BOX}/work dir/clusters/mine"
}

# verb [KNOB=VALUE...] WORD...
verb() {
  local knobs=(CLUSTER_NAME=mine)
  while [[ $1 == *=* ]]; do knobs+=("$1") && shift; done
  sandbox::run "${knobs[@]}" scripts/verb.sh "$@"
}

@test "the knobs are kept for each cluster; make down forgets only this cluster's" {
  verb SHM_SIZE=3gb OVERRIDES=$'a=1\nb=2' cluster_knobs::keep containers SHM_SIZE NODES_PATH OVERRIDES
  assert_status 0
  [[ -z $output && $(<"${KEPT}/containers") == $'SHM_SIZE=3gb\nNODES_PATH=\nOVERRIDES=a=1 b=2' ]]
  verb cluster_knobs::keep head GCS_PORT
  verb CLUSTER_NAME=other cluster_knobs::keep head GCS_PORT
  [[ $(ls -A "$KEPT") == $'containers\nhead' && $(<"${KEPT}/head") == GCS_PORT=6379 ]]
  verb cluster_knobs::forget
  assert_status 0
  [[ $(ls "${BOX}/work dir/clusters") == other ]]
}

@test "what has changed: each knob with another value now, but for what is no knob" {
  verb cluster_knobs::changed containers
  [[ $status == 0 && -z $output ]] || fail 'no record'
  verb SHM_SIZE=3gb WORKER_CPUS=4 OVERRIDES=$'a=1\nb=2' cluster_knobs::keep containers SHM_SIZE WORKER_CPUS OVERRIDES
  verb SHM_SIZE=3gb WORKER_CPUS=4 OVERRIDES=$'a=1\nb=2' cluster_knobs::changed containers
  [[ $status == 0 && -z $output ]] || fail 'the same values'
  # shellcheck disable=SC2016  # hostile on purpose
  printf '%s\n' GONE=1 'not a knob' file=x 'KNOB_NAMES[$(touch ran)]=x' >>"${KEPT}/containers"
  verb OVERRIDES='a=1 b=3' WORKER_CPUS=4 cluster_knobs::changed containers
  [[ $status == 0 && $output == $'SHM_SIZE=3gb\nOVERRIDES=a=1 b=2' && ! -e ${HERE}/ran ]]
  verb OVERRIDES='a=1 b=3' WORKER_CPUS=4 cluster_knobs::changed containers OVERRIDES
  [[ $status == 0 && $output == 'OVERRIDES=a=1 b=2' ]]
  verb OVERRIDES='a=1 b=3' WORKER_CPUS=4 cluster_knobs::changed containers WORKER_CPUS
  [[ $status == 0 && -z $output ]]
}
