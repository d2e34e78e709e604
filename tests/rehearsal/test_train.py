"""`python -m verl_rehearsal train`: the argv of verl's trainer, and what is refused before it starts."""

import os
import sys
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from shared_fixtures import write

from verl_regress.plan.overrides import of_shape
from verl_rehearsal import __main__ as command
from verl_rehearsal import train

# What a cluster of two workers has, and one machine does not.
_OF_A_CLUSTER = {
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "transfer_queue.backend.SimpleStorage.required_node_resource",
}
_OF_A_PLAN = {"algorithm.adv_estimator", "trainer.total_training_steps"}  # the plan and the rehearsal each name these


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """What the trainer is started with, as (overrides by key, environment); verl's config has `critic.fsdp` alone of what is optional."""
    write(tmp_path / "model" / "config.json", "{}")
    write(tmp_path / "data" / "train.parquet", "")
    monkeypatch.setattr(train, "_composed", lambda: OmegaConf.create({"critic": {"fsdp": {"strategy": "fsdp"}}}))
    monkeypatch.setattr(os, "environ", {})
    started = []
    monkeypatch.setattr(os, "execv", lambda _, argv: started.append(argv))

    def trained(workload, *overrides):
        folders = [f"--model={tmp_path / 'model'}", f"--data={tmp_path / 'data'}"]
        command.main(["train", workload, str(tmp_path / "run"), *folders, *overrides])
        assert started[0][:2] == [sys.executable, "-m"]
        pairs = [each.lstrip("+").partition("=")[::2] for each in started[0][3:]]
        assert len(dict(pairs)) == len(pairs), "a key is there twice"
        return started[0][2], dict(pairs)

    return trained


def test_the_trainer_gets_its_files_and_an_own_directory(trained, tmp_path):
    module, overrides = trained("sft")
    assert module == "verl.trainer.sft_trainer_ray"
    assert overrides["model.path"] == str(tmp_path / "model")
    assert overrides["data.val_files"] == f"{tmp_path}/data/sft_test.parquet"
    assert overrides["trainer.default_local_dir"] == f"{tmp_path}/run/checkpoints"
    assert os.environ["VERL_FILE_LOGGER_PATH"] == f"{tmp_path}/run/metrics.jsonl"
    assert os.environ["VERL_REHEARSAL"] == "1"


def test_the_users_override_wins_and_optional_keys_need_a_config_that_has_them(trained):
    _, overrides = trained("ppo", "trainer.total_training_steps=3", "+trainer.mine=1")
    assert (overrides["trainer.total_training_steps"], overrides["trainer.mine"]) == ("3", "1")
    assert overrides["critic.fsdp.strategy"] == "fsdp2"
    assert overrides["critic.fsdp.micro_batch_size_per_gpu"] == "2"  # added to what the config has
    assert "trainer.use_legacy_worker_impl" not in overrides


@pytest.mark.parametrize(("workload", "groups"), [("ppo", ("rl", "ppo")), ("grpo", ("rl", "grpo")), ("sft", ("sft",))])
def test_a_cluster_of_the_profile_cpu_trains_with_the_same_overrides(workload, groups):
    profile = yaml.safe_load((Path(__file__).parents[2] / "env" / "ray" / "cpu.yaml").read_text())
    assert train._ENVIRONMENT.items() <= profile["runtime_env"]["env_vars"].items()

    def by_key(overrides):
        found = {train._key(each): each for each in overrides}
        return {key: each for key, each in found.items() if key not in _OF_A_CLUSTER | _OF_A_PLAN}

    theirs = [of_shape(each, 2, 1) for group in groups for each in profile["trainer_overrides"][group]]
    assert by_key(train.TRAINERS[workload].overrides) == by_key(theirs)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["!"], "unrecognized arguments: !"),
        (["--steps=3"], "unrecognized arguments: --steps=3"),
        (["trainer.device=cuda"], "trainer.device=cuda is not possible in a rehearsal"),
    ],
)
def test_what_is_refused_leaves_nothing(trained, tmp_path, capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        trained("grpo", *words)
    assert said in f"{ended.value.code} {capsys.readouterr().err}"
    assert not (tmp_path / "run").exists()


def test_records_of_another_run_are_not_appended_to(trained, tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(SystemExit, match="run exists, and may have the records of another run: name a new directory"):
        trained("sft")


def test_a_missing_model_says_how_to_make_it(trained, tmp_path):
    (tmp_path / "model" / "config.json").unlink()
    with pytest.raises(SystemExit, match=r"make it with 'python -m verl_rehearsal model .*/model'"):
        trained("sft")
