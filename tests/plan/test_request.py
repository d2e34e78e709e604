"""A request, and its further attempts: TRAIN_SEED sets every key for a seed that the release has; what the base config lists for
DETERMINISTIC=1 is added to the job and recorded, or the job is refused.
"""

import json

import pytest
import yaml
from shared_fixtures import BASE, CONFIG, SFT_CONFIG, SPEC, TRAINER, record, write, write_checkpoint

from verl_regress.base.layout import HELPER_DIR, JobDir

pytestmark = pytest.mark.slow

# The keys for seeds of each release, as its configuration has them (trainer/config/_generated_ppo_trainer.yaml).
ACTOR = ("data.seed", "actor_rollout_ref.actor.data_loader_seed", "actor_rollout_ref.actor.fsdp_config.seed")
RL = (*ACTOR, "actor_rollout_ref.ref.fsdp_config.seed")
ROLLOUT = ("actor_rollout_ref.rollout.seed", "reward.reward_model.rollout.seed")
RELEASES = {
    "0.7.1": (RL, ("critic.data_loader_seed", "critic.model.fsdp_config.seed")),
    "0.8.0": (RL, ("critic.data_loader_seed", "critic.fsdp.seed")),
    "0.9.1": ((*RL, *ROLLOUT), ("critic.data_loader_seed", "critic.fsdp.seed")),
}


def snapshot_with(shared, *keys):
    """Make codeA a release whose PPO trainer has these keys, and whose SFT trainer has those of every release."""
    config = yaml.safe_load(CONFIG)
    config["trainer"]["rollout_data_dir"] = None
    for key in keys:
        node, parts = config, key.split(".")
        for part in parts[:-1]:
            node = node.setdefault(part, {})
        node[parts[-1]] = 42
    trainer = shared.snapshots / "codeA" / "verl" / "trainer"
    write(trainer / "config" / "ppo_trainer.yaml", yaml.safe_dump(config))
    sft = yaml.safe_load(SFT_CONFIG)
    sft |= {"trainer": sft["trainer"] | {"seed": 1}, "engine": {"seed": 42}}
    write(trainer / "config" / "sft_trainer_engine.yaml", yaml.safe_dump(sft))
    write(trainer / "sft_trainer_ray.py", TRAINER.replace("ppo_trainer", "sft_trainer_engine"))
    record(shared.snapshots / "codeA")


def read(job, name):
    return json.loads((job.config / name).read_text(encoding="utf-8"))


def seeds_of(job):
    """The seeds that the trainer gets."""
    return {word for word in read(job, "resolved.json")["argv"] if word.partition("=")[0].endswith("seed")}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("workload", ["ppo", "grpo"])
def test_every_key_of_the_release_gets_the_seed(submit, shared, release, workload):
    keys, critic = RELEASES[release]
    snapshot_with(shared, *keys, *critic)
    assert submit("SUBMISSION_ID=me", "TRAIN_SEED=3", spec=f"workload: {workload}\n").status == 0
    wanted = (*keys, *critic) if workload == "ppo" else keys
    job = JobDir(shared.jobs / "me")
    assert f"trainer.rollout_data_dir={job.path}/samples" in read(job, "resolved.json")["argv"]
    assert seeds_of(job) == {f"{key}=3" for key in wanted}
    assert {item["origin"] for item in read(job, "resolved.json")["overrides"] if "seed=" in item["text"]} == {
        "TRAIN_SEED"
    }


def test_sft_gets_its_seeds_and_one_for_the_choice_of_rows(submit, shared):
    snapshot_with(shared)
    assert submit("SUBMISSION_ID=me", "TRAIN_SEED=0", spec="workload: sft\n").err == (
        "changed submitted me (sft, profile cpu, code codeA: pypi:0.7.1)\n"
    )
    assert seeds_of(JobDir(shared.jobs / "me")) == {"trainer.seed=0", "engine.seed=0", "++data.seed=0"}


def test_without_a_seed_or_if_the_user_says_otherwise_nothing_is_written(submit, shared):
    snapshot_with(shared)
    assert submit("SUBMISSION_ID=one").status == 0
    assert not [word for word in read(JobDir(shared.jobs / "one"), "resolved.json")["argv"] if "rollout_data" in word]
    assert submit("SUBMISSION_ID=two", "TRAIN_SEED=3", "OVERRIDES=trainer.rollout_data_dir=null").status == 0
    argv = read(JobDir(shared.jobs / "two"), "resolved.json")["argv"]
    assert [word for word in argv if "rollout_data" in word] == ["trainer.rollout_data_dir=null"]


