"""What a file of rows says about its columns, without reading it as a whole: parquet by its footer, JSON by its first rows."""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from verl_regress.base.errors import BadInput, shown

TEXTS = ("string", "large_string", "string_view")
_NULL = "null"
_ROWS, _MOST = 100, 4_000_000  # rows and characters of JSON that are read
_JSON = {str: "string", bool: "bool", int: "int64", float: "double"}

Kind = Any
"""The type of a column: the name of a plain type, a list with the one type of its items, or a mapping with a type for each key."""


class Table(NamedTuple):
    """The type of each column, and how many rows there are; None where the whole file would have to be read."""

    columns: Mapping[str, Kind]
    rows: int | None


def of_parquet(file: Path, named: str) -> Table:
    """The table in a parquet file, which messages call `named`. Raises BadInput; ImportError on a login host."""
    from pyarrow import parquet

    try:
        footer = parquet.ParquetFile(file)
        columns = {field.name: _kind(field.type) for field in footer.schema_arrow}
    except (OSError, ValueError) as error:  # pyarrow's own errors are among these
        raise BadInput(
            f"{named} is not a parquet file that can be read ({shown(str(error), 200)}): make it again."
        ) from None
    return Table(columns, int(footer.metadata.num_rows))


def of_json(file: Path, named: str) -> Table:
    """The table in a file with one JSON object a line, or one list of them, by its first rows. Raises BadInput."""
    columns: dict[str, Kind] = {}
    try:
        for row in islice(_rows_of(file), _ROWS):
            for name, value in dict(row).items():
                columns[name] = _merged(columns.get(name, _NULL), _kind_of(value))
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(
            f"{named} is not JSON that can be read ({shown(str(error), 200)}): write one object a line, or one list of them."
        ) from None
    return Table(columns, None)


def described(kind: Kind) -> str:
    """A type as messages show it."""
    match kind:
        case dict():
            return f"{{{', '.join(kind)}}}"
        case [item]:
            return f"a list of {described(item)}"
    return str(kind)


def difference(one: Kind, other: Kind, *, by_rows: bool) -> tuple[str, Kind, Kind] | None:
    """The first key below which two types cannot be joined, and both types there; a key that only one of them has is no difference.

    With `by_rows`, a type comes from a few rows: then any number may be any other.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for key in filter(other.__contains__, one):
            found = difference(one[key], other[key], by_rows=by_rows)
            if found is not None:
                return (f".{key}{found[0]}", *found[1:])
        return None
    if by_rows and isinstance(one, list) and isinstance(other, list):
        return difference(one[0], other[0], by_rows=True)
    are_numbers = by_rows and _is_number(one) and _is_number(other)
    are_texts = by_rows and one in TEXTS and other in TEXTS
    return None if one == other or _NULL in (one, other) or are_numbers or are_texts else ("", one, other)


def _is_number(kind: Kind) -> bool:
    return isinstance(kind, str) and kind.startswith(("int", "uint", "float", "double", "halffloat", "decimal"))


def _kind(kind: Any) -> Kind:
    """A type of pyarrow (20), by its own text: `list<element: struct<role: string>>`."""
    text = str(kind)
    if text.startswith(("list<", "large_list<", "fixed_size_list<")):
        return [_kind(kind.value_type)]
    if text.startswith("struct<"):
        fields = (kind.field(number) for number in range(kind.num_fields))
        return {field.name: _kind(field.type) for field in fields}
    return _kind(kind.value_type) if text.startswith("dictionary<") else text


def _rows_of(file: Path) -> Iterator[Any]:
    with file.open(encoding="utf-8") as stream:
        start = stream.read(_MOST)
    is_whole = len(start) < _MOST
    if start.lstrip()[:1] != "[":
        lines = start.splitlines()
        yield from (json.loads(line) for line in (lines if is_whole else lines[:-1]) if line.strip())
        return
    decoder, at = json.JSONDecoder(), start.index("[") + 1
    while True:
        at += len(start[at:]) - len(start[at:].lstrip(" \t\r\n,"))
        if start[at : at + 1] in ("]", ""):
            return
        try:
            row, at = decoder.raw_decode(start, at)
        except ValueError:
            if is_whole:
                raise
            return
        yield row


def _kind_of(value: Any) -> Kind:
    if isinstance(value, dict):
        return {str(key): _kind_of(each) for key, each in value.items()}
    if isinstance(value, list):
        kind: Kind = _NULL
        for each in value:
            kind = _merged(kind, _kind_of(each))
        return [kind]
    return _JSON.get(type(value), _NULL)


def _merged(one: Kind, other: Kind) -> Kind:
    """The type of a column that has both; where they do not fit, the first one."""
    if one == _NULL:
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: _merged(one.get(key, _NULL), other.get(key, _NULL)) for key in {**one, **other}}
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])]
    return one
