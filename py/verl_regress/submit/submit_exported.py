"""`submit-exported`, which a file of `make export` calls in the place that it was made for.

In a head that our scripts did not start it submits the request that the file carries. Where something else submits the
job (KubeRay), it only makes the job's directory, from which the launcher reads its plan.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from verl_regress.base.layout import SharedRoot
from verl_regress.cluster.ray_api import RayApi
from verl_regress.plan import plan, request
from verl_regress.secrets import secret_files
from verl_regress.store.retention import uncollected
from verl_regress.submit import submit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`submit-exported DIR [--secrets] [--reserve DEVICES]`."""
    parser.add_argument("directory", type=Path, help="the request: asked.json, job_spec.* and ray_config.yaml")
    parser.add_argument("--secrets", action="store_true", help="the secrets' values come on stdin")
    parser.add_argument(
        "--reserve", type=int, metavar="DEVICES", help="only make the job's directory: the cluster has DEVICES in all"
    )


def run(args: argparse.Namespace) -> int:
    """Submit or reserve one job; the submission id is the one line on stdout. Raises BadInput."""
    root = SharedRoot(args.shared_root)
    values = secret_files.read_values(sys.stdin.buffer) if args.secrets else {}
    asked = request.of_files(args.directory)
    root.ensure()
    with uncollected(root):
        planned = plan.make(root, asked)
        if args.reserve is not None:
            submit.reserve(replace(planned, cluster_has=args.reserve), values)
        else:
            submit.send(planned, RayApi(planned.driver.address), "sdk", values)
    print(planned.job.submission_id)
    return 0
