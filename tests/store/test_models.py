import ast
import hashlib
import io
import os
import shutil
import sys
from types import SimpleNamespace

import pytest
from shared_fixtures import write
from streams import state_of, tar, whole

from verl_regress.base.errors import BadInput, RegressError
from verl_regress.base.layout import SharedRoot
from verl_regress.store import artefact, hub, models, rehearsal

FOLDER = {"./config.json": b"{}", "./model.safetensors": b"weights"}


TINY_MODEL = """
from pathlib import Path
from verl_rehearsal.errors import RehearsalError

def build(actor, critic, *, seed, for_gpu):
    if seed == 13:
        raise RehearsalError("it knows too much: build it with another seed")
    if seed == 14:
        import torch_that_is_not_there
    with Path(__file__).with_name("built").open("a") as built:
        print(seed, file=built)
    for directory in (actor, critic):
        (directory / "config.json").write_text(f'{{"for_gpu": {for_gpu}}}')
    return {"sampled_accuracy": 0.25, "warmup_steps": 90, "seconds": 5.0}
"""


@pytest.fixture
def root(tmp_path):
    return SharedRoot(tmp_path / "shared root")


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """verl_rehearsal without the model itself, which needs torch and seconds; returns the seeds that were built."""
    package = tmp_path / "rehearsal" / "verl_rehearsal"
    package.mkdir(parents=True)
    for name in ("__init__", "__main__", "errors", "report", "sums", "train"):
        shutil.copy(rehearsal.DIRECTORY / "verl_rehearsal" / f"{name}.py", package)
    (package / "tiny_model.py").write_text(TINY_MODEL)
    monkeypatch.setattr(rehearsal, "DIRECTORY", package.parent)
    return lambda: [int(line) for line in (package / "built").read_text().split()]


def prepare(root, source, *, name="", seed=1, revision="", stream=None):
    """The manifests of the models that are there then."""
    models.prepare(root, name, artefact.Origin(source, revision, seed), stream or io.BytesIO())
    return [artefact.load(path) for path in sorted(root.models.iterdir())]


def refusal(root, *args, kind=BadInput, **kwargs):
    with pytest.raises(kind) as caught:
        prepare(root, *args, **kwargs)
    assert not list(root.models.glob("*"))
    assert not list(root.models.glob(".*"))
    return str(caught.value)


def test_the_tiny_model_comes_with_its_critic_and_says_what_it_knows(root, tiny, capsys):
    actor, critic = prepare(root, "tiny")
    assert (actor.name, critic.name) == ("tiny-qwen2", "tiny-qwen2-critic")
    assert actor.facts == {"sampled_accuracy": 0.25, "warmup_steps": 90, "seconds": 5.0}
    revision = actor.revision[:12]
    made_from = f"made from tiny (revision {revision}, seed 1), sampled accuracy 0.25, warmup steps 90, seconds 5.0"
    assert capsys.readouterr().err == (
        f"changed {root.models}/tiny-qwen2 {made_from}\nchanged {root.models}/tiny-qwen2-critic {made_from}\n"
    )
    before = state_of(root.path)
    prepare(root, "tiny")
    assert state_of(root.path) == before
    assert tiny() == [1]
    assert capsys.readouterr().err == (
        f"skip    {root.models}/tiny-qwen2 (exists, same source)\n"
        f"skip    {root.models}/tiny-qwen2-critic (exists, same source)\n"
    )


def test_the_tiny_model_for_gpus_is_another_one(root, tiny):
    actor, critic = prepare(root, "tiny-for-gpu")
    assert (actor.name, critic.name) == ("tiny-qwen2-for-gpu", "tiny-qwen2-for-gpu-critic")
    assert (root.models / actor.name / "config.json").read_text() == '{"for_gpu": True}'
    with pytest.raises(BadInput, match=r"was made from tiny-for-gpu .*, and MODEL_SOURCE now asks for tiny "):
        prepare(root, "tiny", name="tiny-qwen2-for-gpu")
    assert tiny() == [1]


