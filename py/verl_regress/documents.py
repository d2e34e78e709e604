"""Reading the two documents that a user writes: the JobSpec and the Ray base config, each against its JSON Schema."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from verl_regress.errors import BadInput


class _UniqueKeys(yaml.SafeLoader):
    """YAML's safe loader, but every key is text (YAML reads NO and 1 as others), and none silently wins over its like."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            problem = None
            if not isinstance(key, str) or not key.isprintable():
                problem = f"the key {key!r} is not text on one line, put it in quotes"
            elif key in seen:
                problem = f"the key {key!r} stands twice"
            if problem is not None:
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


@dataclass(frozen=True)
class Document:
    """What was given: its content, the text as it was, and the name by which the user knows it."""

    content: Mapping[str, Any]
    text: str
    origin: str


def parse(text: str, origin: str, kind: str) -> Document:
    """The document in `text` (YAML, of which JSON is a part), checked against `<kind>`'s schema.

    `kind` is `jobspec` or `base_config`; `origin` is the file's name as the user knows it. Raises BadInput.
    """
    try:
        document = _load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise BadInput(f"{origin} is not YAML or JSON{where} ({problem}): mend that line.") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{origin} is not YAML or JSON ({error}): mend it.") from None
    schema = json.loads((Path(__file__).parent / f"{kind}.schema.json").read_text(encoding="utf-8"))
    _check(document, schema, origin)
    return Document(document, text, origin)


def _load(text: str) -> Any:
    """JSON as JSON (to YAML 1.1 its tabs and its escaped emoji are something else), the rest as YAML."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except ValueError:
        return yaml.load(text, Loader=_UniqueKeys)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs; ValueError for keys that _UniqueKeys refuses too, and tells where."""
    if len({key for key, _ in pairs if key.isprintable()}) < len(pairs):
        raise ValueError
    return dict(pairs)


def _check(document: object, schema: Mapping[str, Any], origin: str) -> None:
    import jsonschema  # here: it costs the other subcommands a third of their start

    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(document))
    if error is not None:
        raise BadInput(_sentence(error, origin))


def _sentence(error: Any, origin: str) -> str:
    """One sentence out of a jsonschema ValidationError: the value, where it stands, the cure."""
    where = error.json_path.removeprefix("$").removeprefix(".") or "the document"
    value = json.dumps(error.instance, ensure_ascii=False, default=str)
    value = value if len(value) <= 80 else f"{value[:77]}…"
    if error.validator == "additionalProperties" and isinstance(error.validator_value, bool):
        known = sorted(error.schema["properties"])
        unknown = next(key for key in error.instance if key not in known)
        near = difflib.get_close_matches(str(unknown), known, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        return f"{origin} has the unknown key '{unknown}' in {where}: {hint}known keys are {', '.join(known)}."
    if error.validator == "required":
        missing = next(key for key in error.validator_value if key not in error.instance)
        return f"{origin} lacks the key '{missing}' in {where}: add it."
    if error.validator == "enum":
        return f"{where}={value} in {origin} is unknown: use one of {', '.join(map(str, error.validator_value))}."
    if error.validator == "type":
        return f"{where}={value} in {origin} has the wrong type: it must be of type {error.validator_value}."
    if error.validator == "not":
        return f"{origin} gives both code_id and code_path: give one of them."
    if error.validator == "pattern":
        return f"{where}={value} in {origin} is not usable: it must match {error.validator_value}."
    return f"{where}={value} in {origin} is not usable: {error.message}."
