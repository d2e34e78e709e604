"""The Hugging Face hub: downloads are kept under the shared root, at an exact revision."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import TypeVar

from verl_regress.base import pulse
from verl_regress.base.errors import RegressError
from verl_regress.base.layout import SharedRoot
from verl_regress.base.trust import need
from verl_regress.store import artefact

_REASON_WIDTH = 160

_Answer = TypeVar("_Answer")


class Hub:
    """Fetches `repo` from the hub; every failure is one RegressError that names the knob and ends with `cure`.

    Raises BadInput if another user can change the cache.
    """

    def __init__(self, root: SharedRoot, asked_by: str, repo: str, cure: str) -> None:
        # The hub's packages read this when they are imported, so it is set first.
        os.environ["HF_HOME"] = str(root.hf)
        need(root.hf, f"HF_HOME={root.hf} (for {asked_by})", "or let its owner remove it", alone=True)
        self._cache, self._asked_by, self._repo, self._cure = root.hf, asked_by, repo, cure

    def revision(self, target: Path, source: str, kind: str, asked: str | None = None) -> str:
        """The commit that `asked` (a branch, tag or commit; None: the newest) of a `model` or a `dataset` means.

        If the artefact `target` is from that source, it needs no network: it keeps its revision.
        """
        there = artefact.find(target)
        if there is not None and there.source == source:
            return there.revision
        info = {"repo_type": kind, "revision": asked}
        return self._ask(lambda: str(import_module("huggingface_hub").HfApi().repo_info(self._repo, **info).sha))

    def dataset(self, config: str, revision: str) -> Mapping[str, Sequence[Mapping[str, str]]]:
        """The dataset's splits, by name, each a sequence of rows."""
        return self._ask(lambda: import_module("datasets").load_dataset(self._repo, config, revision=revision))

    def model(self, revision: str) -> Path:
        """The directory in the hub's cache that holds the model's files (links into the same cache)."""
        return self._ask(
            lambda: Path(import_module("huggingface_hub").snapshot_download(self._repo, revision=revision))
        )

    def _ask(self, question: Callable[[], _Answer]) -> _Answer:
        try:
            with pulse.during(f"fetching {self._repo} from the Hugging Face hub", partial(pulse.size_of, self._cache)):
                return question()
        except Exception as error:  # what the hub's packages raise differs from release to release
            reason = shorten(str(error).partition("\n")[0], _REASON_WIDTH, placeholder=" …")
            raise RegressError(
                f"{self._asked_by}: '{self._repo}' cannot be fetched from the Hugging Face hub "
                f"({type(error).__name__}: {reason}): {self._cure}"
            ) from error
