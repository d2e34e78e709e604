"""Files of rows that verl would read otherwise than they are meant, or not at all, are refused by their footers."""

import json

import fake_pyarrow
import pytest
import yaml
from fake_pyarrow import CONVERSATION, parquet
from shared_fixtures import write

from verl_regress.base.errors import BadInput, Refusals
from verl_regress.base.workloads import WORKLOADS
from verl_regress.plan import data_files
from verl_regress.plan.compose import Composed
from verl_regress.plan.overrides import Override

MANAGER = """\
class NaiveRewardManager:
    async def run_single(self, data):
        item = data[0]
        source = item.non_tensor_batch["data_source"]
        truth = item.non_tensor_batch["reward_model"]["ground_truth"]
        turns = item.non_tensor_batch.get("__num_turns__")
"""
ROW = {
    "prompt": CONVERSATION,
    "data_source": "string",
    "reward_model": {"style": "string", "ground_truth": "string"},
    "extra_info": {"index": "int64"},
}


@pytest.fixture
def said(shared, monkeypatch):
    """The sentences about files of training data; keys of verl's config may be other ones."""
    fake_pyarrow.install(monkeypatch)
    write(shared.snapshots / "codeA" / "verl/experimental/reward_loop/reward_manager/naive.py", MANAGER)

    def said(*files, workload="grpo", **rollout):
        config = {
            "data": {"prompt_key": "prompt", "messages_key": "messages", "train_files": [str(file) for file in files]},
            "reward": {"reward_manager": {"name": "naive", "source": "register"}},
            "actor_rollout_ref": {"rollout": rollout},
        }
        named = (Override("data.train_files=x", "OVERRIDES"),)
        try:
            with Refusals() as wrong:
                composed = Composed(named, (), yaml.safe_dump(config))
                data_files.check(shared, WORKLOADS[workload], composed, shared.snapshots / "codeA", wrong)
        except BadInput as error:
            return [*error.sentences]
        return []

    return said


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("string", "string"),  # plain text, and JSON as text
        ([{"from": "string", "value": "string"}], "a list of {from, value}"),
        (["string"], "a list of string"),
        ({"role": ["string"], "content": ["string"]}, "{role, content}"),
        ("int64", "int64"),
    ],
)
@pytest.mark.parametrize(
    ("workload", "column", "key"), [("grpo", "prompt", "prompt_key"), ("sft", "messages", "messages_key")]
)
def test_prompts_that_are_no_conversation_are_refused(said, shared, kind, shown, workload, column, key):
    """Before: verl trained on empty messages, and the job succeeded."""
    file = parquet(shared.path / "user" / "a.parquet", 8, **{**ROW, column: kind})
    assert said(file, workload=workload) == [
        f"data.train_files={file} (from OVERRIDES) has {shown} in its column '{column}' (data.{key} of verl's config), but verl reads a list of "
        "{role, content} there, and would train on empty messages: write each as [{'role': 'user', 'content': …}], or name another column."
    ]


@pytest.mark.parametrize(
    "kind", [CONVERSATION, [{"role": "string", "content": [{"type": "string"}], "name": "string"}], ["null"], "null"]
)
def test_conversations_are_taken(said, shared, kind):
    assert said(parquet(shared.path / "user" / "a.parquet", 8, **{**ROW, "prompt": kind})) == []


def test_an_agent_loop_of_the_user_takes_any_prompt(said, shared):
    file = parquet(shared.path / "user" / "a.parquet", 8, prompt="string")
    assert said(file, agent={"agent_loop_config_path": "/private/user/loops.yaml"}) == []


@pytest.mark.parametrize(
    ("missing", "more", "what"),
    [
        ("data_source", {}, "has no such column: verl's reward manager naive reads data_source of each row"),
        (
            "reward_model",
            {},
            "has no such column: verl's reward manager naive reads reward_model.ground_truth of each row",
        ),
        (
            "reward_model",
            {"reward_model": {"style": "string"}},
            "has {style} there: verl's reward manager naive reads reward_model.ground_truth of each row",
        ),
    ],
)
def test_a_column_that_the_reward_manager_reads_is_needed(said, shared, missing, more, what):
    columns = {name: kind for name, kind in ROW.items() if name != missing} | more
    file = parquet(shared.path / "user" / "a.parquet", 8, **columns)
    assert said(file) == [
        f"data.train_files={file} (from OVERRIDES) {what}; add it, or name another reward manager with reward.reward_manager.name."
    ]


def test_two_files_with_other_types_in_a_column_are_refused(said, shared):
    """Before: `The features can't be aligned`, after 48 s and without a file's name."""
    a = parquet(shared.path / "user" / "a.parquet", 8, **ROW)
    b = parquet(shared.path / "user" / "b.parquet", 8, **{**ROW, "extra_info": {"index": "string"}})
    other = parquet(
        shared.path / "user" / "c.parquet", 8, **{**ROW, "extra_info": {"split": "string", "index": "null"}}
    )
    assert said(a, other) == []  # a key that one file has is fine, and so is one without values
    assert said(a, b) == [
        f"data.train_files (from OVERRIDES): extra_info.index is int64 in {a} and string in {b}, and verl joins both files: give it one type."
    ]


def test_json_is_read_by_its_first_rows(said, shared):
    row = {"prompt": [{"role": "user", "content": "1+1"}], "data_source": "x", "reward_model": {"ground_truth": 2}}
    lines = write(shared.path / "user" / "a.jsonl", f"{json.dumps(row)}\n" * 3)
    listed = write(shared.path / "user" / "b.json", json.dumps([row, {**row, "reward_model": {"ground_truth": 2.5}}]))
    assert said(lines, listed) == []
    texts = write(shared.path / "user" / "c.jsonl", json.dumps({**row, "reward_model": {"ground_truth": "2"}}))
    [sentence] = said(lines, texts)
    assert f"reward_model.ground_truth is int64 in {lines} and string in {texts}" in sentence
    asked = write(shared.path / "user" / "d.jsonl", json.dumps({**row, "prompt": "1+1"}))
    assert "has string in its column 'prompt'" in said(asked)[0]
    assert "is not JSON that can be read" in said(write(shared.path / "user" / "e.json", "{"))[0]
    assert "name one that ends in .parquet, .json or .jsonl." in said(write(shared.path / "user" / "f.csv", ""))[0]
