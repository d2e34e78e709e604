"""Which packages a verl tree declares: read when its snapshot is made, kept in the snapshot's record, never run.

For a release from PyPI they come from the dist-info's METADATA; for a checkout from pyproject.toml or, if that calls them dynamic,
from setup.py. Read in verl 0.7.1, 0.8.0, 0.9.1 and main (1dda039b).
"""

import ast
from email.parser import HeaderParser
from importlib import import_module
from pathlib import Path
from typing import Any


class _Unreadable(Exception):
    """Why a file does not say it, in words that follow its name."""


def declared(directory: Path, metadata: str | None = None) -> dict[str, Any]:
    """What the tree at `directory` declares: `requires`, requirements as they are written, or the `problem` why they are not known.

    `metadata` is the METADATA of the release that it comes from, if it is one.
    """
    if metadata is not None:
        return {"requires": HeaderParser().parsestr(metadata).get_all("Requires-Dist", [])}
    try:
        return {"requires": _of_checkout(directory)}
    except _Unreadable as error:
        return {"problem": str(error)}
    except (AttributeError, TypeError) as error:  # such as `project = 1`
        return {"problem": f"its pyproject.toml is not as Python's packaging defines it: {error}"}


def _of_checkout(directory: Path) -> list[str]:
    project = {"dynamic": ["dependencies"]}
    if (directory / "pyproject.toml").is_file():
        project = _pyproject(directory).get("project", project)
    elif not (directory / "setup.py").is_file():
        raise _Unreadable("it has no pyproject.toml or setup.py")
    is_dynamic = "dependencies" in project.get("dynamic", ())
    requires: Any = _of_setup(directory) if is_dynamic else project.get("dependencies", [])
    if not isinstance(requires, list | tuple) or not all(isinstance(text, str) for text in requires):
        raise _Unreadable(
            f"its {'setup.py' if is_dynamic else 'pyproject.toml'} does not list its requirements as text"
        )
    return list(requires)


def _pyproject(directory: Path) -> Any:
    try:
        return import_module("tomllib").loads(_read(directory, "pyproject.toml"))
    except ModuleNotFoundError:  # with Python 3.10
        raise _Unreadable("its pyproject.toml wants Python 3.11 on the head") from None
    except ValueError as error:
        raise _Unreadable(f"its pyproject.toml is not TOML: {error}") from None


def _of_setup(directory: Path) -> Any:
    """`install_requires` of setup(…) in setup.py, which is not run: a literal, or a name that is bound once to one."""
    try:
        nodes = list(ast.walk(ast.parse(_read(directory, "setup.py"))))
    except (SyntaxError, ValueError) as error:
        raise _Unreadable(f"its setup.py is not Python: {error}") from None
    given = [node.value for node in nodes if isinstance(node, ast.keyword) and node.arg == "install_requires"]
    if not given:
        raise _Unreadable("its setup.py has no install_requires")
    name = given[-1].id if isinstance(given[-1], ast.Name) else None
    bound = [node.value for node in nodes if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name]
    # A list that is used more than once may have been added to.
    is_used_more = sum(isinstance(node, ast.Name) and node.id == name for node in nodes) > 2
    try:
        return ast.literal_eval(given[-1] if name is None or is_used_more else bound[0])
    except (ValueError, TypeError, IndexError):
        raise _Unreadable("install_requires in its setup.py is computed") from None


def _read(directory: Path, name: str) -> str:
    try:
        return (directory / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _Unreadable(f"its {name} cannot be read ({error})") from None
