"""Overrides against a snapshot's own config: which are refused, in which words, and that no verl is imported for it."""

import subprocess
import sys

import pytest
import yaml
from shared_fixtures import BASE, CONFIG, SPEC, TRAINER, write
from wording import THEIRS, said

from verl_regress.base.errors import BadInput, Refusals
from verl_regress.plan.compose import compose
from verl_regress.plan.devices import Devices, Pool
from verl_regress.plan.overrides import Override

CODE = {"code_id": "codeA", "verl_version": "0.7.1"}
WHOLE = "ppo_trainer of CODE_ID=codeA (verl 0.7.1)"
SAVE = "trainer.save_freq"


@pytest.fixture
def snapshot(shared):
    return shared.snapshots / "codeA"


def composed(snapshot, *overrides, module="verl.trainer.main_ppo"):
    given = [item if isinstance(item, Override) else Override(item, "OVERRIDES") for item in overrides]
    with Refusals() as wrong:
        return compose(snapshot, CODE, module, given, wrong)


def refusal(snapshot, *overrides, **kwargs):
    with pytest.raises(BadInput) as caught:
        composed(snapshot, *overrides, **kwargs)
    return str(caught.value)


def test_the_config_is_the_snapshots_with_overrides_and_references_filled_in(snapshot):
    result = composed(snapshot, "trainer.save_freq=5", "actor_rollout_ref.model.path=/m", "+critic.new={a: [1, x]}")
    config = yaml.safe_load(result.text)
    assert config["trainer"]["save_freq"] == 5
    assert config["critic"]["model"]["tokenizer"] == "/m"
    assert config["critic"]["new"] == {"a": [1, "x"]}
    assert config["data"]["train_batch_size"] == 1024
    assert (len(result.overrides), result.left_out) == (3, ())


def test_the_trainer_itself_names_its_config(snapshot):
    trainer = (
        '@hydra.main(config_path="elsewhere", config_name="sft_trainer_engine", version_base=None)\ndef main(c): ...\n'
    )
    write(snapshot / "verl" / "trainer" / "sft_trainer_ray.py", trainer)
    write(
        snapshot / "verl" / "trainer" / "elsewhere" / "sft_trainer_engine.yaml", "defaults: [part@optim: one, _self_]\n"
    )
    write(snapshot / "verl" / "trainer" / "elsewhere" / "part" / "one.yaml", "lr: 1\n")
    write(snapshot / "verl" / "trainer" / "elsewhere" / "part" / "two.yaml", "lr: 2\n")
    module = "verl.trainer.sft_trainer_ray"
    assert yaml.safe_load(composed(snapshot, "optim.lr=3", module=module).text) == {"optim": {"lr": 3}}
    assert yaml.safe_load(composed(snapshot, "part@optim=two", module=module).text) == {"optim": {"lr": 2}}


@pytest.mark.parametrize(
    ("override", "cure"),
    [
        ("trainer.totl_epochs=2", "did you mean trainer.total_epochs? To add"),
        ("traner.total_epochs=2", "did you mean trainer.total_epochs? To add"),
        ("train_batch_size=2", "did you mean data.train_batch_size? To add"),
        ("critic.lr=2", "did you mean critic.optim.lr? To add"),
        ("data.val_file=x", "did you mean data.val_files or data.train_files? To add"),
        ("trainer.save_freq.often=1", "did you mean trainer.save_freq? To add"),
        ("model.path=x", "did you mean critic.model.path or actor_rollout_ref.model.path? To add"),
        ("xyz=1", "to add"),
    ],
)
def test_a_misspelt_key_is_refused_with_the_nearest_real_ones(snapshot, override, cure):
    assert refusal(snapshot, "trainer.save_freq=1", override, "trainer.total_epochs=2") == (
        f"The override '{override}' (from OVERRIDES) sets a key that {WHOLE} lacks: {cure} a new key, write '+{override}'."
    )


@pytest.mark.parametrize(
    "override",
    [
        "hydra.job.num=abc",
        "trainer.save_freq=${no.where}",
        "~trainer.nothing",
        "+trainer.save_freq=1",
        "trainer.save_freq=1,2",
        "trainer.total_epochs=[1",
        "trainer.logger=a=b",
    ],
)
def test_a_value_that_hydra_refuses(snapshot, override):
    assert refusal(snapshot, "trainer.total_epochs=1", override) == said(
        f"The override {override!r} (from OVERRIDES) does not fit {WHOLE}, as Hydra says ({THEIRS}): fix it, leave it out, or quote its "
        "value as in key='a, b'."
    )


