#!/usr/bin/env bats
# Values with spaces, quotes, newlines, $(…), backticks, $HOME, unicode and leading dashes, from a JobSpec, from the environment and
# from OVERRIDES_FILE: a real job shows that verl, its driver and its Ray actors get them byte for byte.

setup_file() {
  load fault_helper
  fault::use work 18285
  container::cluster
}

setup() { load fault_helper; }

round_trip() { "${REPO}/.venv/bin/python" "${REPO}/tests/bats/faults/round_trip.py" "$@"; }

@test "hostile values reach verl unchanged: the driver's argv and environment, an actor's arguments and environment" {
  round_trip make "$BATS_TEST_TMPDIR" "${WORKDIR}/shared"
  # Through make, which passes the environment on unchanged.
  OVERRIDES=$(<"${BATS_TEST_TMPDIR}/environment") OVERRIDES_FILE="${BATS_TEST_TMPDIR}/file" \
    run make --no-print-directory submit WAIT=1 SUBMISSION_ID="round-trip-${EPOCHSECONDS}" JOBSPEC="${BATS_TEST_TMPDIR}/spec.json"
  assert_status 0
  job=$(grep -xE 'round-trip-[0-9]+' <<<"$output")
  run round_trip check "${WORKDIR}/shared/jobs/${job}"
  assert_status 0
  printf '# %s\n' "$output" >&3
  [[ -z $(find "${WORKDIR}/shared" -name CANARY) ]] || fail 'a shell read a value'
  fault::record kind=input 'name=hostile values through a real job: driver, actors, reward function' tries=7 status=0 "sentence=ok ${output}"
}

@test "a value on a make command line arrives unchanged: neither make nor a shell interprets it" {
  DRY_RUN=1 run make --no-print-directory submit "OVERRIDES=trainer.project_name='a \$HOME \$(touch CANARY) \$\$'"
  assert_status 0
  [[ $output == *"\"trainer.project_name='a \$HOME \$(touch CANARY) \$\$'\""* && ! -e CANARY ]] || fail 'another value'
}
