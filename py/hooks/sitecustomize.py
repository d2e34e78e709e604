"""Loads the hooks that a job names, then the image's own sitecustomize.

``VERL_REGRESS_HOOKS`` is a comma-separated list of modules, whose ``install()`` is called in that order. A hook that cannot be loaded ends
the process with status 1 and one sentence on stderr: a job without it must not train. The trainer proves its code last (proof.py).
"""

import os
import sys

HOOKS_VARIABLE = "VERL_REGRESS_HOOKS"


def _install(name: str) -> None:
    import importlib

    try:
        importlib.import_module(name).install()
    except Exception as error:
        sys.stderr.write(
            f"verl-regress: the hook {name!r} named in {HOOKS_VARIABLE} could not be installed: {type(error).__name__}: {error}; this "
            f"process stops because it must not run without it (PYTHONPATH={os.environ.get('PYTHONPATH', '')!r})\n"
        )
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(1)  # an Exception would be swallowed by site.py, and a SystemExit would add a traceback


def _run_next_sitecustomize() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    own_folder = os.path.realpath(os.path.dirname(__file__))  # noqa: PTH120 - every process would pay for pathlib
    other_folders = [entry for entry in sys.path if os.path.realpath(entry) != own_folder]
    spec = PathFinder.find_spec("sitecustomize", other_folders)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if "VERL_REGRESS_OFFLINE" in os.environ:
    _install("egress")
for _name in filter(None, (part.strip() for part in os.environ.get(HOOKS_VARIABLE, "").split(","))):
    _install(_name)
try:
    _run_next_sitecustomize()
finally:  # the launcher waits for the proof, and what the image sets up may decide what is imported
    if "VERL_REGRESS_PROOF" in os.environ:
        _install("proof")
