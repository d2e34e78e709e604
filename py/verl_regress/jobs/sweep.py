"""Removes the secrets of jobs that are over and whose launcher could not, as on a killed node: `make up`, `stop`, `wait` and `gc` sweep."""

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

    The locks are checked before Ray is asked: by then, a job without a lock is known to Ray, or never will be.
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
    """`sweep` as part of another command: if the head's Ray does not answer, a later command sweeps."""
    if cluster is None:  # its submitter died before it wrote its plan
        return
    try:
        sweep(root, cluster, RayApi(nodes.ADDRESS))
    except (RegressError, OSError) as error:  # they are another user's
        why = unreadable(root.secrets / cluster, error) if isinstance(error, OSError) else error
        say.info(f"The secrets of lost jobs were not removed: {why}")


add_await_arguments = nodes.add_await_arguments


def run_await(args: argparse.Namespace) -> int:
    """The end of `make up`: wait for Ray's nodes, then sweep, because whatever killed the previous cluster killed its jobs too."""
    nodes.await_all(args)
    sweep(SharedRoot(args.shared_root), args.log_dir.name, RayApi(nodes.ADDRESS))
    return 0
