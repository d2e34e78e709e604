import io
import json
import os
from pathlib import Path

import pytest
from streams import state_of, tar, whole
from wording import THEIRS, said

from verl_regress.base.errors import BadInput, RegressError
from verl_regress.base.layout import SharedRoot
from verl_regress.store import artefact, datasets, hub

GOOD = b'{"question": "How many?", "answer": "2+1,000.\\n#### 1,002"}\n'
SHAPE = "write one JSON object per line, all with the same keys."
NOT_GSM8K = "the question is not text, or the answer has no '#### number' at its end: fix or drop it."


@pytest.fixture
def root(tmp_path):
    return SharedRoot(tmp_path / "shared root")


@pytest.fixture
def parquet_as_json(monkeypatch):
    """A parquet file is a list of rows as JSON."""

    def write(rows, path):
        path.write_bytes(rows.read_bytes() if isinstance(rows, Path) else json.dumps(rows).encode())

    def footer(path, _named):
        rows = json.loads(path.read_text())
        return list(rows[0]), len(rows)

    monkeypatch.setattr(datasets, "write_parquet", write)
    monkeypatch.setattr(datasets, "parquet_of", footer)


def prepare(root, source="path:/data", stream=None, name="", seed=1):
    """The manifest of what was made or was there, in the last form of it."""
    datasets.prepare(root, source, name, seed, stream or io.BytesIO())
    default = "sums" if source == "synthetic" else "gsm8k"
    return artefact.load(max(root.datasets.glob(f"{name or default}*")))


def refusal(root, *args, **kwargs):
    with pytest.raises(BadInput) as caught:
        prepare(root, *args, **kwargs)
    assert not list(root.datasets.glob("*"))
    return str(caught.value)


def gsm8k(train=GOOD, test=GOOD):
    return tar({"train.jsonl": train, "test.jsonl": test})


@pytest.mark.usefixtures("parquet_as_json")
def test_gsm8k_becomes_rows_as_verl_reads_them(root):
    manifest = prepare(root, stream=gsm8k(train=GOOD * 2))
    rows = json.loads((root.datasets / "gsm8k/train.parquet").read_text())
    assert rows[1] == {
        "data_source": "openai/gsm8k",
        "prompt": [
            {
                "role": "user",
                "content": 'How many? Let\'s think step by step and output the final answer after "####".',
            }
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "1002"},
        "extra_info": {"split": "train", "index": 1, "answer": "2+1,000.\n#### 1,002", "question": "How many?"},
    }
    assert (manifest.source, manifest.seed, manifest.facts) == ("path:/data", None, {"train_rows": 2, "test_rows": 1})


@pytest.mark.usefixtures("parquet_as_json")
def test_one_run_prepares_the_rl_data_and_the_sft_data(root):
    prepare(root, stream=gsm8k(train=GOOD * 2))
    question = 'How many? Let\'s think step by step and output the final answer after "####".'
    conversation = [{"role": "user", "content": question}, {"role": "assistant", "content": "2+1,000.\n#### 1,002"}]
    for split, rows in (("train", 2), ("val", 1)):
        file = root.datasets / "gsm8k_sft" / f"{split}.parquet"
        assert json.loads(file.read_text()) == [{"messages": conversation}] * rows
    manifest = whole(root.datasets / "gsm8k_sft")
    assert (manifest.name, set(manifest.files)) == ("gsm8k_sft", {"train.parquet", "val.parquet"})


@pytest.mark.usefixtures("parquet_as_json")
def test_a_sum_is_answered_by_its_number(root):
    prepare(root, "synthetic")
    rl, sft = (json.loads((root.datasets / name / "train.parquet").read_text())[0] for name in ("sums", "sums_sft"))
    answer = f"#### {rl['reward_model']['ground_truth']}"
    assert sft == {"messages": [*rl["prompt"], {"role": "assistant", "content": answer}]}


@pytest.mark.usefixtures("parquet_as_json")
def test_a_second_run_skips_and_changed_files_are_another_source(root, capsys):
    prepare(root, stream=gsm8k())
    before = state_of(root.path)
    capsys.readouterr()
    prepare(root, stream=gsm8k(), seed=2)  # the seed does not matter for GSM8K
    assert capsys.readouterr().err == "".join(
        f"skip    {root.datasets}/{name} (exists, same source)\n" for name in ("gsm8k", "gsm8k_sft")
    )
    with pytest.raises(BadInput, match="DATASET_SOURCE now asks for path:/data"):
        prepare(root, stream=gsm8k(test=GOOD * 2))
    assert state_of(root.path) == before