def test_a_reference_that_only_the_job_can_fill_in_stays(snapshot):
    config = snapshot / "verl" / "trainer" / "config" / "ppo_trainer.yaml"
    write(config, "here: ${oc.env:ONLY_IN_THE_JOB}\nother: 1\n")
    first, *rest = composed(snapshot, "other=2").text.splitlines()
    assert first.startswith("# ${…} is not filled in: ")
    assert "ONLY_IN_THE_JOB" in first
    assert yaml.safe_load("\n".join(rest)) == {"here": "${oc.env:ONLY_IN_THE_JOB}", "other": 2}


def test_an_optional_override_is_left_out_if_its_key_does_not_exist(snapshot):
    present, absent, other = (
        Override(text, "env/ray/cpu.yaml", optional=True) for text in ("trainer.save_freq=7", "trainer.no=1", "no.no=1")
    )
    result = composed(snapshot, absent, present, other, "trainer.total_epochs=3")
    assert result.left_out == (absent, other)
    assert [override.text for override in result.overrides] == ["trainer.save_freq=7", "trainer.total_epochs=3"]
    assert yaml.safe_load(result.text)["trainer"]["save_freq"] == 7


@pytest.mark.parametrize("prefix", ["+", "++"])
def test_an_optional_addition_is_left_out_if_its_mapping_does_not_exist(snapshot, prefix):
    def optional(key):
        return Override(f"{prefix}{key}=1", "env/ray/dev.yaml", optional=True)

    homeless = [optional(key) for key in ("queue.storage.on", "queue.storage.more.on", "algorithm.kl.new.on")]
    at_home = [optional(key) for key in ("algorithm.kl.new_too", "top")]
    result = composed(snapshot, homeless[0], at_home[0], homeless[1], "trainer.total_epochs=3", at_home[1], homeless[2])
    assert set(result.left_out) == set(homeless)
    config = yaml.safe_load(result.text)
    assert (config["algorithm"]["kl"], config["top"]) == ({"coef": 0.001, "new_too": 1}, 1)
    assert "queue" not in config


def test_an_optional_addition_stays_in_a_mapping_that_another_override_makes(snapshot):
    addition = Override("+queue.storage.on=1", "env/ray/dev.yaml", optional=True)
    assert composed(snapshot, addition, "+queue.storage.size=2").left_out == ()
    assert composed(snapshot, "+queue.storage.size=2", addition).left_out == ()
    assert composed(snapshot, Override("+queue.storage.on=1", "env/ray/dev.yaml")).left_out == ()  # not optional
    optional = Override("queue.storage.size=2", "env/ray/dev.yaml", optional=True)  # it makes none
    assert set(composed(snapshot, addition, optional).left_out) == {addition, optional}


def test_an_optional_addition_to_an_existing_key_sets_it_with_two_plusses(snapshot):
    def optional(text):
        return Override(text, "env/ray/dev.yaml", optional=True)

    result = composed(snapshot, optional("++algorithm.kl.coef=1"))
    assert yaml.safe_load(result.text)["algorithm"]["kl"] == {"coef": 1}
    assert result.left_out == ()
    assert "(from env/ray/dev.yaml) does not fit" in refusal(snapshot, optional("+algorithm.kl.coef=1"))


def test_a_snapshot_without_the_trainer(snapshot):
    assert refusal(snapshot, module="verl.trainer.sft_trainer_ray").startswith(
        "CODE_ID=codeA (verl 0.7.1) has no verl.trainer.sft_trainer_ray with @hydra.main that can be read ("
    )


def test_verl_is_not_imported_even_if_hydra_looks_into_a_package(snapshot, tmp_path):
    """In a separate interpreter, with a verl on its path that would end it: hydra.searchpath makes Hydra import packages."""
    ends = "raise SystemExit('verl was imported')\n"
    for place in (snapshot, tmp_path / "site"):
        write(place / "verl" / "__init__.py", ends)
        write(place / "verl" / "trainer" / "__init__.py", ends)
    script = (
        "import sys\nfrom pathlib import Path\nfrom verl_regress.base.errors import Refusals\n"
        "from verl_regress.plan.compose import compose\n"
        "from verl_regress.plan.overrides import Override\n"
        f"compose(Path({str(snapshot)!r}), {CODE!r}, 'verl.trainer.main_ppo', "
        "[Override('hydra.searchpath=[pkg://verl.trainer]', 'x')], Refusals())\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('verl', 'torch')]\n"
    )
    path = ":".join([str(tmp_path / "site"), *sys.path])
    ended = subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": path}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    probe = [sys.executable, "-c", "import verl"]
    assert subprocess.run(probe, env={"PYTHONPATH": path}, capture_output=True).returncode == 1  # it would have ended


