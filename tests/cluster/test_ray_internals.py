"""What Ray does not document is used in three modules alone, which are checked with each new release of Ray."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
HOMES = {
    "py/hooks/ray_private.py",
    "py/verl_regress/cluster/ray_internals.py",
    "rehearsal/verl_rehearsal/hf_replica.py",
}
# Modules and names with a leading underscore, the messages of the GCS, Ray's own actors, and what Ray adds to each actor.
PRIVATE = re.compile(r"\bray(\.\w+)*\._\w|\bray\.core\.generated|\b_ray_internal|\b__ray_\w+__")


def uses(source: str) -> Iterator[str]:
    """Each private use of Ray in a Python file, as `LINE: what`. What a docstring or a comment names is no use."""
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    from_ray = {name: whole for node in nodes for name, whole in _from_ray(node)}
    if any(isinstance(node, ast.Constant) and str(node.value).startswith("ray.") for node in nodes):
        # It names a module of Ray, which a function of it gets when it is imported (py/hooks/on_import.py).
        arguments = [node for node in nodes if isinstance(node, ast.arg) and node.annotation is not None]
        from_ray |= {one.arg: "ray.module" for one in arguments if ast.unparse(one.annotation) == "ModuleType"}
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                name = text
            case ast.Import():
                name = " ".join(one.name for one in node.names)
            case ast.ImportFrom(module=str(module)):
                name = " ".join(f"{module}.{one.name}" for one in node.names)
            case ast.Attribute():
                first, _, rest = ast.unparse(node).partition(".")
                name = f"{from_ray.get(first, first)}.{rest}"
            case _:
                continue
        if found := PRIVATE.search(name):
            yield f"{node.lineno}: {found[0]}"


def _from_ray(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that an import gives to Ray, its modules and what is in them; with their whole names."""
    if isinstance(node, ast.Import):
        yield from ((one.asname, one.name) for one in node.names if one.asname and one.name.startswith("ray."))
    elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "ray":
        yield from ((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)


def test_private_parts_of_ray_are_used_in_three_modules_alone():
    files = {
        str(path.relative_to(REPO)): path
        for folder in ("py", "judge", "rehearsal", "scripts", "maintain")
        for path in (REPO / folder).rglob("*.py")
    }
    found = {name: list(uses(path.read_text(encoding="utf-8"))) for name, path in files.items()}
    assert {name: lines for name, lines in found.items() if lines and name not in HOMES} == {}
    assert all(found[name] for name in HOMES)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("import ray._raylet", "ray._r"),
        ("from ray._private.state import GlobalState", "ray._p"),
        ("import ray.util.rpdb as rpdb\nx = rpdb._RemotePdb", "ray.util.rpdb._R"),
        ("from ray.util import rpdb as debugger\nx = debugger._RemotePdb()", "ray.util.rpdb._R"),
        (
            "on_import('ray.util.rpdb', f)\ndef f(module: ModuleType) -> None:\n    module._RemotePdb = None",
            "ray.module._R",
        ),
        ("x = sys.modules['ray._raylet']", "ray._r"),
        ("program = 'import sys; from ray.core.generated import common_pb2'", "ray.core.generated"),
        ("actor.__ray_call__.remote(f)", "__ray_call__"),
        ("ray.get_actor('_ray_internal_job_actor_x')", "_ray_internal"),
    ],
)
def test_each_kind_of_use_is_found(line, what):
    assert {one.partition(": ")[2] for one in uses(f"'''Says ray._private.'''\n{line}\n")} == {what}


@pytest.mark.parametrize(
    "line",
    ["import ray\nray.util.get_node_ip_address()", "from verl import x\nx._y", "self._ray = 1", "# ray._private"],
)
def test_what_ray_documents_is_no_private_use(line):
    assert list(uses(line)) == []
