"""The Python files of the verl in a snapshot, as text: which there are, and which of them a trainer reaches. None is ever imported."""

import re
from collections.abc import Collection, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

# verl imports by name, and by a text such as "verl.workers.rollout.vllm_rollout.ServerAdapter" (0.7.1 to 0.9.1): both are mentions.
_MENTION = re.compile(r"\bverl(?:\.\w+)+")
_FROM = re.compile(r"^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)", re.MULTILINE)


class Source:
    """The files below the folder `verl` of the tree at `code_path`."""

    def __init__(self, code_path: Path) -> None:
        self._code_path = code_path

    @cached_property
    def files(self) -> dict[str, str]:
        """Their texts by path, as in `verl/trainer/main_ppo.py`."""
        found = sorted((self._code_path / "verl").rglob("*.py"))
        return {
            path.relative_to(self._code_path).as_posix(): path.read_text(encoding="utf-8", errors="replace")
            for path in found
        }

    @cached_property
    def text(self) -> str:
        """All of them as one text."""
        return "\n".join(self.files.values())

    def reached(self, module: str, without: Collection[str] = ()) -> set[str]:
        """The files that `module` mentions, directly or through each other, without those whose path begins with one of `without`.

        A mention in a comment counts as well, so this is rather too much than too little.
        """
        found: set[str] = set()
        queue = [*self._files_of(module)]
        while queue:
            file = queue.pop()
            if file not in found and not file.startswith(tuple(without)):
                found.add(file)
                queue += (each for name in self._mentioned(file) for each in self._files_of(name))
        return found

    def _mentioned(self, file: str) -> Iterator[str]:
        """Dotted names that may be modules of verl."""
        text = self.files[file]
        yield from dict.fromkeys(_MENTION.findall(text))
        for dots, name, imported in _FROM.findall(text):
            parents = PurePosixPath(file).parts[: -len(dots)] if dots else ()
            above = ".".join(filter(None, (*parents, name)))
            yield from (f"{above}.{word}" for word in re.findall(r"\w+", imported) if above.startswith("verl"))

    def _files_of(self, name: str) -> Iterator[str]:
        """The files that Python loads for a dotted name of verl's, whose end may be a class."""
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            start = "/".join(parts[:depth])
            yield from (file for file in (f"{start}.py", f"{start}/__init__.py") if file in self.files)