def test_all_that_is_wrong_is_said_at_once(snapshot):
    """Before: a pasted list took a round for each fault."""
    given = ("trainer.totl_epochs=2", "trainer.save_freq={", "data.train_batch_size=many", "trainer.nnodes.x=1")
    with pytest.raises(BadInput) as caught:
        composed(snapshot, *given, "trainer.save_freq=5", "trainer.total_epochs=0")
    said = [sentence.split("'")[1] for sentence in caught.value.sentences if sentence.startswith("The override")]
    assert sorted(said) == sorted(given)
    assert caught.value.sentences[-1].startswith("trainer.total_epochs=0 (from OVERRIDES) is not usable")


def test_what_we_advise_is_not_refused_next(snapshot):
    write(snapshot / "verl" / "trainer" / "main_ppo.py", TRAINER.replace("migrate_legacy_reward_impl(config)", "..."))
    more = "reward: {custom_reward_function: {path: null}, sandbox_fusion: {url: null}}\nsandbox_fusion: {url: null}\n"
    write(snapshot / "verl" / "trainer" / "config" / "ppo_trainer.yaml", CONFIG + more)
    override = "reward_model.sandbox_fusion.url=http://x"
    assert refusal(snapshot, override) == (
        f"The override '{override}' (from OVERRIDES) sets a key that {WHOLE} lacks: did you mean reward.sandbox_fusion.url?"
    )


# --- as `make submit` hands them over


def test_a_misspelt_key_in_any_layer_is_refused_with_its_origin(submit, ray, shared):
    def lacks(origin):
        return (
            f"The override 'trainer.save_frq=1' (from {origin}) sets a key that {WHOLE} lacks: did you mean {SAVE}? To add a "
            "new key, write '+trainer.save_frq=1'."
        )

    text = "trainer.save_frq=1"
    assert submit(f"OVERRIDES={text}").is_refusal(lacks("OVERRIDES"))
    assert submit(spec=f"{SPEC}trainer_overrides: [{text}]\n").is_refusal(lacks("my/ppo.yaml"))
    assert submit(base=BASE.replace("trainer.device=cpu", text)).is_refusal(lacks("env/ray/cpu.yaml"))
    overrides = f"# a remark\n\n{SAVE}=3\n{text}\n".encode()
    assert submit("OVERRIDES_FILE=my/o.txt", overrides=overrides).is_refusal(lacks("OVERRIDES_FILE my/o.txt line 4"))
    assert ray.seen == []


def test_an_overrides_file_is_taken_as_it_is_and_overrides_wins_over_it(submit, shared):
    lines = [
        "trainer.project_name='a  b $HOME $(x) # no'",
        "#trainer.project_name=z",
        f"{SAVE}=3",
        "  ",
        "~data.val_files",
    ]
    for end in ("\n", "\r\n"):
        outcome = submit("OVERRIDES_FILE=o.txt", f"OVERRIDES={SAVE}=4", "DRY_RUN=1", overrides=end.join(lines).encode())
        assert outcome.status == 0, outcome.err
        config = yaml.safe_load(outcome.out.split("# verl's config\n")[1].split("# runtime_env\n")[0])
        assert config["trainer"]["project_name"] == "a  b $HOME $(x) # no"
        assert config["trainer"]["save_freq"] == 4
        assert "val_files" not in config["data"]


def test_the_devices_are_those_of_the_whole_config(snapshot):
    pool = ("+trainer.nnodes=2", "+trainer.n_gpus_per_node=${trainer.save_freq}", "trainer.save_freq=3")
    assert composed(snapshot).devices == Devices("GPU", 0)
    assert composed(snapshot, *pool, "trainer.device=cpu").devices == Devices("cpu", 6, (Pool("trainer", 2, 3),))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("total_training_steps", "0"),
        ("total_epochs", "-1"),
        ("nnodes", "abc"),
        ("n_gpus_per_node", "1.5"),
        ("nnodes", "True"),
        ("nnodes", "[1]"),
    ],
)
def test_a_count_that_is_no_whole_number_of_at_least_1_is_refused(snapshot, key, value):
    assert refusal(snapshot, f"++trainer.{key}={value}") == (
        f"trainer.{key}={value} (from OVERRIDES) is not usable: it must be a whole number of at least 1."
    )
    assert composed(snapshot, f"++trainer.{key}=7", "trainer.total_training_steps=null")