def test_a_line_for_each_says_which_keys_the_release_lacks(submit, shared):
    keys, critic = RELEASES["0.8.0"]
    snapshot_with(shared, *keys, *critic)
    lacking = ("actor_rollout_ref.rollout.seed", "reward.reward_model.rollout.seed", "critic.model.fsdp_config.seed")
    lines = (f"skip    override {key}=3 (optional in TRAIN_SEED, verl 0.7.1 has no such key)\n" for key in lacking)
    changed = "changed submitted me (ppo, profile cpu, code codeA: pypi:0.7.1)\n"
    assert submit("SUBMISSION_ID=me", "TRAIN_SEED=3").err == "".join([*lines, changed])


def test_it_wins_over_the_jobspec_and_overrides_win_over_it(submit, shared):
    snapshot_with(shared, *RELEASES["0.8.0"][0])
    spec = f"{SPEC}trainer_overrides: [data.seed=5, actor_rollout_ref.actor.data_loader_seed=5]\n"
    assert submit("SUBMISSION_ID=me", "TRAIN_SEED=3", "OVERRIDES=data.seed=7", spec=spec).status == 0
    assert seeds_of(JobDir(shared.jobs / "me")) == {
        "data.seed=7", "actor_rollout_ref.actor.data_loader_seed=3", "actor_rollout_ref.actor.fsdp_config.seed=3",
        "actor_rollout_ref.ref.fsdp_config.seed=3",
    }  # fmt: skip


@pytest.mark.parametrize("command", ["retry", "resume"])
def test_a_further_attempt_has_the_settings_of_the_first(submit, run, ray, shared, command):
    snapshot_with(shared, *RELEASES["0.9.1"][0])
    assert submit("SUBMISSION_ID=me", "TRAIN_SEED=3", "DETERMINISTIC=1", base=WITH).status == 0
    job = JobDir(shared.jobs / "me")
    write_checkpoint(job, 4, latest=4)
    ray.knows({"submission_id": "me", "status": "FAILED"})
    job.write_state("ended", {"exit_code": 1, "reason": "the trainer ended"})
    assert run(command, "me").status == 0
    again = job.numbered(2)
    assert seeds_of(again) == seeds_of(job) == {f"{key}=3" for key in RELEASES["0.9.1"][0]}
    assert origins(again, "trainer.save_freq") == [("trainer.save_freq=4", "DETERMINISTIC=1")]
    assert read(again, "env_vars.json") == read(job, "env_vars.json")


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ('trainer.logger=["console","wandb"]', 'trainer.logger=["console","wandb",file]'),
        ("++trainer.logger=[ wandb ]", "++trainer.logger=[wandb,file]"),
        ("trainer.logger=[]", "trainer.logger=[file]"),
        ("trainer.logger=console", "trainer.logger=[console,file]"),
        ("trainer.logger=['file',console]", None),
        ("trainer.logger=file", None),
        ("trainer.logger=${data.train_files}", None),
    ],
)
def test_a_run_with_a_seed_has_the_file_logger_by_which_it_is_compared(submit, shared, given, used):
    """Before: A and B trained to the end, and were incomparable, because neither had a metrics.jsonl."""
    snapshot_with(shared, *RELEASES["0.9.1"][0])
    spec = f"{SPEC}env_vars: {{WANDB_MODE: offline}}\ntrainer_overrides: [{json.dumps(given)}]\n"
    said = f"        {used}: 'file' is added, because a run with TRAIN_SEED is compared by what this logger writes\n"
    done = submit("SUBMISSION_ID=me", "TRAIN_SEED=3", "ALLOW_MISMATCH=1", spec=spec)
    assert (done.status, said in done.err, "is added" in done.err) == (0, used is not None, used is not None)
    assert (used or given) in read(JobDir(shared.jobs / "me"), "resolved.json")["argv"]
    logger = yaml.safe_load((shared.jobs / "me" / "config" / "verl_config.yaml").read_text())["trainer"]["logger"]
    assert used is None or logger[-1] == "file"
    plain = submit("SUBMISSION_ID=plain", "ALLOW_MISMATCH=1", spec=spec)
    assert (plain.status, "is added" in plain.err) == (0, False)
    assert given in read(JobDir(shared.jobs / "plain"), "resolved.json")["argv"]


# --- DETERMINISTIC=1

SECTION = """\
deterministic:
  overrides: {rl: [trainer.save_freq=4, '?trainer.gone=1'], ppo: [critic.optim.lr=3], sft: [trainer.unread=1]}
  env_vars: {CUBLAS_WORKSPACE_CONFIG: ':16:8', NCCL_ALGO: Ring}
"""
WITH = BASE + SECTION


def origins(job, *keys):
    """Text and origin of these keys' overrides."""
    found = {item["text"].split("=")[0]: item for item in read(job, "resolved.json")["overrides"]}
    return [(found[key]["text"], found[key]["origin"]) for key in keys]


