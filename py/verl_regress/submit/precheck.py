"""`make slurm`, on a login host: checks a JobSpec before a batch job waits in a queue for it. Creates nothing."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_regress.base import say
from verl_regress.base.errors import BadInput
from verl_regress.base.layout import SharedRoot
from verl_regress.plan import plan
from verl_regress.secrets import secret_files
from verl_regress.store import snapshot
from verl_regress.submit import needed_secrets, submit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `submit`, and where this machine has what the job reads."""
    submit.add_arguments(parser)
    parser.add_argument("--root-here", type=Path, required=True, help="SHARED_ROOT, as this machine sees it")
    parser.add_argument("--source", type=Path, help="the verl that the job takes its snapshot of, if it is here")


def run(args: argparse.Namespace) -> int:
    """Print the JobSpec's secrets, as `secrets` does. Raises BadInput for what a dry run on the nodes refuses before it reads the inputs.

    The overrides are checked if the snapshot, or what it is made of, is on this machine.
    """
    request = submit.read_request(args)
    made = plan.draft(SharedRoot(args.shared_root), request)
    for secret in made.environment.secrets:
        if secret.file is None:
            raise BadInput(
                f"The secret {secret.name} (from {request.spec.origin}) comes from the environment, which a batch job does not have: "
                "give it a 'file: PATH' in the JobSpec."
            )
    code_path, record = _code(SharedRoot(args.root_here), made, args.source)
    if record:
        plan.compose_draft(request, made, code_path, record)
    else:
        say.info(
            f"The overrides are checked in the job, because CODE_ID={made.code.code_id} (from {made.code.origin}) is not in "
            f"{code_path.parent} on this machine, nor is a source of it."
        )
    needed_secrets.show(secret_files.named(request.spec))
    return 0


def _code(here: SharedRoot, made: plan.Draft, source: Path | None) -> tuple[Path, Mapping[str, Any]]:
    """The verl that the job will run, and what is known of it: nothing, if this machine does not have it."""
    path = here.snapshots / made.code.code_id
    if (path / snapshot.RECORD_FILE).is_file():
        return path, snapshot.load(here, made.code.code_id, made.code.origin)
    if source is not None:
        return source, {"code_id": made.code.code_id, "verl_version": snapshot.verl_version(source)}
    return path, {}
