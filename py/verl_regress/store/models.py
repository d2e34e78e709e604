"""Models as verl reads them: Hugging Face folders under `common/models/<name>`."""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from verl_regress.base import ids, pulse, say
from verl_regress.base.errors import BadInput, RegressError
from verl_regress.base.layout import SharedRoot
from verl_regress.base.trust import need
from verl_regress.store import artefact, rehearsal, tarball
from verl_regress.store.artefact import Origin
from verl_regress.store.hub import Hub

TINY_NAMES = {"tiny": "tiny-qwen2", "tiny-for-gpu": "tiny-qwen2-for-gpu"}
KNOB = "MODEL"

# What decides the tiny model's bytes, apart from the seed: the code that makes it (not its comments). It has a new
# recipe when that code changes (tests/store/test_models.py); with the same one, models made by earlier versions are used.
TINY_RECIPE = "7ef1c8670dd3b40778919b56762f666aa4e86eeb6143ff2469afdfb0ea5401d1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `prepare-model`."""
    parser.add_argument(
        "--source", required=True, help="tiny, tiny-for-gpu, hub:REPO[@REVISION], or path:DIR with DIR's tar on stdin"
    )
    parser.add_argument(
        "--name", default="", help="the model's name; empty: tiny-qwen2 (-for-gpu), or the last part of REPO or DIR"
    )
    parser.add_argument("--seed", type=int, required=True, help="decides the weights of the tiny model")
    parser.add_argument("--revision", default="", help="path:DIR only: what tells one state of DIR from another")
    parser.add_argument(
        "--critic", action="store_true", help="make the critic of the model that is there, for PPO in a rehearsal"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="make nothing; print 'present' or 'absent', so that DIR need not be streamed; fails if the hub must be asked and does not answer",
    )


def run(args: argparse.Namespace) -> int:
    """Make the model that `args` asks for, or skip it; returns 0."""
    root = SharedRoot(Path(args.shared_root))
    target = _target(root, args.source, args.name)
    if args.critic:
        prepare_critic(target)
    elif args.check:
        if args.source.startswith("hub:"):
            args.revision = _ask_hub(root, target, args.source)[1]
        is_there = artefact.are_there([target], Origin(args.source, args.revision), knob=KNOB)
        print("present" if is_there else "absent")
    else:
        prepare(root, args.name, Origin(args.source, args.revision, args.seed), sys.stdin.buffer)
    return 0


def _target(root: SharedRoot, source: str, name: str) -> Path:
    otherwise = source.partition(":")[2].partition("@")[0].rstrip("/").rpartition("/")[2]
    return root.models / ids.check_name(name or TINY_NAMES.get(source, otherwise), KNOB)


def _critic_of(model: Path) -> Path:
    return model.with_name(f"{model.name}-critic")


def prepare(root: SharedRoot, name: str, asked: Origin, stream: BinaryIO) -> None:
    """Make `common/models/<name>` (for a tiny one its critic too) unless it exists.

    `stream` and the revision are only read for `path:DIR`: a tar of DIR, and what identifies its contents; the seed only for a tiny model.
    Raises BadInput for a name that cannot be used and for a DIR without config.json, RegressError if the hub cannot be reached, and as
    `artefact.ensure` does.
    """
    target = _target(root, asked.source, name)
    if asked.source in TINY_NAMES:
        _prepare_tiny([target, _critic_of(target)], replace(asked, revision=TINY_RECIPE))
    elif asked.source.startswith("hub:"):
        _prepare_from_hub(root, target, asked.source)
    else:
        receive = partial(_receive, stream, asked.source.removeprefix("path:"))
        artefact.ensure(target, replace(asked, seed=None), receive, knob=KNOB)


def prepare_critic(model: Path) -> None:
    """Make the critic of a model that was prepared, unless it exists; warns if the model cannot have one."""
    manifest = artefact.load(model)

    def build(directory: Path) -> dict[str, str]:
        with pulse.during(f"making the critic of {model.name}"):
            rehearsal.run(f"MODEL={model.name}", "critic", str(model), str(directory))
        return {}

    try:
        artefact.ensure(_critic_of(model), Origin(manifest.source, manifest.revision), build, knob=KNOB)
    except RegressError as error:
        if isinstance(error, BadInput):
            raise
        say.warn(f"{error} GRPO and SFT train without one; PPO in a rehearsal needs it.")


def _prepare_tiny(targets: Sequence[Path], origin: Origin) -> None:
    options = ["--for-gpu"] if origin.source == "tiny-for-gpu" else []

    def build(directories: Sequence[Path]) -> dict[str, float | int]:
        actor, critic = map(str, directories)
        asked = f"MODEL_SOURCE=tiny with SEED={origin.seed}"
        with pulse.during("training the tiny model"):
            said = rehearsal.run(asked, "model", actor, f"--critic={critic}", f"--seed={origin.seed}", *options)
        facts: dict[str, float | int] = json.loads(said)
        return facts

    artefact.ensure_all(targets, origin, build, knob=KNOB)


def _ask_hub(root: SharedRoot, target: Path, source: str) -> tuple[Hub, str]:
    """The hub, and the commit of the model in question. Raises RegressError."""
    repo, _, asked = source.partition(":")[2].partition("@")
    hub = Hub(root, f"MODEL_SOURCE={source}", repo, "check the name, or without a way out use MODEL_SOURCE=path:DIR.")
    return hub, hub.revision(target, source, "model", asked or None)


def _prepare_from_hub(root: SharedRoot, target: Path, source: str) -> None:
    hub, revision = _ask_hub(root, target, source)

    def build(directory: Path) -> dict[str, str]:
        cached = hub.model(revision)
        need(cached, f"MODEL_SOURCE={source}", "or remove it")  # the copy would be ours
        for file in sorted(path for path in cached.rglob("*") if path.is_file()):
            _link_or_copy(file.resolve(), directory / file.relative_to(cached))
        return {}

    artefact.ensure(target, Origin(source, revision), build, knob=KNOB)


def _link_or_copy(file: Path, name: Path) -> None:
    """Hard-link `file` to `name`, so that the weights are stored once; or copy it, if it is another's, or the file system has no such links."""
    name.parent.mkdir(parents=True, exist_ok=True)
    try:
        if file.stat().st_uid != os.getuid():  # we could not make it readable
            raise PermissionError
        name.hardlink_to(file)
    except OSError:
        shutil.copyfile(file, name)


def _receive(stream: BinaryIO, label: str, directory: Path) -> dict[str, str]:
    with pulse.during(f"copying {label} to the shared root", partial(pulse.size_of, directory)):
        tarball.unpack(stream, directory, label)
    if not (directory / "config.json").is_file():
        raise BadInput(
            f"{label} (from MODEL_SOURCE) has no config.json, so it is not a Hugging Face model: name a folder with one."
        )
    return {}
