"""Code of the user's own that a job imports by name: what is on PYTHONPATH, and the classes that files of tools and agent loops name.

Its files are listed and parsed, never run. Read in verl 0.7.1 to 0.9.1: tools/tool_registry.py, experimental/agent_loop/agent_loop.py.
"""

import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from verl_regress.base.errors import BadInput, Refusals, shown
from verl_regress.base.layout import SharedRoot
from verl_regress.plan.compose import leaves
from verl_regress.plan.inputs import Input
from verl_regress.plan.reward_fn import defines

_FACT = "PYTHONPATH sha256"
_MOST = 1_000  # modules that are listed one by one
# Files that name classes: by the end of the key of verl's config; and the keys in them that do.
_NAMES_CLASSES = ("tool_config_path", "agent_loop_config_path", "interaction_config_path")
_CLASSES = ("class_name", "_target_")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


def on_path(folders: Mapping[Path, str]) -> Iterator[Input]:
    """The modules that a job can import from these folders of PYTHONPATH, which messages call as they are mapped; a folder with very many
    of them, such as one of installed packages, as a whole.
    """
    for folder, named in folders.items():
        modules = [folder] if folder.is_file() else _importable(folder)
        if len(modules) > _MOST:
            yield Input("PYTHONPATH", folder, named, _FACT, is_code=True)
        else:
            yield from (Input("PYTHONPATH", module, f"{named}, of which {module}", _FACT) for module in modules)


def _importable(folder: Path) -> list[Path]:
    """The Python files below a folder that have a name which can be imported; a link to a folder is followed once."""
    found, seen = list[Path](), set[str]()
    for above, below, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(above)) in seen:
            below.clear()
            continue
        seen.add(real)
        below[:] = sorted(name for name in below if name.isidentifier() and name != "__pycache__")
        found += [Path(above, name) for name in sorted(names) if name.endswith(".py")]
        if len(found) > _MOST:
            break
    return found


def named_in(
    root: SharedRoot, read: Iterable[Input], places: Sequence[Path], wrong: Refusals, *, is_whole: bool
) -> Iterator[Input]:
    """The files that the files of tools and agent loops among the inputs name; a class that is nowhere is noted in `wrong`.

    `places` are where the job imports from, the snapshot and the folders of PYTHONPATH; not `is_whole` says that it has others, which only
    the nodes have.
    """
    naming = [one for one in read if one.key.endswith(_NAMES_CLASSES) and _is_file(root, one.path)]
    for one in naming:
        for key, text in _texts(one.path):
            named, path = f"{key}={shown(text)}", Path(text)
            if path.is_absolute() and _is_file(root, path):
                yield Input(one.key, path, f"{one.named}, of which {named}", one.fact)
            if key.rpartition(".")[2] in _CLASSES and _DOTTED.fullmatch(text):
                with wrong.noted():
                    _need_class(text, f"{named} in {one.named}", places, is_whole=is_whole)


def _is_file(root: SharedRoot, path: Path) -> bool:
    return root.has(path) and path.is_file()


def _texts(file: Path) -> list[tuple[str, str]]:
    """The dotted keys of a YAML file with their texts; none of what cannot be read, which verl says."""
    with suppress(OSError, ValueError, yaml.YAMLError, RecursionError):
        content: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
        return [(key, text) for key, text in leaves({"": content}) if isinstance(text, str)]
    return []


def _need_class(dotted: str, named: str, places: Sequence[Path], *, is_whole: bool) -> None:
    """Raise BadInput if a class is in none of these folders, or not in the module that it names there."""
    module, _, name = dotted.rpartition(".")
    parts = module.split(".")
    for place in places:
        if not (place / parts[0]).is_dir() and not (place / f"{parts[0]}.py").is_file():
            continue
        start = place.joinpath(*parts)
        file = next(
            (file for file in (start.with_name(f"{start.name}.py"), start / "__init__.py") if file.is_file()), None
        )
        if file is None:
            raise BadInput(f"{named} is not there, because {place} has no module {module}: name one that it has.")
        if not defines(file, name):
            raise BadInput(
                f"{named} is not there, because {file} does not define {name}: define it there, or name another."
            )
        return
    if is_whole and importlib.util.find_spec(parts[0]) is None:
        raise BadInput(
            f"{named} is in no folder of PYTHONPATH and in no package of the nodes: write the folder that has {parts[0]} as PYTHONPATH under "
            "env_vars of the JobSpec."
        )
