#!/usr/bin/env bats
# The profiles gpu and rocm, as far as a machine without a GPU can tell: what Compose makes of them, whether verl knows
# what they ask of it, and what happens where Ray finds other GPUs than it should.

setup_file() {
  load container_helper
  container::use quick 18265
  container::cluster
}

setup() { load container_helper; }

# profiles::is_expected PROFILE KNOB=VALUE...: `docker compose config` of it is tests/expected/compose.PROFILE.yaml.
profiles::is_expected() {
  # shellcheck disable=SC2016  # expanded there
  env "PROFILE=$1" CLUSTER_NAME=mvp11 DASHBOARD_PORT=8265 WORKDIR=/srv/workdir RUN_AS=1000:1000 "${@:2}" \
    bash -c 'source scripts/lib/regress.bash; cli::begin; env::load; OWNER_ID=0123456789abcdef OWNER_USER=alice; compose::run config' >"${BATS_TEST_TMPDIR}/got.yaml"
  .venv/bin/python - "${BATS_TEST_TMPDIR}/got.yaml" "tests/expected/compose.$1.yaml" <<'PYTHON'
import sys, yaml
got, expected = (yaml.safe_load(open(name)) for name in sys.argv[1:])
got.pop("x-node")  # the template's text, which Compose repeats
assert got == expected, yaml.safe_dump(got)
PYTHON
}

@test "Compose itself makes the expected project of the profile cpu" { profiles::is_expected cpu NODE_IMAGE=node:1; }
@test "Compose itself makes the expected project of the profile gpu" { profiles::is_expected gpu; }
@test "Compose itself makes the expected project of the profile rocm" { profiles::is_expected rocm; }

@test "every override of env/ray/dev.yaml is one that verl's own configuration knows, in two releases" {
  for snapshots in '' /private/common/code/verl/codeA; do
    run docker exec --interactive --env PYTHONPATH="$snapshots" vrtest-quick-worker-0 python3 -c '
import importlib.util, sys, yaml
from hydra import compose, initialize_config_dir
verl = importlib.util.find_spec("verl").submodule_search_locations[0]
overrides = yaml.safe_load(sys.stdin)["trainer_overrides"]
with initialize_config_dir(f"{verl}/trainer/config", version_base=None):
    for workload, config in (("ppo", "ppo_trainer"), ("grpo", "ppo_trainer"), ("sft", "sft_trainer_engine")):
        compose(config, overrides=overrides[workload])
        print(workload, len(overrides[workload]), "known to", verl)' <env/ray/dev.yaml
    assert_status 0
    assert_line 'sft [0-9]+ known to .*/verl'
  done
  [[ $output == *"known to /private/common/code/verl/codeA/verl"* ]]
}

@test "a worker that shows another number of GPUs than GPUS_PER_WORKER is refused" {
  WORKER_GPUS='' GPUS_PER_WORKER=8 run scripts/21_start_workers.sh
  assert_status 1
  assert_line 'error   worker-0 shows CPU 64, GPU 4, worker_node 100, and GPUS_PER_WORKER=8 is wanted: see which .*'
}
