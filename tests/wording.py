"""Messages that quote what others say: argparse, json, PyYAML, Hydra and OmegaConf may word it otherwise in their next release."""

import re

THEIRS = "<their words>"  # in a sentence that a test expects: any text on one line


class _Quoting(str):
    """Equal to every text that has our words around theirs."""

    def __eq__(self, other: object) -> bool:
        pattern = re.escape(self).replace(re.escape(THEIRS), r"[^\n]+")
        return isinstance(other, str) and re.fullmatch(pattern, other) is not None

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def said(sentence: str) -> str:
    """The sentence as a test compares it: letter by letter, except where it has THEIRS."""
    return _Quoting(sentence) if THEIRS in sentence else sentence
