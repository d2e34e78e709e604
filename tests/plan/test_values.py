"""What overrides set, against verl's own config: the configs of four releases, pasted values, and keys that verl does not read."""

import gzip
import json
from functools import cache

import pytest
import yaml
from hermetic import REPO
from hydra.core.override_parser.overrides_parser import OverridesParser
from shared_fixtures import write

from verl_regress.base.errors import BadInput, Refusals
from verl_regress.plan import values
from verl_regress.plan.compose import compose
from verl_regress.plan.overrides import Override, merge, of_command_line, of_shape
from verl_regress.plan.source import Source

RELEASES = ("0.7.1", "0.8.0", "0.9.1", "main")
# What is pasted for a value of each kind, with {} for verl's own.
PASTED = {
    "number": ['"{}"', "None", '"False"', "[{}]", "'{} steps'"],
    "flag": ['"{}"', "None", "yes", "[{}]", "2"],
    "list": ['"{}"', "None", "1", "True"],
}
RIGHT = {
    "number": ["{}", "null", "1e-6", "3"],
    "flag": ["{}", "null", "true", "0"],
    "list": ["null", "console", "[a,1]"],
}
parser = OverridesParser.create()


def composed(snapshot, override):
    given = override if isinstance(override, Override) else Override(override, "OVERRIDES")
    code = {"code_id": "codeA", "verl_version": "0.7.1"}
    with Refusals() as wrong:
        return compose(snapshot, code, "verl.trainer.main_ppo", merge([given], wrong=wrong), wrong)


def refusal(snapshot, override):
    with pytest.raises(BadInput) as caught:
        composed(snapshot, override)
    return str(caught.value)


@cache
def parsed(value):
    return parser.parse_override(f"key={value}").value()


def configs(release):
    """The composed configs of a release: of PPO and GRPO, of SFT, and of both with Megatron."""
    file = REPO / "tests" / "recorded" / "configs" / f"verl-{release}.json.gz"
    return json.loads(gzip.decompress(file.read_bytes()))


def leaves(node, above=""):
    for name, value in node.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def is_refused(key, default, value, checks):
    try:
        checks.need_type("it", f"{key}={value}", default, parsed(value), {"model_engine": "dp"}.get)
    except BadInput:
        return True
    return False


@pytest.mark.parametrize("release", RELEASES)
def test_a_pasted_value_of_any_number_flag_or_list_of_a_release_is_refused(release, tmp_path):
    checks, tried = values.Values(Source(tmp_path), "it"), 0
    for config in configs(release).values():
        for key, default in leaves(config):
            kind = values._kind(default).removeprefix("a ")
            tried += kind in PASTED
            assert [p for p in PASTED.get(kind, ()) if not is_refused(key, default, p.format(default), checks)] == [], (
                key
            )
            assert [r for r in RIGHT.get(kind, ()) if is_refused(key, default, r.format(default), checks)] == [], key
    assert tried > 450


def shipped():
    """The overrides of all JobSpecs, suites, examples and Ray base configs."""

    def lists(node, above=""):
        if isinstance(node, dict):
            for key, value in node.items():
                yield from lists(value, key if key not in ("rl", "ppo", "grpo", "sft") else above)
        elif isinstance(node, list) and above in ("trainer_overrides", "overrides"):
            yield from node

    for folder in ("jobspecs", "suites", "examples", "env/ray"):
        for file in sorted((REPO / folder).glob("*.yaml")):
            yield from (of_shape(text, 2, 4) for text in lists(yaml.safe_load(file.read_text())))


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_shipped_is_accepted_for_every_release(release, tmp_path):
    checks, tried = values.Values(Source(tmp_path), "it"), 0
    for config in configs(release).values():
        own = dict(leaves(config))
        for override in (Override(text.lstrip("?!"), "shipped") for text in shipped()):
            key = override.parts()[1]
            if key in own:
                value = override.text.partition("=")[2]
                assert not is_refused(key, own[key], value, checks), override
                tried += 1
    assert tried > 40


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.train_batch_size=512 \\", "ends in a backslash, which is your shell's: leave it out."),
        ("$@", "has $@, which only your shell fills in: leave it out."),
        ("trainer.total_epochs=15 $@", "has $@, which only your shell fills in: leave it out."),
        ("data.train_files=$HOME/a.parquet", "has $HOME, which only your shell fills in: write its value."),
        ("data.train_files=${DATA:-/d}/a", "has ${DATA:-/d}, which only your shell fills in: write its value."),
        ("data.train_files=${data_dir}/a", "has ${data_dir}, which only your shell fills in: write its value."),
        (
            "trainer.total_training_steps=None",
            "sets a text that looks like null: write trainer.total_training_steps=null.",
        ),
        (
            "data.train_files=\"['/a', '/b']\"",
            "sets a text that looks like a list: write data.train_files=['/a', '/b'].",
        ),
        (
            'trainer.logger=\'["console","wandb"]\'',
            'sets a text, but in verl\'s config it is a list ([\'console\']): write trainer.logger=["console","wandb"].',
        ),
        (
            'trainer.del_local_ckpt_after_load="False"',
            "sets a text, but in verl's config it is a flag (False): write trainer.del_local_ckpt_after_load=False.",
        ),
        ("trainer.save_freq=often", "sets a text, but in verl's config it is a number (-1): write a number."),
        ("trainer.save_freq='\ud800'", "sets a text, but in verl's config it is a number (-1): write a number."),
        ("trainer.save_freq=", "sets a text, but in verl's config it is a number (-1): write a number."),
        ("algorithm.kl=0.1", "sets a number, but in verl's config it is a mapping (coef): write a mapping."),
        (
            "--config-name=ppo_megatron_trainer.yaml",
            "is an option of Hydra's command line, and the workload names verl's config: leave it out, and for Megatron write "
            "model_engine=megatron, or for SFT engine=megatron and optim=megatron.",
        ),
    ],
)
def test_a_pasted_value_is_refused_with_what_to_write(shared, override, said):
    given = Override(override, "OVERRIDES")
    assert refusal(shared.snapshots / "codeA", given) == f"{given.shown} {said}"


