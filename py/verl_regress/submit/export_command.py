"""`make export`: plans a job as `make submit` does, and prints a file that runs it elsewhere. Creates nothing."""

import argparse
import json
from dataclasses import fields
from importlib import metadata

from verl_regress.base.layout import SharedRoot
from verl_regress.export import compose_project, dstack, kuberay
from verl_regress.export.job import Export, Site
from verl_regress.plan import plan
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
    parser.add_argument("--worker-cpus", dest="cpus", type=int)
    parser.add_argument("--worker-gpus", dest="gpus", type=int)
    parser.add_argument("--worker-resources", dest="resources", type=json.loads, required=True)
    parser.add_argument(
        "--worker-env",
        dest="variables",
        action="append",
        default=[],
        type=lambda text: text.split("=", 1),
        metavar="NAME=VALUE",
    )
    parser.add_argument("--shm-size", required=True)
    parser.add_argument("--object-store-bytes", type=int, required=True)
    parser.add_argument("--gcs-port", type=int, required=True)
    parser.add_argument("--devices", type=_words, default=(), help="the knob WORKER_DEVICES")
    parser.add_argument("--driver", type=_words, default=(), help="files of the driver that a worker gets")
    parser.add_argument("--unset", type=_words, default=(), help="variables that Ray is started without")
    parser.add_argument("--cluster-timeout", type=int, required=True)
    parser.add_argument("--deadlines", required=True)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def run(args: argparse.Namespace) -> int:
    """Print the file on stdout. Raises BadInput."""
    root, site, chosen = SharedRoot(args.shared_root), _site(args), FORMATS[args.to]
    request = submit.read_request(args)
    with uncollected(root):
        planned = plan.make(root, request)
    submit.say_left_out(planned)
    export = Export.from_plan(
        planned,
        site,
        [f"{name}={value}" for name, value in args.knobs.typed().items()],
        metadata.version("ray"),
        chosen.LONGEST,
    )
    print(chosen.render(export), end="")
    return 0


def _site(args: argparse.Namespace) -> Site:
    more = {"environment": dict(args.variables), "gpus_per_worker": int(args.knobs["GPUS_PER_WORKER"])}
    given = {**vars(args), **more}
    return Site(**{field.name: given[field.name] for field in fields(Site)})