@pytest.mark.usefixtures("parquet_as_json")
def test_synthetic_rows_depend_on_the_seed_and_have_their_own_data_source(root):
    manifest = prepare(root, "synthetic")
    assert (manifest.name, manifest.seed) == ("sums_sft", 1)
    again = prepare(root, "synthetic", name="other", seed=2)
    assert again.revision != manifest.revision
    train = json.loads((root.datasets / "sums/train.parquet").read_text())
    assert set(train[0]) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
    assert manifest.facts["train_rows"] == len(train)


def test_generated_data_is_never_called_gsm8k_nor_gsm8k_sums(root):
    assert refusal(root, "synthetic", name="gsm8k") == (
        "DATASET=gsm8k is reserved for GSM8K, but synthetic (from DATASET_SOURCE) has other data: set another DATASET."
    )
    assert refusal(root, name="sums", stream=gsm8k()) == (
        "DATASET=sums is reserved for synthetic data, but path:/data (from DATASET_SOURCE) has other data: set another DATASET."
    )


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        (b"", f"/data/train.jsonl line 1 is not usable ({THEIRS}): {SHAPE}"),
        (GOOD + b"{'question'", f"/data/train.jsonl line 2 is not usable ({THEIRS}): {SHAPE}"),
        (GOOD + b"3", f"/data/train.jsonl line 2 is not usable ({THEIRS}): {SHAPE}"),
        (GOOD + b'{"question": "?"}', f"/data/train.jsonl line 2 is not usable (it lacks answer): {SHAPE}"),
        (b'{"question": "?", "answer": 3}', f"/data/train.jsonl line 1: {NOT_GSM8K}"),
        (b'{"question": 3, "answer": "#### 3"}', f"/data/train.jsonl line 1: {NOT_GSM8K}"),
        (GOOD * 2 + b'{"question": "?", "answer": "three"}', f"/data/train.jsonl line 3: {NOT_GSM8K}"),
    ],
)
def test_bad_data_is_refused_with_its_file_and_line(root, train, sentence):
    assert refusal(root, stream=gsm8k(train=train)) == said(sentence)


RL, SFT = {"prompt": [{"role": "user"}], "x": 1}, {"messages": [], "y": None}
NAME_TWO = "name a folder with one train and one test or val, each .parquet or .jsonl, or one such file."


def jsonl(*rows):
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


@pytest.mark.usefixtures("parquet_as_json")
@pytest.mark.parametrize(
    ("row", "made"),
    [
        (RL, {"mine/train.parquet", "mine/test.parquet"}),
        (SFT, {"mine_sft/train.parquet", "mine_sft/val.parquet"}),
        ({**RL, **SFT}, {"mine/train.parquet", "mine/test.parquet", "mine_sft/train.parquet", "mine_sft/val.parquet"}),
    ],
)
def test_own_data_are_as_they_are_in_the_form_that_verl_reads(root, row, made):
    files = {"train.parquet": json.dumps([row, row]).encode(), "val.jsonl": jsonl(row)}
    manifest = prepare(root, name="mine", stream=tar(files))
    assert {str(path.relative_to(root.datasets)) for path in root.datasets.glob("*/*.parquet")} == made
    rows = {path: json.loads((root.datasets / path).read_text()) for path in made}
    assert all(content == [row] * (2 if "train" in path else 1) for path, content in rows.items())
    assert manifest.facts == {"train_rows": 2, "test_rows": 1}
    assert prepare(root, name="mine", stream=tar(files)) == manifest  # made once


@pytest.mark.usefixtures("parquet_as_json")
def test_one_file_of_any_name_is_both(root, capsys):
    assert prepare(root, "path:/x/a b.jsonl", tar({"a b.jsonl": jsonl(RL)}), "mine").facts == {
        "train_rows": 1,
        "test_rows": 1,
    }
    assert capsys.readouterr().err.startswith(
        "warning /x/a b.jsonl has one file, so its rows are both training data and test data\n"
    )


def test_a_file_is_named_once(root):
    with pytest.raises(BadInput, match=r"^/x/a.jsonl line 1 is not usable "):
        prepare(root, "path:/x/a.jsonl", tar({"a.jsonl": b"{"}), "mine")


