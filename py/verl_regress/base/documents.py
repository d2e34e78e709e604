"""Reads the documents that a user writes, JobSpec, Ray base config and suite, each against its JSON Schema."""

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from verl_regress.base.errors import BadInput, printable, shown

_MOST = 100_000  # values: a few lines of YAML aliases make gigabytes of them


class _PlainYaml(yaml.SafeLoader):
    """YAML's safe loader, for which every key is text (YAML reads NO and 1 as other types) and occurs once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            problem = None
            if not isinstance(key, str) or not key.isprintable():
                problem = f"the key {shown(repr(key))} is not text on one line, put it in quotes"
            elif key in seen:
                problem = f"the key {shown(repr(key))} occurs twice"
            if problem is not None:
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


@dataclass(frozen=True)
class Document:
    """A document as given: its content, its text, and the name by which the user knows it."""

    content: Mapping[str, Any]
    text: str
    origin: str


def text_of(content: bytes, origin: str) -> str:
    """The text of a file that the user knows as `origin`. Raises BadInput if it is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{origin} is not UTF-8 (byte {error.start}): save it as UTF-8.") from None


def parse(text: str, origin: str, kind: str) -> Document:
    """Parse `text` (YAML, of which JSON is a subset) and check it against the schema of `kind`.

    `kind` is `jobspec`, `base_config` or `suite`; `origin` is the file's name as the user knows it. Raises BadInput.
    """
    try:
        document = _load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise BadInput(f"{origin} is not YAML or JSON{where} ({shown(problem)}): fix that line.") from None
    except (AttributeError, LookupError, RecursionError, ValueError) as error:  # such as PyYAML's own for !!int ''
        raise BadInput(f"{origin} is not YAML or JSON ({shown(str(error))}): fix it.") from None
    _need_text(document, origin)
    import jsonschema  # here: it costs the other subcommands a third of their start

    schema = json.loads((Path(__file__).parents[1] / f"{kind}.schema.json").read_text(encoding="utf-8"))
    problem = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(document))
    if problem is not None:
        raise BadInput(_sentence(problem, origin))
    return Document(document, text, origin)


def _load(text: str) -> Any:
    """Read JSON as JSON (YAML 1.1 reads its tabs and escaped emoji differently), anything else as YAML."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except ValueError:
        return yaml.load(text, Loader=_PlainYaml)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs. Raises ValueError for keys that _PlainYaml refuses too: it then reports the line."""
    if len({key for key, _ in pairs if key.isprintable()}) < len(pairs):
        raise ValueError
    return dict(pairs)


def _need_text(document: object, origin: str) -> None:
    """Refuse values that no file, environment or argv can hold. A value is never shown: it may be a secret's."""
    rest = [("the document", document)]
    for where, value in rest:
        if isinstance(value, dict):
            rest += [(key, each) for key, each in value.items()]
        elif isinstance(value, list):
            rest += [(where, each) for each in value]
        if len(rest) > _MOST:
            raise BadInput(f"{origin} is not usable, because its aliases make more than {_MOST:,} values: write fewer.")
        if problem := _unwritable(value):
            raise BadInput(f"{shown(where)} in {origin} {problem}.")


def _unwritable(value: object) -> str | None:
    """Why no file, environment or argv can hold a single value, and the cure; None if they can."""
    if isinstance(value, str) and ("\0" in value or any("\ud800" <= each <= "\udfff" for each in value)):
        return "has a NUL character or half of a surrogate pair: leave it out"
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value}, which is not finite: give a number"
    if isinstance(value, int) and abs(value) >= 2**63:  # Python writes at most 4,300 digits
        return "is a whole number of more than 64 bits: no value of it needs that"
    return None


def _sentence(error: Any, origin: str) -> str:
    """One sentence from a jsonschema ValidationError: the value, where it is, the cure.

    It never repeats values under `secrets` or a whole document: the user may have put a secret's value there.
    """
    where = shown(error.json_path.removeprefix("$").removeprefix(".") or "the document", 80)
    if error.validator == "required":
        missing = next(key for key in error.validator_value if key not in error.instance)
        return f"{origin} lacks the key '{missing}' in {where}: add it."
    if error.absolute_path and error.absolute_path[0] == "secrets":
        return (
            f"{where} in {origin} is not usable: secrets is a list of names, each '- name: WANDB_API_KEY' (upper case, the variable "
            "of that name) or also with 'file: PATH' (a file on this machine), and never has a value."
        )
    if error.validator == "additionalProperties" and isinstance(error.validator_value, bool):
        return _unknown_key(error, where, origin)
    if error.validator == "not":
        return f"{origin} gives both code_id and code_path: give one of them."
    if not error.absolute_path:
        return f"{origin} is not a mapping of keys to values: write key: value lines."
    message = printable(error.message)
    if len(message) > 200:  # the value comes first, and what is wrong with it last
        message = f"{message[:80]}…{message[-120:]}"
    return f"{where} in {origin} is not usable, because {message}: {_cure(error)}."


def _cure(error: Any) -> str:
    """What to write instead; of a pattern its schema says it."""
    wanted = error.validator_value
    if error.validator == "type":
        return _cure_of_type(error, wanted)
    if error.validator == "enum":
        near = difflib.get_close_matches(str(error.instance), [str(each) for each in wanted], n=1)
        return f"write {near[0]}" if near else "use one of these"
    if error.validator == "pattern":
        return str(error.schema["$comment"])
    if error.validator == "uniqueItems":
        return "write each once"
    return f"give at {'most' if str(error.validator).startswith('max') else 'least'} {wanted}"


def _cure_of_type(error: Any, wanted: Any) -> str:
    """YAML reads a value without quotes as a number, a flag or a date, if it looks like one."""
    key = error.absolute_path[-1]
    if wanted == "string" and not isinstance(error.instance, (dict, list, type(None))):
        return "put it in quotes" + (f', as in {printable(key)}: "…"' if isinstance(key, str) else ', as in - "…"')
    return {
        "string": "write text, in quotes if YAML reads it as something else",
        "boolean": "write true or false, without quotes",
        "number": "write a number, without quotes",
        "integer": "write a whole number, without quotes",
        "array": "write a list, each line '- …'",
        "object": "write key: value lines below it",
    }.get(str(wanted), f"write {wanted}")


def _unknown_key(error: Any, where: str, origin: str) -> str:
    known = sorted(error.schema["properties"])
    unknown = next(key for key in error.instance if key not in known)
    near = difflib.get_close_matches(str(unknown), known, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return (
        f"{origin} has the unknown key '{shown(str(unknown), 80)}' in {where}: {hint}known keys are {', '.join(known)}."
    )
