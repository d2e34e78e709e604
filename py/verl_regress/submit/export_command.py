"""`make export` plans a job as `make submit` does, and prints a file that runs it elsewhere; that file calls `submit-exported` there.

In a head that our scripts did not start `submit-exported` submits the request that the file carries. Where something else submits the job
(KubeRay), it only makes the job's directory, from which the launcher reads its plan.
"""

import argparse
import json
import sys
from dataclasses import fields, replace
from importlib import metadata
from pathlib import Path

from verl_regress.base.knobs import Knobs
from verl_regress.base.layout import SharedRoot
from verl_regress.export import compose_project, dstack, kuberay
from verl_regress.export.job import Export, Site
from verl_regress.plan import plan, request
from verl_regress.secrets import secret_files
from verl_regress.store.retention import uncollected
from verl_regress.submit import submit

# To add a format: a module with LONGEST, how many characters its names have at most, and render().
FORMATS = {"compose": compose_project, "dstack": dstack, "kuberay": kuberay}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `submit`, and the knobs that decide what the cluster is made of."""
    submit.add_arguments(parser)
    parser.add_argument("--to", required=True, choices=sorted(FORMATS), help="the knob TO")
    parser.add_argument("--volume", required=True, help="the knob EXPORT_VOLUME, or its default")
    parser.add_argument("--image", required=True, help="the node image")
    parser.add_argument("--user", required=True, help="uid:gid of the nodes")
    parser.add_argument(
        "--worker", dest="workers", action="append", required=True, help="the ids of a worker's GPUs, one option each"
    )
    parser.add_argument("--worker-resources", dest="resources", type=json.loads, required=True)
    parser.add_argument("--worker-env", dest="environment", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--driver", type=str.split, default=(), help="files of the driver that a worker gets")
    parser.add_argument("--unset", type=str.split, default=(), help="variables that Ray is started without")


def run(args: argparse.Namespace) -> int:
    """Print the file on stdout. Raises BadInput."""
    root, chosen = SharedRoot(args.shared_root), FORMATS[args.to]
    args.environment = dict(each.split("=", 1) for each in args.environment)
    site = Site(**{field.name: getattr(args, field.name) for field in fields(Site)})
    asked = submit.read_request(args)
    with uncollected(root):
        planned = plan.make(root, asked)
    submit.say_left_out(planned)
    print(chosen.render(Export.from_plan(planned, site, metadata.version("ray"), chosen.LONGEST)), end="")
    return 0


def add_exported_arguments(parser: argparse.ArgumentParser) -> None:
    """`submit-exported DIR [--secrets] [--reserve DEVICES]`."""
    parser.add_argument("directory", type=Path, help="the request: asked.json, job_spec.* and ray_config.yaml")
    parser.add_argument("--secrets", action="store_true", help="the secrets' values come on stdin")
    parser.add_argument(
        "--reserve", type=int, metavar="DEVICES", help="only make the job's directory: the cluster has DEVICES in all"
    )


def run_exported(args: argparse.Namespace) -> int:
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
            submit.send(planned, values, Knobs({}))
    print(planned.job.submission_id)
    return 0
