"""The shipped JobSpecs, Ray base configs, suites and example of .verl-regress.yaml: specs.py check | write [ROOT].

`check` checks every one: its schema accepts it, its first line leads an editor to that schema, and the pages in DOCS have
the fields of the schemas. Prints how many files it checked; none is a failure. `write` makes the tables. Exits 1 when
anything is wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from page import put
from verl_regress.base import documents
from verl_regress.base.errors import BadInput

REPO = Path(__file__).resolve().parents[2]
SCHEMAS = "py/verl_regress"
DOCS = {
    "docs/jobspec.md": ("jobspec", "base_config"),
    "docs/verify.md": ("suite",),
    "docs/in-your-ci.md": ("ci",),
}  # the pages with the schemas' tables
KINDS = {
    "jobspecs": "jobspec",
    "env/ray": "base_config",
    "suites": "suite",
    "ci": "ci",
}  # where the files are, and their schema
_MODELINE = "# yaml-language-server: $schema="


def check(root: Path) -> tuple[int, list[str]]:
    """How many files were checked, and one sentence for each thing that is wrong with them."""
    files = [(path, kind) for folder, kind in KINDS.items() for path in sorted((root / folder).glob("*.yaml"))]
    problems = [problem for path, kind in files for problem in _check(root, path, kind)]
    if not files:
        problems.append(f"{root} has no JobSpec and no Ray base config: a check of nothing is a failure.")
    for name, kinds in DOCS.items():
        doc = root / name
        if not doc.is_file() or doc.read_text(encoding="utf-8") != _with_tables(
            root, kinds, doc.read_text(encoding="utf-8")
        ):
            problems.append(f"{name} is not what the schemas say: run 'scripts/dev/specs.sh --write'.")
    return len(files), problems


def _check(root: Path, path: Path, kind: str) -> Iterator[str]:
    name, text = path.relative_to(root), path.read_text(encoding="utf-8")
    first = text.split("\n")[0]
    schema = (path.parent / first.removeprefix(_MODELINE)).resolve()
    if not first.startswith(_MODELINE) or schema != (root / SCHEMAS / f"{kind}.schema.json").resolve():
        depth = "../" * len(name.parent.parts)
        yield f"{name} does not begin with '{_MODELINE}{depth}{SCHEMAS}/{kind}.schema.json': editors complete by that line."
    try:
        documents.parse(text, str(name), kind)
    except BadInput as error:
        yield str(error)


def _with_tables(root: Path, kinds: Iterable[str], text: str) -> str:
    """`text` with the table of each of these schemas between its two markers."""
    for kind in kinds:
        schema = json.loads((root / SCHEMAS / f"{kind}.schema.json").read_text(encoding="utf-8"))
        rows = ["| key | type | what it is |", "| --- | --- | --- |", *_rows(schema, schema)]
        text = put(text, kind, "\n".join([*rows, ""]))
    return text


def _rows(schema: dict[str, Any], whole: dict[str, Any], above: str = "") -> Iterator[str]:
    """One row a key; the keys of an object follow it."""
    for name, given in schema["properties"].items():
        node = {**whole["$defs"][given["$ref"].split("/")[-1]], **given} if "$ref" in given else given
        is_needed = " (required)" if name in schema.get("required", ()) else ""
        matches = f" Matches `{node['pattern']}`." if "pattern" in node else ""
        text = f"{node['description']}{matches}".replace("|", "\\|")
        yield f"| `{above}{name}`{is_needed} | {_type(node)} | {text} |"
        if "properties" in node:
            yield from _rows(node, whole, f"{above}{name}.")
        if "properties" in node.get("items", {}):
            yield from _rows(node["items"], whole, f"{above}{name}[].")
        named = node.get("additionalProperties")
        if isinstance(named, dict) and "$ref" in named:
            yield from _rows(whole["$defs"][named["$ref"].split("/")[-1]], whole, f"{above}{name}.NAME.")


def _type(node: dict[str, Any]) -> str:
    if "enum" in node:
        return " or ".join(f"`{value}`" for value in node["enum"])
    if node["type"] == "array":
        return f"list of {node['items']['type']}s"
    if node["type"] == "object" and isinstance(node.get("additionalProperties"), dict):
        return f"name: {node['additionalProperties'].get('type', 'mapping')}"
    return str(node["type"])


def main(action: str, root: Path = REPO) -> int:
    """Do `action`; returns the exit status."""
    if action == "write":
        for name, kinds in DOCS.items():
            doc = root / name
            doc.write_text(_with_tables(root, kinds, doc.read_text(encoding="utf-8")), encoding="utf-8")
    looked, problems = check(root)
    for problem in problems:
        print(f"error   {problem}", file=sys.stderr)
    print(f"checked {looked} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], *map(Path, sys.argv[2:])))