@pytest.mark.parametrize(
    "override",
    [
        "trainer.experiment_name='run $HOME'",
        "trainer.experiment_name='[INST]'",
        "trainer.experiment_name=${trainer.project_name}-${oc.env:USER,me}",
        "trainer.experiment_name='ends in two \\\\'",
        "trainer.logger=console",
        "trainer.total_training_steps=1e3",
        "trainer.save_freq=${trainer.total_epochs}",
        "trainer.save_freq=after_each_epoch",
        "algorithm.kl.coef=0.5_4.0",
        "+ray_kwargs.env_vars.FLAG='False'",
    ],
)
def test_what_hydra_and_verl_take_is_accepted(shared, override, monkeypatch):
    monkeypatch.setenv("USER", "me")
    code = 'if save_freq == "after_each_epoch": pass\nclass Kl:\n    coef: float | str = 0.1\n'
    write(shared.snapshots / "codeA" / "verl" / "kl.py", code)
    if "1e3" not in override:
        assert len(composed(shared.snapshots / "codeA", override).overrides) == 1
    else:  # a count is a whole number
        assert "must be a whole number" in refusal(shared.snapshots / "codeA", override)


# --- keys


OLD = """\
reward: {num_workers: 8, custom_reward_function: {path: null}, reward_manager: {name: naive}, reward_model: {enable: false}}
custom_reward_function: {path: null, name: null}
reward_model: {enable: null, reward_manager: null, model: {path: null, external_lib: null}}
"""


@pytest.mark.parametrize(
    ("override", "cure"),
    [
        ("custom_reward_function.path=/a.py", "write 'reward.custom_reward_function.path=/a.py'"),
        ("++custom_reward_function.name=f", "write '++reward.custom_reward_function.name=f'"),
        ("reward_model.reward_manager=dapo", "write 'reward.reward_manager.name=dapo'"),
        ("reward_model.enable=True", "write 'reward.reward_model.enable=True'"),
        ("+reward_model.reward_kwargs.max_resp_len=9", "write '+reward.reward_kwargs.max_resp_len=9'"),
        ("reward_model.model.path=/m", "write 'reward.reward_model.model_path=/m'"),
        ("reward_model.model.external_lib=x", "leave it out"),
    ],
)
def test_an_old_key_is_refused_where_no_trainer_copies_it(shared, override, cure):
    snapshot = shared.snapshots / "codeA"
    config = snapshot / "verl" / "trainer" / "config" / "ppo_trainer.yaml"
    write(config, config.read_text() + OLD)
    assert len(composed(snapshot, override).overrides) == 1  # its trainer does
    trainer = snapshot / "verl" / "trainer" / "main_ppo.py"
    write(trainer, trainer.read_text().replace("migrate_legacy_reward_impl(config)", "..."))
    assert refusal(snapshot, override) == (
        f"The override '{override}' (from OVERRIDES) sets a key that verl 0.7.1 no longer reads: {cure}."
    )


def test_a_key_that_no_code_names_is_refused_where_verl_reads_key_by_key(shared):
    snapshot = shared.snapshots / "codeA"
    config = snapshot / "verl" / "trainer" / "config" / "ppo_trainer.yaml"
    read = [f"key_{letter}" for letter in "abcdefghijklmnopqrst"]
    mapping = ", ".join(f"{name}: 1" for name in (*read, "gone"))
    write(config, f"{config.read_text()}many: {{{mapping}}}\nhanded_on: {{gone: 1, too: 2}}\n")
    write(snapshot / "verl" / "reads.py", " ".join(read))
    assert refusal(snapshot, "many.gone=2") == (
        "The override 'many.gone=2' (from OVERRIDES) sets a key that no Python file of verl 0.7.1 names: leave it out, or write "
        "'++many.gone=2' if code of your own reads it."
    )
    optional = Override("many.gone=2", "env/ray/dev.yaml", optional=True)
    for accepted in ("++many.gone=2", "many.key_a=2", "handed_on.gone=2", optional):
        assert len(composed(snapshot, accepted).overrides) == 1


def test_a_file_pasted_from_a_script_is_refused_line_by_line(submit):
    lines = "trainer.project_name=a\ndata.train_batch_size=512 \\\n"
    assert [each.origin for each in of_command_line("o.txt", lines, "")][1] == "OVERRIDES_FILE o.txt line 2"
    assert submit("OVERRIDES_FILE=o.txt", "DRY_RUN=1", overrides=lines.encode()).is_refusal(
        "The override 'data.train_batch_size=512 \\\\' (from OVERRIDES_FILE o.txt line 2) ends in a backslash, which is your shell's: leave it out."
    )
