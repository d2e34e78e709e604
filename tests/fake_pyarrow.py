"""A pyarrow that takes the footer of a parquet file, its rows and the types of its columns, from JSON: the real one is in the node image."""

import json
import sys
import types

from shared_fixtures import write

CONVERSATION = [{"role": "string", "content": "string"}]


class Kind:
    """A type as pyarrow (20) has it; plain data as of `verl_regress.store.tables`."""

    def __init__(self, plain):
        self.plain = plain
        self.num_fields = len(plain) if isinstance(plain, dict) else 0

    def __str__(self):
        match self.plain:
            case dict():
                return f"struct<{', '.join(f'{name}: {Kind(kind)}' for name, kind in self.plain.items())}>"
            case [item]:
                return f"list<element: {Kind(item)}>"
        return self.plain

    @property
    def value_type(self):
        return Kind(self.plain[0])

    def field(self, number):
        name, kind = [*self.plain.items()][number]
        return types.SimpleNamespace(name=name, type=Kind(kind))


class _ParquetFile:
    def __init__(self, path):
        content = json.loads(path.read_text())
        self.metadata = types.SimpleNamespace(num_rows=content["rows"])
        columns = content["columns"].items()
        self.schema_arrow = [types.SimpleNamespace(name=name, type=Kind(kind)) for name, kind in columns]


def install(monkeypatch):
    module = types.ModuleType("pyarrow")
    module.parquet = types.SimpleNamespace(ParquetFile=_ParquetFile)
    monkeypatch.setitem(sys.modules, "pyarrow", module)


def parquet(path, rows, **columns):
    """Write such a file; without columns it has a conversation and its source."""
    given = columns or {"prompt": CONVERSATION, "data_source": "string"}
    return write(path, json.dumps({"rows": rows, "columns": given}))
