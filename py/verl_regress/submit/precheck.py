"""`make slurm`, on a login host: checks a JobSpec before a batch job waits in a queue for it. Creates nothing."""

import argparse
from pathlib import Path

from verl_regress.base import say
from verl_regress.base.errors import BadInput, Refusals
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
    with Refusals() as wrong:
        made = plan.draft(SharedRoot(args.shared_root), request, wrong)
        for secret in made.environment.secrets:
            if secret.file is None:
                with wrong.noted():
                    raise BadInput(
                        f"The secret {secret.name} (from {request.spec.origin}) comes from the environment, which a batch job does not have: "
                        "give it a 'file: PATH' in the JobSpec."
                    )
        here, code = SharedRoot(args.root_here), made.code
        if (here.snapshots / code.code_id / snapshot.RECORD_FILE).is_file():
            made.compose(here.snapshots / code.code_id, snapshot.load(here, code.code_id, code.origin), wrong)
        elif args.source is not None:
            record = {"code_id": code.code_id, "verl_version": snapshot.verl_version(args.source)}
            made.compose(args.source, record, wrong)
        else:
            say.info(
                f"The overrides are checked in the job, because CODE_ID={code.code_id} (from {code.origin}) is not in "
                f"{here.snapshots} on this machine, nor is a source of it."
            )
    needed_secrets.show(secret_files.named(request.spec))
    return 0
