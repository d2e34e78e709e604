"""The helper's entry point: `python3 run.py SUBCOMMAND …`, on a node."""

import sys

from deps import PACKAGES

sys.path.append(str(PACKAGES))  # after the node's own packages
try:
    from verl_regress.cli import main

    status = main()
except ModuleNotFoundError as error:
    raise SystemExit(f"error   This node's Python has no package '{error.name}': bring it with 'make deps'.") from None

raise SystemExit(status)