@pytest.mark.usefixtures("parquet_as_json")
@pytest.mark.parametrize(
    "names",
    ["train.jsonl test.jsonl val.jsonl", "train.jsonl train.parquet test.jsonl", "train.jsonl train.parquet", "a.json"],
)
def test_files_that_are_not_one_for_each_split_are_refused(root, names):
    stream = tar(dict.fromkeys(names.split(), jsonl(RL)))
    has = ", ".join(sorted(names.split()))
    assert (
        refusal(root, stream=stream, name="mine")
        == f"/data (from DATASET_SOURCE) is not usable, because it has {has}: {NAME_TWO}"
    )


@pytest.mark.usefixtures("parquet_as_json")
def test_own_data_that_verl_cannot_read_are_refused(root):
    stream = tar({"train.jsonl": jsonl({"text": "a", "id": 1}), "test.jsonl": jsonl({"text": "a"})})
    assert refusal(root, stream=stream, name="mine") == (
        "/data (from DATASET_SOURCE) is not usable, because its columns are text: verl reads prompt for RL and messages for SFT, and lines of "
        "JSON with GSM8K's question and answer become both."
    )
    stream = tar({"train.jsonl": jsonl(RL), "test.jsonl": jsonl(RL)})
    assert (
        refusal(root, stream=stream)
        == "DATASET=gsm8k is reserved for GSM8K, but path:/data (from DATASET_SOURCE) has other data: set another DATASET."
    )


class Packages:
    """A fake of huggingface_hub and datasets, online or not."""

    def __init__(self, online=True):
        self.online = online

    def __call__(self, _name):
        return self

    def HfApi(self):
        return self

    def _answer(self, value):
        if not self.online:
            raise ConnectionError("Couldn't reach the Hub\nand more lines")
        return value

    def repo_info(self, _repo, repo_type, revision):
        assert (repo_type, revision) == ("dataset", None)
        return self._answer(type("Info", (), {"sha": "abc123"}))

    def load_dataset(self, _repo, _config, revision):
        assert revision == "abc123"
        return self._answer({split: [json.loads(GOOD)] for split in datasets.SPLITS})


@pytest.mark.usefixtures("parquet_as_json")
def test_the_hub_is_asked_once(root, monkeypatch):
    monkeypatch.setenv("HF_HOME", "restored after the test")
    monkeypatch.setattr(hub, "import_module", Packages())
    manifest = prepare(root, "hub")
    assert (manifest.name, manifest.source, manifest.revision) == ("gsm8k_sft", "hub", "abc123")
    assert os.environ["HF_HOME"] == f"{root.path}/hf"
    monkeypatch.setattr(hub, "import_module", Packages(online=False))
    assert prepare(root, "hub") == manifest


def test_an_offline_hub_is_one_sentence(root, monkeypatch):
    monkeypatch.setenv("HF_HOME", "restored after the test")
    monkeypatch.setattr(hub, "import_module", Packages(online=False))
    with pytest.raises(RegressError) as caught:
        prepare(root, "hub")
    assert str(caught.value) == (
        "DATASET_SOURCE=hub: 'openai/gsm8k' cannot be fetched from the Hugging Face hub (ConnectionError: Couldn't "
        "reach the Hub): without a way out, use DATASET_SOURCE=path:DIR with its train.jsonl and test.jsonl."
    )
    assert not root.datasets.exists()


def test_equal_rows_give_equal_parquet_bytes(root, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is in the node image, not needed on the host")
    prepare(root, "synthetic")
    prepare(root, "synthetic", name="again")
    for split in datasets.SPLITS:
        files = [root.datasets / name / f"{split}.parquet" for name in ("sums", "again")]
        assert files[0].read_bytes() == files[1].read_bytes()
    table = parquet.read_table(files[0])
    assert table.column_names == ["data_source", "prompt", "ability", "reward_model", "extra_info"]


@pytest.mark.skipif(
    not os.environ.get("GSM8K_DIR"), reason="GSM8K_DIR is not set: it names a folder with the real GSM8K"
)
@pytest.mark.usefixtures("parquet_as_json")
def test_every_row_of_the_real_gsm8k(root):
    directory = Path(os.environ["GSM8K_DIR"])
    contents = {name: (directory / name).read_bytes() for name in ("train.jsonl", "test.jsonl")}
    manifest = prepare(root, f"path:{directory}", tar(contents))
    assert manifest.facts == {f"{split}_rows": contents[f"{split}.jsonl"].count(b"\n") for split in datasets.SPLITS}
    whole(root.datasets / "gsm8k")
