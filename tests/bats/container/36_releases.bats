#!/usr/bin/env bats
# The overrides of the GPU profiles, composed on this machine against the configuration of real releases of verl, as a submission does it:
# what each release accepts and leaves out, what DETERMINISTIC=1 adds, and which keys have the seed of TRAIN_SEED. Needs no cluster.

setup_file() {
  load container_helper
  local version pids=()
  for version in 0.7.1 0.8.0 0.9.1; do
    .venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-compile --target "${BATS_FILE_TMPDIR}/${version}" "verl==${version}" 3>&- &
    pids+=("$!")
  done
  for pid in "${pids[@]}"; do wait "$pid"; done
}

setup() { load container_helper; }

STORAGE=transfer_queue.backend.SimpleStorage.required_node_resource
ENGINES='actor_rollout_ref.rollout.full_determinism=True, actor_rollout_ref.actor.fsdp_config.full_determinism=True, '
ENGINES+='actor_rollout_ref.ref.fsdp_config.full_determinism=True, reward.reward_model.rollout.full_determinism=True'

ACTOR_SEEDS='actor_rollout_ref.actor.fsdp_config.seed actor_rollout_ref.actor.data_loader_seed actor_rollout_ref.ref.fsdp_config.seed'
SFT_SEEDS='engine.seed data.seed trainer.seed' # data.seed is in no release's config: TRAIN_SEED adds it

# releases::compose BASE TREE VERSION
releases::compose() {
  PYTHONPATH=py:judge:py/hooks .venv/bin/python tests/bats/container/compose_profiles.py "env/ray/$1.yaml" "$2" "$3" | diff <(printf '%s\n' "$expected") -
}

# releases::makes TREE VERSION [BASE...]: env/ray/dev.yaml, or each of these, composes to what is on stdin.
releases::makes() {
  local expected base
  expected=$(cat)
  for base in "${@:3}"; do releases::compose "$base" "${@:1:2}" || fail "verl $2 makes something else of env/ray/${base}.yaml"; done
  (($# > 2)) || releases::makes "$@" dev <<<"$expected"
}

# releases::refusal VERSION: what DETERMINISTIC=1 says if the rollout cannot be made deterministic.
releases::refusal() {
  printf 'DETERMINISTIC=1 needs actor_rollout_ref.rollout.full_determinism, which ppo_trainer of CODE_ID=it (verl %s) lacks: ' "$1"
  printf 'name a snapshot whose verl has it, or leave DETERMINISTIC out.\n'
}

# releases::is_without_storage VERSION: a release without TransferQueue's storage, and with full determinism only for SFT.
releases::is_without_storage() {
  releases::makes "${BATS_FILE_TMPDIR}/$1" "$1" <<OUTPUT
ppo - takes all but ${STORAGE}
ppo DETERMINISTIC=1 $(releases::refusal "$1")
ppo TRAIN_SEED ${ACTOR_SEEDS} data.seed critic.model.fsdp_config.seed critic.data_loader_seed
grpo - takes all but ${STORAGE}
grpo DETERMINISTIC=1 $(releases::refusal "$1")
grpo TRAIN_SEED ${ACTOR_SEEDS} data.seed critic.model.fsdp_config.seed=42 critic.data_loader_seed=42
sft - takes all
sft DETERMINISTIC=1 takes all, engine.full_determinism=True
sft TRAIN_SEED ${SFT_SEEDS}
OUTPUT
}

# releases::is_of_today TREE VERSION: accepts all overrides, places storage on workers, and DETERMINISTIC=1 selects the V0 trainer.
releases::is_of_today() {
  releases::makes "$1" "$2" dev prod npu <<OUTPUT
ppo - takes all, trainer.use_v1=True, ${STORAGE}=worker_node
ppo DETERMINISTIC=1 takes all, ${ENGINES}, critic.fsdp.full_determinism=True, trainer.use_v1=False, ${STORAGE}=worker_node
ppo TRAIN_SEED ${ACTOR_SEEDS} actor_rollout_ref.rollout.seed data.seed critic.fsdp.seed critic.data_loader_seed reward.reward_model.rollout.seed
grpo - takes all, trainer.use_v1=True, ${STORAGE}=worker_node
grpo DETERMINISTIC=1 takes all, ${ENGINES}, trainer.use_v1=False, ${STORAGE}=worker_node
grpo TRAIN_SEED ${ACTOR_SEEDS} actor_rollout_ref.rollout.seed data.seed critic.fsdp.seed=42 critic.data_loader_seed=42 reward.reward_model.rollout.seed
sft - takes all
sft DETERMINISTIC=1 takes all, engine.full_determinism=True
sft TRAIN_SEED ${SFT_SEEDS}
OUTPUT
}

@test "verl 0.7.1 knows the overrides of the GPU profiles" { releases::is_without_storage 0.7.1; }

@test "verl 0.8.0 knows the overrides of the GPU profiles" {
  releases::makes "${BATS_FILE_TMPDIR}/0.8.0" 0.8.0 <<OUTPUT
ppo - takes all, ${STORAGE}=worker_node
ppo DETERMINISTIC=1 $(releases::refusal 0.8.0)
ppo TRAIN_SEED ${ACTOR_SEEDS} data.seed critic.fsdp.seed critic.data_loader_seed
grpo - takes all, ${STORAGE}=worker_node
grpo DETERMINISTIC=1 $(releases::refusal 0.8.0)
grpo TRAIN_SEED ${ACTOR_SEEDS} data.seed critic.fsdp.seed=42 critic.data_loader_seed=42
sft - takes all
sft DETERMINISTIC=1 takes all, engine.full_determinism=True
sft TRAIN_SEED ${SFT_SEEDS}
OUTPUT
}

@test "verl 0.9.1 knows the overrides of the GPU profiles" { releases::is_of_today "${BATS_FILE_TMPDIR}/0.9.1" 0.9.1; }

@test "override lists as in verl's examples are accepted or refused with a cure" {
  PYTHONPATH=py:judge:py/hooks run .venv/bin/python tests/bats/container/compose_examples.py "${BATS_FILE_TMPDIR}/0.9.1" 0.9.1
  assert_status 0
  [[ $(grep -c ' accepted$' <<<"$output") == 8 && ${#lines[@]} == 12 ]] || fail "$output"
}

@test "an override that no release knows is found" {
  sed 's/trainer\.nnodes=/trainer.nodes=/' env/ray/dev.yaml >"${BATS_TEST_TMPDIR}/wrong.yaml"
  PYTHONPATH=py:judge:py/hooks run .venv/bin/python tests/bats/container/compose_profiles.py "${BATS_TEST_TMPDIR}/wrong.yaml" "${BATS_FILE_TMPDIR}/0.9.1" 0.9.1
  assert_status 0
  assert_line "ppo - The override 'trainer.nodes=2' \(from .*/wrong.yaml\) sets a key that ppo_trainer of .* lacks: did you mean trainer.nnodes.*"
}
