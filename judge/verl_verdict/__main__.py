"""`verl-verdict` and `python -m verl_verdict`: the command line, or a sentence if a package that the judge needs is not installed."""

import sys
from collections.abc import Sequence

from verl_verdict.read.readers import Reader


def main(readers: Sequence[Reader] = ()) -> int:
    """Run the command; its exit status. `readers` read what is no metrics.jsonl."""
    try:
        from verl_verdict import command

        return command.main(readers=readers)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        why = f"has no package '{package}', which the judge needs: 'pip install {package}' brings it"
        print(f"error   The Python {sys.executable} {why}.", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
