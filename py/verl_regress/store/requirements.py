"""Which packages a verl tree declares: read when its snapshot is made, kept in the snapshot's record, never run.

For a release from PyPI they come from the dist-info's METADATA; for a checkout from pyproject.toml or, if that calls them dynamic,
from setup.py. Read in verl 0.7.1, 0.8.0, 0.9.1 and main (1dda039b).
"""

import ast
from email.parser import HeaderParser
from importlib import import_module
from pathlib import Path
from typing import Any


def declared(directory: Path, metadata: str | None = None) -> dict[str, Any]:
    """What the tree at `directory` declares: `requires`, requirements as they are written, or the `problem` why they are not known.

    `metadata` is the METADATA of the release that it comes from, if it is one.
    """
    if metadata is not None:
        return {"requires": HeaderParser().parsestr(metadata).get_all("Requires-Dist", [])}
    file, project = directory / "pyproject.toml", {"dynamic": ["dependencies"]}
    try:
        if file.is_file():
            project = import_module("tomllib").loads(file.read_text(encoding="utf-8")).get("project", project)
        if "dependencies" in project.get("dynamic", ()):
            file = directory / "setup.py"
            requires = _of_setup(file.read_text(encoding="utf-8"))
        else:
            requires = project.get("dependencies", [])
        if not isinstance(requires, list | tuple) or not all(isinstance(text, str) for text in requires):
            raise TypeError("its requirements are not a list of text")
    except (AttributeError, ImportError, OSError, SyntaxError, TypeError, ValueError) as error:
        return {"problem": f"its {file.name} does not say it: {getattr(error, 'strerror', None) or error}"}
    return {"requires": list(requires)}


def _of_setup(text: str) -> Any:
    """`install_requires` of setup(…), which is not run: a literal, or a name that is bound once to one. Raises ValueError and SyntaxError."""
    nodes = list(ast.walk(ast.parse(text)))
    given = [node.value for node in nodes if isinstance(node, ast.keyword) and node.arg == "install_requires"]
    if not given:
        raise ValueError("it has no install_requires")
    name = given[-1].id if isinstance(given[-1], ast.Name) else None
    bound = [node.value for node in nodes if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name]
    # A list that is used more than once may have been added to.
    is_used_more = sum(isinstance(node, ast.Name) and node.id == name for node in nodes) > 2
    try:
        return ast.literal_eval(given[-1] if name is None or is_used_more else bound[0])
    except (ValueError, TypeError, IndexError):
        raise ValueError("install_requires is computed") from None
