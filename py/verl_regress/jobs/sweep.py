"""Removes the secrets of jobs that are over.

Most are removed by their job's launcher. What a killed node left is removed here: `make up`, `stop`, `wait` and `gc` sweep. Commands that
only read remove nothing.
"""

import argparse

from verl_regress.base import say
from verl_regress.base.errors import RegressError
from verl_regress.base.files import unreadable
from verl_regress.base.layout import SharedRoot
from verl_regress.cluster import nodes
from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs import find
from verl_regress.jobs.status import status_of
from verl_regress.secrets.secret_files import is_held, opened


def sweep(root: SharedRoot, cluster: str, api: RayApi) -> None:
    """Remove the secrets of every job of this cluster that is over, and say so. Raises Unreachable.

    Secrets that a job's launcher or submitter holds are kept. The locks are checked before Ray is asked: by then, a job
    without a lock is known to Ray, or never will be.
    """
    with opened(root, cluster) as directory:
        files = [file for file in sorted(directory.iterdir()) if not is_held(file)] if directory is not None else []
        known = api.jobs() if files else {}
        for file in files:
            status = status_of(find.of_ray_id(root, file.name), known.get(file.name)).status
            if status.exit is not None and file.exists():
                file.unlink(missing_ok=True)
                say.changed(f"removed the secrets of the job {file.name} ({status.value})")


def attempt(root: SharedRoot, cluster: str | None) -> None:
    """`sweep` as part of another command: if the head's Ray does not answer, a later command sweeps.

    `cluster` is None for a job whose submitter died before it wrote its plan.
    """
    if cluster is None:
        return
    try:
        sweep(root, cluster, RayApi(nodes.ADDRESS))
    except RegressError as error:
        say.info(f"The secrets of lost jobs were not removed: {error}")
    except OSError as error:  # they are another user's
        say.info(f"The secrets of lost jobs were not removed: {unreadable(root.secrets / cluster, error)}")


def add_await_arguments(parser: argparse.ArgumentParser) -> None:
    """As `cluster.nodes` declares them."""
    nodes.add_await_arguments(parser)


def run_await(args: argparse.Namespace) -> int:
    """The end of `make up`: wait for Ray's nodes, then sweep, because whatever killed the previous cluster killed its jobs too."""
    nodes.await_all(args)
    sweep(SharedRoot(args.shared_root), args.log_dir.name, RayApi(nodes.ADDRESS))
    return 0
