"""The formats by the word that `make export TO=…` takes. To add one: a module with LONGEST and render(), and a line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from verl_regress.export import compose, dstack, kuberay
from verl_regress.export.job import Export


class Format(NamedTuple):
    """What makes a file of it, and how many characters its names have at most."""

    render: Callable[[Export], str]
    longest_name: int


FORMATS = {
    "compose": Format(compose.render, compose.LONGEST),
    "dstack": Format(dstack.render, dstack.LONGEST),
    "kuberay": Format(kuberay.render, kuberay.LONGEST),
}
