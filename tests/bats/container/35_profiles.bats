#!/usr/bin/env bats
# The profiles gpu, rocm and npu, as far as a machine without a GPU can test them: what Compose makes of them, and what happens if Ray
# finds other GPUs than expected. Whether verl accepts their overrides: 36_releases.bats.

setup_file() {
  load container_helper
  container::use quick 18265
}

setup() { load container_helper; }

# profiles::is_expected PROFILE KNOB=VALUE...: its `docker compose config` equals tests/expected/compose.PROFILE.yaml.
profiles::is_expected() {
  # shellcheck disable=SC2016  # expanded there
  env "PROFILE=$1" CLUSTER_NAME=mvp11 DASHBOARD_PORT=8265 WORKDIR=/srv/workdir RUN_AS=1000:1000 "${@:2}" \
    bash -c 'source scripts/lib/regress.bash; cli::begin; env::load; OWNER_ID=0123456789abcdef; stat() { echo alice; }; compose::run this config' >"${BATS_TEST_TMPDIR}/got.yaml"
  .venv/bin/python - "${BATS_TEST_TMPDIR}/got.yaml" "tests/expected/compose.$1.yaml" <<'PYTHON'
import sys, yaml
got, expected = (yaml.safe_load(open(name)) for name in sys.argv[1:])
got.pop("x-node")  # the template's text, which Compose repeats
assert got == expected, yaml.safe_dump(got)
PYTHON
}

@test "Compose itself makes the expected project of the profile cpu" { profiles::is_expected cpu NODE_IMAGE=node:1; }
@test "Compose itself makes the expected project of the profile gpu" { profiles::is_expected gpu NODE_IMAGE=node:1; }
@test "Compose itself makes the expected project of the profile rocm" { profiles::is_expected rocm; }

# Of these, COMPOSE_FILE would change nothing even if it got through: compose::run names its files.
@test "Compose itself makes the expected project of the profile npu" { profiles::is_expected npu; }

@test "what the shell tells Compose changes nothing in its project" {
  profiles::is_expected cpu NODE_IMAGE=node:1 COMPOSE_FILE=/no/such.yaml COMPOSE_PROJECT_NAME=theirs COMPOSE_PROFILES=template COMPOSE_ENV_FILES=/no/such.env
}

@test "a worker that shows another number of GPUs than GPUS_PER_WORKER is refused" {
  container::cluster
  WORKER_GPUS='' GPUS_PER_WORKER=8 run scripts/21_start_workers.sh
  assert_status 1
  assert_line 'error   worker-0 shows CPU 64, GPU 4, worker_node 100, and GPUS_PER_WORKER=8 is required: check which .*'
}
