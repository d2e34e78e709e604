"""The helper's entry point: `python3 run.py SUBCOMMAND …`, on a node."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent  # of this copy: py and judge are beside each other, here as in a checkout


def _start() -> int:
    os.umask(os.umask(0) | 0o022)  # what we run again later, such as a job's plan, is ours to change
    from deps import PACKAGES

    # What the helper shares with job processes, and its packages: all of it after the node's own packages.
    sys.path += [str(HERE / "hooks"), str(ROOT / "judge"), str(PACKAGES)]
    try:
        from verl_regress.cli import main

        return main()
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package == "verl_regress":
            raise SystemExit(
                f"error   {HERE} lacks {error.name}, a part of the helper: bring it with 'make up'."
            ) from None
        cure = "bring it with 'scripts/12_install_py_deps.sh'"
        if package in {"numpy", "scipy", "matplotlib"}:  # the judge's
            cure = "'make verify' and 'make history' bring it to the head of a cluster that is up, from WHEELHOUSE if you set that"
        raise SystemExit(f"error   This node's Python has no package '{package}': {cure}.") from None


if __name__ == "__main__":
    raise SystemExit(_start())
