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

_REASON_WIDTH = 160

_Answer = TypeVar("_Answer")


class Hub:
    """Fetches from the hub; every failure is one RegressError that names the knob and ends with `cure`.

    Raises BadInput if another user can change the cache.
    """

    def __init__(self, root: SharedRoot, asked_by: str, cure: str) -> None:
        # The hub's packages read this when they are imported, so it is set first.
        os.environ["HF_HOME"] = str(root.hf)
        self._cache = root.hf
        need(self._cache, f"HF_HOME={self._cache} (for {asked_by})", "or let its owner remove it", alone=True)
        self._asked_by = asked_by
        self._cure = cure

    def dataset_revision(self, repo: str) -> str:
        """Return the newest commit of the dataset `repo`."""
        return self._ask(repo, lambda: str(import_module("huggingface_hub").HfApi().dataset_info(repo).sha))

    def dataset(self, repo: str, config: str, revision: str) -> Mapping[str, Sequence[Mapping[str, str]]]:
        """Return the dataset's splits, by name, each a sequence of rows."""
        splits: Mapping[str, Sequence[Mapping[str, str]]] = self._ask(
            repo, lambda: import_module("datasets").load_dataset(repo, config, revision=revision)
        )
        return splits

    def model_revision(self, repo: str, revision: str | None) -> str:
        """Return the commit that `revision` (branch, tag or commit; None: the default branch) of `repo` means."""
        return self._ask(
            repo, lambda: str(import_module("huggingface_hub").HfApi().model_info(repo, revision=revision).sha)
        )

    def model(self, repo: str, revision: str) -> Path:
        """Return the directory in the hub's cache that holds the model's files (links into the same cache)."""
        return self._ask(
            repo, lambda: Path(import_module("huggingface_hub").snapshot_download(repo, revision=revision))
        )

    def _ask(self, repo: str, question: Callable[[], _Answer]) -> _Answer:
        try:
            with pulse.during(f"fetching {repo} from the Hugging Face hub", partial(pulse.size_of, self._cache)):
                return question()
        except Exception as error:  # what the hub's packages raise differs from release to release
            reason = shorten(str(error).partition("\n")[0], _REASON_WIDTH, placeholder=" …")
            raise RegressError(
                f"{self._asked_by}: '{repo}' cannot be fetched from the Hugging Face hub "
                f"({type(error).__name__}: {reason}): {self._cure}"
            ) from error
