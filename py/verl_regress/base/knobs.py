"""The knobs with which a command was typed, as scripts/lib/knob.bash writes them: one JSON document."""

import json
from collections.abc import Mapping

from verl_regress.base.errors import BadInput, shown

_TYPED = "the command line or environment"
_OF_USER = (_TYPED, "env/local.env")


class Knobs:
    """Each knob that is not empty, or that the user set: its value, and where that came from."""

    def __init__(self, known: Mapping[str, tuple[str, str]]) -> None:
        self._known = known

    @classmethod
    def parse(cls, text: str) -> "Knobs":
        """Read the document. Raises BadInput for a value that is not text: bytes that are not UTF-8 arrive as halves of surrogate pairs."""
        known = {name: (value, origin) for name, (value, origin) in json.loads(text, strict=False).items()}
        for name, (value, origin) in known.items():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                raise BadInput(f"{name}={shown(value)} (from {origin}) is not UTF-8: write it in UTF-8.") from None
        return cls(known)

    def __getitem__(self, name: str) -> str:
        """The value; "" if it is empty."""
        return self._known.get(name, ("", ""))[0]

    def is_on(self, name: str) -> bool:
        """Whether a boolean is on."""
        return self[name] == "1"

    def number(self, name: str) -> int | None:
        """The value of a whole number; None if it is empty."""
        return int(self[name]) if self[name] else None

    def given(self, name: str) -> str | None:
        """The value if the user set it, even to nothing."""
        return self[name] if self._known.get(name, ("", ""))[1] in _OF_USER else None

    def typed(self) -> dict[str, str]:
        """The knobs from the command line or the environment."""
        return {name: value for name, (value, origin) in self._known.items() if origin == _TYPED}
