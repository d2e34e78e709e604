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
_DEEPEST = 5  # requirements files that name each other


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
    project = _table(pyproject, "project") or {"dynamic": ["dependencies", "optional-dependencies"]}
    dynamic, setup, used = project.get("dynamic", []), _Setup(directory), []
    if "dependencies" not in dynamic:
        used.append("pyproject.toml")
        requires = _list(project.get("dependencies", []), "dependencies")
    else:
        requires, file = _dynamic(directory, pyproject, setup)
        used.append(file)
    if "optional-dependencies" not in dynamic:
        used.append("pyproject.toml")
        optional = _table(project, "optional-dependencies")
    else:
        optional = setup.extras()
    for extra, wanted in optional.items():
        requires += [_of_extra(text, extra) for text in _list(wanted, extra)]
    return " and ".join(dict.fromkeys(used)), requires, list(optional)


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


def _dynamic(directory: Path, pyproject: Mapping[str, Any], setup: _Setup) -> tuple[list[str], str]:
    """The dependencies that pyproject.toml leaves to a requirements file or to setup.py; and where they are."""
    table = pyproject
    for key in ("tool", "setuptools", "dynamic", "dependencies"):
        table = _table(table, key)
    files = table.get("file", [])
    names = [files] if isinstance(files, str) else _list(files, "file")
    if names:
        return [line for name in names for line in _lines(directory, name)], ", ".join(names)
    return setup.requires(), "setup.py"


def _table(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = content.get(key, {})
    if not isinstance(table, dict):
        raise _Unreadable(f"{key} in its pyproject.toml is not a table")
    return table


def _list(value: Any, key: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise _Unreadable(f"{key} in its pyproject.toml is not a list of text")
    return list(value)


def _of_extra(requirement: str, extra: str) -> str:
    """An extra's requirement as METADATA writes it, with a space before the semicolon, which a URL would swallow."""
    text, semicolon, marker = requirement.partition(";")
    condition = f'extra == "{extra}"'
    return f"{text.strip()} ; " + (f"({marker.strip()}) and {condition}" if semicolon else condition)


class _Setup:
    """The arguments of `setup(…)` in a setup.py, if they are lists of text without running it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._module: ast.Module | None = None

    def requires(self) -> list[str]:
        """`install_requires`."""
        found = self._argument("install_requires")
        if found is None:
            return []
        return self._texts(found, "install_requires")

    def extras(self) -> dict[str, list[str]]:
        """`extras_require` without the computed ones, because nothing here installs them."""
        found = self._argument("extras_require") if (self._directory / "setup.py").is_file() else None
        for _ in range(_DEEPEST):
            if isinstance(found, ast.Name):
                found = next(iter(self._bound(found.id)), None)
        extras = {}
        if isinstance(found, ast.Dict):
            for key, value in zip(found.keys, found.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    try:
                        extras[key.value] = self._texts(value, key.value)
                    except _Unreadable:
                        extras[key.value] = []
        return extras

    def _tree(self) -> ast.Module:
        if self._module is None:
            try:
                self._module = ast.parse(_read(self._directory, "setup.py"))
            except (SyntaxError, ValueError) as error:
                raise _Unreadable(f"its setup.py is not Python: {error}") from None
        return self._module

    def _argument(self, name: str) -> ast.expr | None:
        calls = [node for node in ast.walk(self._tree()) if isinstance(node, ast.Call) and _called(node) == "setup"]
        if not calls:
            raise _Unreadable("its setup.py does not call setup()")
        return next((word.value for word in calls[-1].keywords if word.arg == name), None)

    def _bound(self, name: str) -> list[ast.expr]:
        """The values that a name in the module is assigned, the last first; for a `with`, what is opened."""
        values: list[ast.expr] = []
        for node in ast.walk(self._tree()):
            targets: list[ast.expr | None] = []
            value: ast.expr | None = None
            if isinstance(node, ast.Assign):
                targets, value = [*node.targets], node.value
            elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
                targets, value = [node.target], node.value
            elif isinstance(node, ast.withitem):
                targets, value = [node.optional_vars], node.context_expr
            if value is not None and any(isinstance(to, ast.Name) and to.id == name for to in targets):
                values.append(value)
        return sorted(values, key=lambda value: value.lineno, reverse=True)

    def _is_grown(self, name: str) -> bool:
        """Is anything added to that list after its first assignment?"""
        return any(
            (isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id == name)
            or (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == name
            )
            for node in ast.walk(self._tree())
        )

    def _texts(self, node: ast.expr, what: str, depth: int = 0) -> list[str]:
        """A list of text: a literal, a variable, lists joined by +, or the lines of a requirements file."""
        if depth > _DEEPEST:
            raise _Unreadable(f"{what} in its setup.py is computed")
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return [line for line in node.value.splitlines() if line.strip()]
        if isinstance(node, (ast.List, ast.Tuple)):
            return [text for one in node.elts for text in self._texts(one, what, depth + 1)]
        if isinstance(node, ast.Starred):
            return self._texts(node.value, what, depth + 1)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return [text for side in (node.left, node.right) for text in self._texts(side, what, depth + 1)]
        bound = self._bound(node.id) if isinstance(node, ast.Name) else []
        if isinstance(node, ast.Name) and len(bound) == 1 and not self._is_grown(node.id):
            return self._texts(bound[0], what, depth + 1)
        files = sorted(set(self._files(node, set())))
        if len(files) != 1 or len(bound) > 1:
            raise _Unreadable(f"{what} in its setup.py is computed")
        return _lines(self._directory, files[0])

    def _files(self, node: ast.expr, seen: set[str]) -> Iterator[str]:
        """The requirements files in the tree that an expression names, directly or through its variables."""
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.endswith(".txt"):
                if (self._directory / part.value).is_file():
                    yield part.value
            elif isinstance(part, ast.Name) and part.id not in seen:
                seen.add(part.id)
                for value in self._bound(part.id):
                    yield from self._files(value, seen)


def _called(call: ast.Call) -> str | None:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None


def _lines(directory: Path, name: str, depth: int = 0) -> list[str]:
    """The requirements in a requirements file: comments and pip's options are skipped, files that it names are included."""
    if depth > _DEEPEST:
        raise _Unreadable(f"its {name} includes itself")
    found = []
    for line in _read(directory, name).splitlines():
        text = line.partition(" #")[0].strip()
        option, _, value = text.partition(" ")
        if option in ("-r", "--requirement"):
            found += _lines(directory, (Path(name).parent / value.strip()).as_posix(), depth + 1)
        elif text and text[0] not in "#-":
            found.append(text)
    return found


def _read(directory: Path, name: str) -> str:
    """A file of the tree: files outside the tree are not read."""
    path = directory / name
    try:
        if not path.resolve().is_relative_to(directory.resolve()):
            raise _Unreadable(f"its {name} is outside of it")
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