def test_a_change_to_the_code_that_makes_the_tiny_model_needs_a_new_recipe():
    """Without one, users keep a model that the new code would not make; with one for a comment, they have to remove it."""
    code = []
    for name in ("tiny_model", "sums", "sampling"):
        tree = ast.parse((rehearsal.DIRECTORY / "verl_rehearsal" / f"{name}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        code.append(ast.unparse(tree))
    made_by = hashlib.sha256("\n".join(code).encode()).hexdigest()[:12]
    assert (models.TINY_RECIPE[:12], made_by) == ("7ef1c8670dd3", "8eaea3b98554"), "give models.TINY_RECIPE a new value"


CRITIC = """
from verl_rehearsal.errors import RehearsalError

def build(model, folder):
    if model.name == "odd":
        raise RehearsalError("no critic can be made of it")
    (folder / "config.json").write_bytes((model / "config.json").read_bytes() + b"critic")
"""


def test_a_model_of_any_source_gets_a_critic_once(root, tiny, capsys, tmp_path):
    write(tmp_path / "rehearsal" / "verl_rehearsal" / "critic.py", CRITIC)
    for name in ("m", "odd"):
        prepare(root, f"path:/{name}", revision="abc", stream=tar(FOLDER))
        for _ in range(2):
            asked = SimpleNamespace(shared_root=root.path, source=f"path:/{name}", name="", critic=True, check=False)
            assert models.run(asked) == 0
    made = (root.models / "m-critic" / "config.json").read_bytes()
    assert made == (root.models / "m" / "config.json").read_bytes() + b"critic"
    assert f"skip    {root.models}/m-critic (exists, same source)\n" in (said := capsys.readouterr().err)
    assert "warning MODEL=odd: no critic can be made of it. GRPO and SFT train without one; PPO in" in said
    assert not (root.models / "odd-critic").exists()


@pytest.mark.usefixtures("tiny")
def test_another_seed_is_another_source(root):
    revision = prepare(root, "tiny")[0].revision[:12]
    with pytest.raises(BadInput) as caught:
        prepare(root, "tiny", seed=2)
    assert str(caught.value) == (
        f"{root.models}/tiny-qwen2 was made from tiny (revision {revision}, seed 1), and MODEL_SOURCE now asks for "
        f"tiny (revision {revision}, seed 2): remove that directory, or choose another name with MODEL=NAME."
    )
    assert [manifest.name for manifest in prepare(root, "tiny", seed=2, name="two")][2:] == ["two", "two-critic"]


@pytest.mark.usefixtures("tiny")
def test_a_tiny_model_that_cannot_be_made_is_one_sentence(root):
    assert refusal(root, "tiny", seed=13, kind=RegressError) == (
        "MODEL_SOURCE=tiny with SEED=13: it knows too much: build it with another seed."
    )
    assert refusal(root, "tiny", seed=14, kind=RegressError) == (
        f"MODEL_SOURCE=tiny with SEED=14: This Python ({sys.executable}) has no torch_that_is_not_there: install verl, which brings it."
    )


def test_a_folder_of_the_host_keeps_its_name(root):
    (manifest,) = prepare(root, "path:/home/me/Qwen2.5-0.5B", revision="abc", stream=tar(FOLDER))
    assert (manifest.name, manifest.revision, set(manifest.files)) == (
        "Qwen2.5-0.5B",
        "abc",
        {"config.json", "model.safetensors"},
    )
    whole(root.models / "Qwen2.5-0.5B")


def check(root, capsys, source):
    asked = SimpleNamespace(
        shared_root=root.path, source=source, name="", seed=1, revision="abc", check=True, critic=False
    )
    assert models.run(asked) == 0
    return capsys.readouterr().out


def test_check_does_not_read_the_stream(root, capsys):

    assert check(root, capsys, "path:/m") == "absent\n"
    prepare(root, "path:/m", revision="abc", stream=tar(FOLDER))
    assert check(root, capsys, "path:/m") == "present\n"


def test_a_folder_without_a_model_is_refused(root):
    assert refusal(root, "path:/home/me/x", stream=tar({"./README.md": b""})) == (
        "/home/me/x (from MODEL_SOURCE) has no config.json, so it is not a Hugging Face model: name a folder with one."
    )


class Hub:
    """A fake of huggingface_hub: a cache with a snapshot of links to blobs, like the real one."""

    def __init__(self, cache, online=True):
        self.cache, self.online = cache, online

    def __call__(self, _name):
        return self

    def HfApi(self):
        return self

    def repo_info(self, _repo, repo_type, revision):
        assert repo_type == "model"
        if not self.online:
            raise ConnectionError("no route to the hub")
        return SimpleNamespace(sha=f"sha-of-{revision}")

    def snapshot_download(self, _repo, revision):
        blob, link = self.cache / "blobs" / "b10b", self.cache / "snapshots" / revision / "config.json"
        for path in (blob, link):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_text("{}")
        link.symlink_to("../../blobs/b10b")
        return str(link.parent)


@pytest.fixture
def online(root, monkeypatch):
    monkeypatch.setenv("HF_HOME", "restored after the test")
    hub_at = Hub(root.path / "hf")
    monkeypatch.setattr(hub, "import_module", hub_at)
    return hub_at


@pytest.mark.parametrize(("at", "sha"), [("", "sha-of-None"), ("@v1", "sha-of-v1")])
def test_a_model_of_the_hub_is_kept_once_and_asked_for_once(root, online, at, sha):
    (manifest,) = prepare(root, f"hub:Qwen/Qwen2.5-0.5B{at}")
    assert (manifest.name, manifest.revision) == ("Qwen2.5-0.5B", sha)
    config = root.models / "Qwen2.5-0.5B" / "config.json"
    assert not config.is_symlink()
    assert config.samefile(root.path / "hf/blobs/b10b")
    online.online = False
    assert prepare(root, f"hub:Qwen/Qwen2.5-0.5B{at}") == [manifest]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_a_file_of_another_user_in_the_cache_is_refused_unless_that_user_is_trusted(root, online, monkeypatch):
    """Before: it was copied, and the copy is ours."""
    blob = write(root.path / "hf/blobs/b10b", "")
    os.chown(blob, 4242, 4242)
    assert refusal(root, "hub:org/name") == (
        f"MODEL_SOURCE=hub:org/name is refused, because {root.path}/hf/snapshots/sha-of-None/config.json belongs to user 4242, and what is there decides what "
        "your job does: set TRUSTED_UIDS=4242 if you trust that user, or remove it."
    )
    assert not (root.models / "name").exists()
    shutil.rmtree(root.path / "hf" / "snapshots")
    monkeypatch.setenv("VERL_REGRESS_TRUSTED_UIDS", "4242")
    prepare(root, "hub:org/name")
    assert not (root.models / "name" / "config.json").samefile(blob)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_a_cache_of_another_user_is_not_used(root, online):
    os.chown(write(root.path / "hf" / "token", "").parent, 4242, 4242)
    assert refusal(root, "hub:org/name") == (
        f"HF_HOME={root.path}/hf (for MODEL_SOURCE=hub:org/name) is refused, because {root.path}/hf belongs to user 4242, and what is there "
        "decides what your job does: set TRUSTED_UIDS=4242 if you trust that user, or let its owner remove it."
    )


def test_an_offline_hub_is_one_sentence(root, online):
    online.online = False
    assert refusal(root, "hub:Qwen/Qwen2.5-0.5B", kind=RegressError) == (
        "MODEL_SOURCE=hub:Qwen/Qwen2.5-0.5B: 'Qwen/Qwen2.5-0.5B' cannot be fetched from the Hugging Face hub "
        "(ConnectionError: no route to the hub): check the name, or without a way out use MODEL_SOURCE=path:DIR."
    )


def test_check_asks_the_hub_unless_the_model_is_there(root, online, capsys):
    assert check(root, capsys, "hub:org/name") == "absent\n"
    prepare(root, "hub:org/name")
    online.online = False
    assert check(root, capsys, "hub:org/name") == "present\n"
    with pytest.raises(RegressError):
        check(root, capsys, "hub:org/other")
