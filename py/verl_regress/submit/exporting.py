"""`make export`: plans a job as `make submit` does, and prints a file that runs it elsewhere. Creates nothing."""

from __future__ import annotations

import argparse
import json
import re
from importlib import metadata
from pathlib import Path

from verl_regress.base.errors import BadInput, shown
from verl_regress.base.layout import SharedRoot
from verl_regress.export.formats import FORMATS
from verl_regress.export.job import Export
from verl_regress.export.site import Site
from verl_regress.spec import plan
from verl_regress.store.removal import uncollected
from verl_regress.submit import submit

_CLAIM = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # Kubernetes: a DNS subdomain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `submit`, and the knobs that decide what the cluster is made of."""
    submit.add_arguments(parser)
    parser.add_argument("--to", required=True, choices=sorted(FORMATS), help="the knob TO")
    parser.add_argument("--given", action="append", default=[], help="a word of the command that was typed")
    parser.add_argument("--volume", required=True, help="the knob EXPORT_VOLUME, or its default")
    parser.add_argument("--image", required=True, help="the node image")
    parser.add_argument("--user", required=True, help="uid:gid of the nodes")
    parser.add_argument("--worker", action="append", required=True, help="the ids of a worker's GPUs, one option each")
    parser.add_argument("--gpus-per-worker", type=int, required=True)
    parser.add_argument("--worker-cpus", type=int)
    parser.add_argument("--worker-gpus", type=int)
    parser.add_argument("--worker-resources", type=json.loads, required=True)
    parser.add_argument("--worker-env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--shm-size", required=True)
    parser.add_argument("--object-store-bytes", type=int, required=True)
    parser.add_argument("--gcs-port", type=int, required=True)
    parser.add_argument("--devices", default="", help="the knob WORKER_DEVICES")
    parser.add_argument("--unset", default="", help="variables that Ray is started without")
    parser.add_argument("--cluster-timeout", type=int, required=True)
    parser.add_argument("--pull-timeout", type=int, required=True, help="seconds for pulling the image")
    parser.add_argument("--deadlines", required=True)


def run(args: argparse.Namespace) -> int:
    """Print the file on stdout. Raises BadInput."""
    root, site, chosen = SharedRoot(args.shared_root), _site(args), FORMATS[args.to]
    request = submit.read_request(args)
    with uncollected(root):
        planned = plan.make(root, request)
    submit.say_left_out(planned)
    export = Export.of(planned, site, args.given, metadata.version("ray"), chosen.longest_name)
    print(chosen.render(export), end="")
    return 0


def _site(args: argparse.Namespace) -> Site:
    _check_volume(args.to, args.volume)
    return Site(
        image=args.image,
        user=args.user,
        workers=tuple(args.worker),
        gpus_per_worker=args.gpus_per_worker,
        resources=args.worker_resources,
        cpus=args.worker_cpus,
        gpus=args.worker_gpus,
        shm_size=args.shm_size,
        object_store_bytes=args.object_store_bytes,
        gcs_port=args.gcs_port,
        devices=tuple(args.devices.split()),
        unset=tuple(args.unset.split()),
        environment=dict(entry.split("=", 1) for entry in args.worker_env),
        volume=args.volume,
        cluster_timeout=args.cluster_timeout,
        pull_timeout=args.pull_timeout,
        deadlines=args.deadlines,
    )


def _check_volume(to: str, volume: str) -> None:
    """A claim's name for Kubernetes, for the others a directory of the hosts. Raises BadInput."""
    if to == "kuberay":
        is_usable, cure = (
            _CLAIM.fullmatch(volume) is not None,
            "name a PersistentVolumeClaim: lower-case letters, digits, - and .",
        )
    else:
        is_usable = Path(volume).is_absolute() and ":" not in volume and "\n" not in volume
        cure = "name the absolute path of a directory on the hosts there, without a colon"
    if not is_usable:
        raise BadInput(f"EXPORT_VOLUME={shown(volume)} is not usable with TO={to}: {cure}.")
