"""`verl-verdict` and `python -m verl_verdict`: the command line, or a sentence if the judge's packages are not installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verl_verdict.readers import Reader


def main(arguments: Sequence[str] | None = None, readers: Sequence[Reader] = ()) -> int:
    """Run the command; its exit status. `readers` read what is no metrics.jsonl."""
    try:
        from verl_verdict import command

        return command.main(sys.argv[1:] if arguments is None else arguments, readers)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        print(
            f"error   The Python {sys.executable} has no package '{package}', which the judge needs: 'pip install {package}' brings it.",
            file=sys.stderr,
        )
        return 2


if __name__ == "__main__":
    sys.exit(main())
