"""Which knobs each target of make reads, found in the code: `knob_readers.py` prints a line "TARGET KNOB…" for each.

A Bash function reads the knobs that it names as $KNOB, or as a word (`snapshot::check CODE_A`), and those that the functions in it read, but not
what it sets for them. A function of the helper reads the knobs that it names as text, and those that what it names reads. More than one run
reads is found: all branches, and all transports.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "py")]

from verl_regress.cli import SUBCOMMANDS  # noqa: E402

KNOBS = set(re.findall(r"^([A-Z][A-Z0-9_]*)=", (ROOT / "env/defaults.env").read_text(), re.M))
_FUNCTION = re.compile(r"^([a-z_]+::[a-z_]+)\(\) (?:[{(]\n((?:[^})].*\n|\n)*)[})].*|[{(](.*))\n", re.M)
_HELPER = re.compile(
    r"helper::(?:read|(?:run|run_in|run_once|ask) (?:\"[^\"]*\"|\S+)|_helper) ([a-z-]+)|batch::_helper ([a-z]+)|job::(?:again|_begin \"\$stream\" members) ([a-z]+)"
)
_QUOTED = re.compile(r"""'[^'\n]*'|"(?:\\.|[^"\\])*\"""")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_SCRIPT_KNOBS = re.compile(r"environment=\((.*)\)")  # of bisect, for the script that it calls
_READS = ("is_on", "number", "given", "get")  # methods of Knobs


class Part:
    """A piece of code: the knobs that it reads and sets itself, and the names of what it uses."""

    def __init__(self, reads: set[str], sets: set[str], uses: set[str]) -> None:
        self.reads, self.sets, self.uses = reads, sets, uses


def bash_parts() -> dict[str, Part]:
    """By the name of the function, or of the script's file; functions of one name are one part."""
    parts: dict[str, Part] = {}
    files = [*ROOT.glob("scripts/*.sh"), *ROOT.glob("scripts/lib/**/*.bash"), *ROOT.glob("scripts/dev/*.bash")]
    for file in sorted({*files} - {ROOT / "scripts/lib/knob.bash", ROOT / "scripts/lib/typed.bash"}):  # any knob's
        text = "".join(f"{_COMMENT.sub('', line)}\n" for line in file.read_text().splitlines())
        for name, *body in _FUNCTION.findall(text):
            _add(parts, name, "\n".join(body))
        if file.suffix == ".sh":
            _add(parts, file.name, _FUNCTION.sub("", text))
    for compose in ROOT.glob("docker-compose*.yaml"):  # Compose reads what is exported
        _add(parts, "compose::run", compose.read_text())
    return parts


def _add(parts: dict[str, Part], name: str, text: str) -> None:
    bare = _QUOTED.sub(" ", text)
    words = set(re.findall(r"(?<![\w$:{.-])[A-Za-z0-9_:.-]+(?![\w=:])", bare))
    named = set(re.findall(r"\$\{?[!#]?([A-Z][A-Z0-9_]*)", text))
    given = re.findall(r"env::give((?: [A-Z_]+ (?:'[^']*'|\"[^\"]*\"|\S+))+)", text)
    sets = {knob for each in given for knob in re.findall(r" ([A-Z_]+) ", each)}
    sets |= {knob for each in re.findall(r"\blocal( .*)", text) for knob in re.findall(" ([A-Z_]+)=", each)}
    sets |= {knob for each in _SCRIPT_KNOBS.findall(text) for knob in re.findall("([A-Z_]+)=", each)}
    uses = set(re.findall(r"[a-z_]+::[a-z_]+", text)) | {word for word in words if re.fullmatch(r"\d\d_\w+\.sh", word)}
    uses |= {f"py {word}" for found in _HELPER.findall(text) for word in found if word in SUBCOMMANDS}
    old = parts.setdefault(name, Part(set(), set(KNOBS), set()))
    parts[name] = Part(old.reads | (named | words - sets) & KNOBS, old.sets & sets, old.uses | uses)


def python_parts() -> dict[str, Part]:
    """By `module.name` of each name that a module of the helper defines; a subcommand is `py NAME`."""
    parts: dict[str, Part] = {}
    for file in sorted((ROOT / "py/verl_regress").rglob("*.py")):
        module = ".".join(file.relative_to(ROOT / "py").with_suffix("").parts)
        tree = ast.parse(file.read_text())
        known = dict(_imports(tree)) | {name: f"{module}.{name}" for node in tree.body for name in _defines(node)}
        for node in tree.body:
            for name in _defines(node):
                parts[f"{module}.{name}"] = _python_part(node, known)
        parts[module] = Part(set(), set(), {name for name in parts if name.rpartition(".")[0] == module})
    for name, each in SUBCOMMANDS.items():
        module = f"verl_regress.{each.module}"
        parts[f"py {name}"] = Part(set(), set(), {f"{module}.{each.add}", f"{module}.{each.run}"})
    return parts


def _defines(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((each.asname or each.name, f"{node.module}.{each.name}") for each in node.names)


def _knobs_in(*nodes: ast.expr) -> set[str]:
    return {each.value for each in nodes if isinstance(each, ast.Constant) and each.value in KNOBS}


def _python_part(node: ast.stmt, known: dict[str, str]) -> Part:
    reads, uses = set(), set()
    owners = {id(each.value) for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    for each in ast.walk(node):
        if isinstance(each, ast.Subscript):
            reads |= _knobs_in(each.slice)
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in _READS:
            reads |= _knobs_in(*each.args[:1])
        elif isinstance(each, ast.Name) and each.id in known and id(each) not in owners:
            uses.add(known[each.id])
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id in known:
            uses.add(f"{known[each.value.id]}.{each.attr}")
    return Part(reads, set(), uses)


def readers() -> dict[str, set[str]]:
    """The knobs that each target reads itself, without what it runs first."""
    parts = bash_parts() | python_parts()
    script = parts["11_doctor.sh"]
    parts["11_doctor.sh --gate"] = Part(script.reads, script.sets, script.uses - {"doctor::run"})
    parts["doctor::_python"].uses.update(name for name in parts if name.startswith("verl_regress.doctor."))
    found: dict[str, set[str]] = {name: set(part.reads) for name, part in parts.items()}
    is_new = True
    while is_new:
        is_new = False
        for name, part in parts.items():
            more = set().union(*(found.get(used, set()) for used in part.uses)) - part.sets
            is_new = is_new or not more <= found[name]
            found[name] |= more
    made: dict[str, set[str]] = {}
    text = (ROOT / "Makefile").read_text()
    for target, before, recipe in re.findall(r"^(\.?[a-z][a-z-]*): ?([^#:=\n]*)(?:##.*)?\n((?:\t.*\n)*)", text, re.M):
        scripts = [Path(path).name for path in re.findall(r"^\t@(\S+(?: --gate)?)", recipe, re.M)]
        own = set().union(*(found.get(name, set()) for name in scripts))
        made[target] = own.union(*(made[each] for each in before.split() if each.startswith(".")))
    return {target: knobs for target, knobs in made.items() if not target.startswith(".")}


if __name__ == "__main__":
    for target, knobs in sorted(readers().items()):
        print(target, *sorted(knobs))
