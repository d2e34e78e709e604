"""Which packages a verl tree declares: read when its snapshot is made, kept in the snapshot's record, never run.

For a release from PyPI they come from the dist-info's METADATA; for a checkout from pyproject.toml and, for what that
leaves to it, setup.py, as setuptools reads them. Read in verl 0.7.0, 0.7.1, 0.8.0, 0.9.1 and main (1dda039b).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from email.parser import HeaderParser
from importlib import import_module
from pathlib import Path
from typing import Any

Declared = dict[str, Any]
"""`from` (the file, or None), and either `requires`, `extras` and `imports`, or the `problem` why they are not known."""

# Their modules decide what is needed at import: backends (vllm, sglang, megatron, …) are imported elsewhere, on demand.
_TRAINER = Path("verl", "trainer")


class _Unreadable(Exception):
    """Why a file does not say it, in words that follow its name."""


def declared(directory: Path, metadata: str | None = None) -> Declared:
    """What the tree at `directory` declares; `metadata` is the METADATA of the release that it comes from, if it is one.

    `requires` are requirements as they are written (an extra's with its marker), `extras` the extras that exist,
    `imports` the packages that the trainer cannot be imported without. Raises nothing: what cannot be read is a
    `problem`.
    """
    brought = sorted(directory.glob("verl-*.dist-info/METADATA"))
    origin: str | None = None
    try:
        if metadata is not None:
            origin = "METADATA"
            requires, extras = _of_metadata(metadata)
        elif brought:
            origin = brought[0].relative_to(directory).as_posix()
            requires, extras = _of_metadata(_read(directory, origin))
        else:
            origin, requires, extras = _of_checkout(directory)
    except _Unreadable as error:
        return {"from": origin, "problem": str(error)}
    return {"from": origin, "requires": requires, "extras": extras, "imports": sorted(set(_imports(directory)))}


def _of_metadata(text: str) -> tuple[list[str], list[str]]:
    headers = HeaderParser().parsestr(text)
    if "Metadata-Version" not in headers:
        raise _Unreadable("its METADATA has no Metadata-Version")
    return headers.get_all("Requires-Dist", []), headers.get_all("Provides-Extra", [])


def _of_checkout(directory: Path) -> tuple[str, list[str], list[str]]:
    """The files that were read, the requirements and the extras. What pyproject.toml calls dynamic comes from setup.py."""
    has = [name for name in ("pyproject.toml", "setup.py") if (directory / name).is_file()]
    if not has:
        raise _Unreadable("it has no dist-info, pyproject.toml or setup.py")
    pyproject = _pyproject(directory) if "pyproject.toml" in has else {}
    project = pyproject.get("project", {"dynamic": ["dependencies", "optional-dependencies"]})
    if not isinstance(project, dict):
        raise _Unreadable("project in its pyproject.toml is not a table")
    used, found = [], []
    for key, argument in (("dependencies", "install_requires"), ("optional-dependencies", "extras_require")):
        is_dynamic = key in project.get("dynamic", [])
        used.append("setup.py" if is_dynamic else "pyproject.toml")
        found.append(_argument(directory, argument) if is_dynamic else project.get(key))
    requires, optional = found[0] or [], found[1] or {}
    lists = [requires, *(optional.values() if isinstance(optional, dict) else [None])]
    if not all(isinstance(each, list | tuple) and all(isinstance(text, str) for text in each) for each in lists):
        raise _Unreadable(f"its {used[0]} does not list its requirements as text")
    extras = [_of_extra(text, extra) for extra, texts in optional.items() for text in texts]
    return " and ".join(dict.fromkeys(used)), [*requires, *extras], list(optional)


def _pyproject(directory: Path) -> Mapping[str, Any]:
    for name in ("tomllib", "tomli"):  # Python 3.10 has no tomllib
        try:
            toml = import_module(name)
        except ModuleNotFoundError:
            continue
        try:
            content: Mapping[str, Any] = toml.loads(_read(directory, "pyproject.toml"))
        except ValueError as error:
            raise _Unreadable(f"its pyproject.toml is not TOML: {error}") from None
        return content
    raise _Unreadable("its pyproject.toml wants Python 3.11 on the head")


def _of_extra(requirement: str, extra: str) -> str:
    """An extra's requirement as METADATA writes it, with a space before the semicolon, which a URL would swallow."""
    text, semicolon, marker = requirement.partition(";")
    condition = f'extra == "{extra}"'
    return f"{text.strip()} ; " + (f"({marker.strip()}) and {condition}" if semicolon else condition)


def _argument(directory: Path, name: str) -> Any:
    """An argument of setup(…) in setup.py, which is not run: literals, and names that are bound once to such; None if it has none."""
    try:
        nodes = list(ast.walk(ast.parse(_read(directory, "setup.py"))))
    except (SyntaxError, ValueError) as error:
        raise _Unreadable(f"its setup.py is not Python: {error}") from None
    calls = [node for node in nodes if isinstance(node, ast.Call) and _called(node) == "setup"]
    if not calls:
        raise _Unreadable("its setup.py does not call setup()")
    named = [node for node in nodes if isinstance(node, ast.Name)]

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            # A list that is used more than once may have been added to.
            (bound,) = (one.value for one in nodes if isinstance(one, ast.Assign) and _target(one) == node.id)
            if sum(one.id == node.id for one in named) > 2:
                raise ValueError
            return value(bound)
        if isinstance(node, ast.Dict):
            return {
                value(key): value(each) for key, each in zip(node.keys, node.values, strict=True) if key is not None
            }
        return ast.literal_eval(node)

    try:
        return next((value(word.value) for word in calls[-1].keywords if word.arg == name), None)
    except (ValueError, TypeError, RecursionError):
        raise _Unreadable(f"{name} in its setup.py is computed") from None


def _target(node: ast.Assign) -> str | None:
    first = node.targets[0]
    return first.id if isinstance(first, ast.Name) else None


def _called(call: ast.Call) -> str | None:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None


def _read(directory: Path, name: str) -> str:
    path = directory / name
    try:
        if path.is_symlink():
            raise _Unreadable(f"its {name} is a link")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _Unreadable(f"its {name} is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise _Unreadable(f"its {name} cannot be read: {reason}") from None


def _imports(directory: Path) -> Iterator[str]:
    """The packages that modules of the trainer import at load time: not in a function, under an `if` or in a `try`."""
    for path in (directory / _TRAINER).rglob("*.py"):
        try:
            body = ast.parse(path.read_bytes()).body
        except (OSError, SyntaxError, ValueError):
            continue  # whoever imports it will report that
        for node in body:
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for name in (name.partition(".")[0] for name in names):
                if name != "verl" and name not in sys.stdlib_module_names:
                    yield name