def test_its_overrides_are_recorded_with_their_origin(submit, shared):
    outcome = submit("SUBMISSION_ID=me", "DETERMINISTIC=1", base=WITH)
    assert (outcome.status, outcome.err) == (
        0,
        "skip    override trainer.gone=1 (optional in DETERMINISTIC=1, verl 0.7.1 has no such key)\n"
        "changed submitted me (ppo, profile cpu, code codeA: pypi:0.7.1)\n",
    )
    job = JobDir(shared.jobs / "me")
    assert origins(job, "trainer.save_freq", "critic.optim.lr") == [
        ("trainer.save_freq=4", "DETERMINISTIC=1"),
        ("critic.optim.lr=3", "DETERMINISTIC=1"),
    ]
    resolved = read(job, "resolved.json")
    assert {"trainer.save_freq=4", "critic.optim.lr=3"} <= set(resolved["argv"])
    assert resolved["left_out"] == [{"text": "trainer.gone=1", "origin": "DETERMINISTIC=1"}]
    assert read(job, "asked.json")["said"]["deterministic"] is True


def test_it_wins_over_the_jobspec_and_the_command_line_wins_over_it(submit, shared):
    spec = f"{SPEC}trainer_overrides: [trainer.save_freq=5, critic.optim.lr=5]\n"
    assert (
        submit("SUBMISSION_ID=me", "DETERMINISTIC=1", "OVERRIDES=critic.optim.lr=6", spec=spec, base=WITH).status == 0
    )
    assert origins(JobDir(shared.jobs / "me"), "trainer.save_freq", "critic.optim.lr") == [
        ("trainer.save_freq=4", "DETERMINISTIC=1"),
        ("critic.optim.lr=6", "OVERRIDES"),
    ]


def test_its_variables_are_set_by_the_hook_for_verl_hands_them_to_ray_itself(submit, shared, sdk):
    spec = f"{SPEC}env_vars: {{NCCL_ALGO: Tree, MINE: '1'}}\n"
    assert submit("SUBMISSION_ID=me", "DETERMINISTIC=1", spec=spec, base=WITH).status == 0
    wanted = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "NCCL_ALGO": "Ring"}
    assert read(JobDir(shared.jobs / "me"), "env_vars.json") == wanted
    by_ray = sdk.submitted[0]["runtime_env"]["env_vars"]
    assert not wanted.keys() & by_ray.keys()
    assert by_ray["MINE"] == "1"
    hooks = by_ray["VERL_REGRESS_HOOKS"].split(",")
    assert hooks[:2] == ["env_vars", "identity"]
    assert "verl_rehearsal.request_seed" in hooks
    assert f"{HELPER_DIR / 'rehearsal'}" in by_ray["PYTHONPATH"].split(":")


def test_a_variable_that_verl_sets_itself_goes_through_the_hook_without_the_knob_too(submit, shared, sdk):
    assert submit("SUBMISSION_ID=me", spec=f"{SPEC}env_vars: {{NCCL_ALGO: Tree}}\n", base=WITH).status == 0
    assert read(JobDir(shared.jobs / "me"), "env_vars.json") == {"NCCL_ALGO": "Tree"}
    assert "NCCL_ALGO" not in sdk.submitted[0]["runtime_env"]["env_vars"]


def test_a_snapshot_that_lacks_a_key_of_it_is_refused_before_anything_is_created(submit, ray):
    refused = submit("DETERMINISTIC=1", base=WITH.replace("trainer.save_freq=4", "trainer.use_v1=False"))
    assert refused.is_refusal(
        "DETERMINISTIC=1 needs trainer.use_v1, which ppo_trainer of CODE_ID=codeA (verl 0.7.1) lacks: name a snapshot whose "
        "verl has it, or leave DETERMINISTIC out."
    )
    assert ray.seen == []


def test_a_base_config_without_the_section_is_refused(submit, ray):
    assert submit("DETERMINISTIC=1").is_refusal(
        "DETERMINISTIC=1 is not possible with env/ray/cpu.yaml (RAY_BASE_CONFIG), which has no section 'deterministic': copy it from env/ray/dev.yaml, or leave DETERMINISTIC out."
    )
    assert ray.seen == []


def test_a_profile_that_is_always_deterministic_adds_nothing(submit, shared):
    base = f"{BASE}deterministic: {{}}\n"
    plain = submit("SUBMISSION_ID=plain", base=base)
    outcome = submit("SUBMISSION_ID=det", "DETERMINISTIC=1", base=base)
    assert (plain.status, outcome.status) == (0, 0)
    assert outcome.err == ("changed submitted det (ppo, profile cpu, code codeA: pypi:0.7.1)\n")
    names = [{path.name for path in (shared.jobs / name / "config").iterdir()} for name in ("plain", "det")]
    assert names[0] == names[1]
    overrides = [read(JobDir(shared.jobs / name), "resolved.json")["overrides"] for name in ("plain", "det")]
    assert overrides[0] == json.loads(json.dumps(overrides[1]).replace("/det", "/plain").replace("=det", "=plain"))
