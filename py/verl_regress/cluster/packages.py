"""The packages on the nodes: each node lists its own when its Ray starts, on the shared root next to that Ray's log."""

import argparse
import hashlib
import json
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_regress.base.files import write_atomically
from verl_regress.base.layout import SharedRoot
from verl_regress.cluster.ray_api import Node

PYTHON = "Python"  # the interpreter, in the list of versions; package names are in lower case here


@dataclass(frozen=True)
class NodePackages:
    """The packages of a node: versions by name (lower case, with dashes), and the values for requirement markers."""

    node: str
    is_head: bool
    python: str
    environment: Mapping[str, str]
    packages: Mapping[str, str]

    @property
    def sha256(self) -> str:
        """That of `packages`."""
        return sha256_of(self.packages)

    @property
    def versions(self) -> dict[str, str]:
        """The version of each package, and of Python."""
        return {PYTHON: self.python, **self.packages}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`list-packages --cluster NAME --node NAME`."""
    parser.add_argument("--cluster", required=True, help="the knob CLUSTER_NAME")
    parser.add_argument("--node", required=True, help="this node's name")


def run(args: argparse.Namespace) -> int:
    """List this node's packages."""
    write_list(SharedRoot(args.shared_root).ray_logs(args.cluster), args.node)
    return 0


def write_list(log_dir: Path, node: str) -> None:
    """Write this node's list."""
    content = {"start": start_of(log_dir, node), **own_packages()}
    write_atomically(log_dir / f"{node}.packages.json", json.dumps(content, indent=1, sort_keys=True) + "\n")


def start_of(log_dir: Path, node: str) -> str | None:
    """The mark of the node's latest start, which Ray has as a label of the node."""
    path = log_dir / f"{node}.start"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def is_listed(log_dir: Path, node: str) -> bool:
    """Has the node listed its packages since its latest start?"""
    return _listed(log_dir, node, start_of(log_dir, node)) is not None


def _listed(log_dir: Path, node: str, start: str | None) -> dict[str, Any] | None:
    """What the node listed after that start of its Ray; None if it has not."""
    with suppress(OSError, ValueError):
        content: dict[str, Any] = json.loads((log_dir / f"{node}.packages.json").read_text(encoding="utf-8"))
        return content if content["start"] == start else None
    return None


def own_packages() -> dict[str, Any]:
    """The packages that a job on this node finds; what only the helper sees is left out."""
    # Imported here: `make status` and others read lists with the standard library alone, and metadata takes 30 ms to load.
    from importlib import metadata

    from packaging.markers import default_environment

    from deps import PACKAGES

    packages: dict[str, str] = {}
    for distribution in metadata.distributions(path=[path for path in sys.path if path != str(PACKAGES)]):
        headers = distribution.metadata  # each access parses it
        name, version = headers["Name"], headers["Version"]
        if name and version:  # the remains of an aborted installation have neither
            packages.setdefault(plain_name(name), version)
    return {
        "python": platform.python_version(),
        "environment": {key: str(value) for key, value in default_environment().items()},
        "packages": packages,
    }


def plain_name(name: str) -> str:
    """A package's name, normalised as PyPA's specification says."""
    return re.sub(r"[-_.]+", "-", name).lower()


def sha256_of(packages: Mapping[str, str]) -> str:
    """One hash over names and versions."""
    text = "".join(f"{name}=={version}\n" for name, version in sorted(packages.items()))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def of_nodes(root: SharedRoot, cluster: str, up: Iterable[Node]) -> tuple[list[NodePackages], list[str]]:
    """The packages of the nodes that are up, in the order of their names, and the names of nodes that have not listed theirs."""
    known, unknown = [], []
    for node in sorted(up, key=lambda node: (not node.is_head, len(node.name), node.name)):
        listed = _listed(root.ray_logs(cluster), node.name, node.labels.get("start"))
        if listed is None:
            unknown.append(node.name)
        else:
            facts = (listed[key] for key in ("python", "environment", "packages"))
            known.append(NodePackages(node.name, node.is_head, *facts))
    return known, unknown


def listed(root: SharedRoot, cluster: str) -> list[NodePackages]:
    """What the nodes of a cluster listed last, for whoever does not ask Ray which of them are up."""
    known = []
    for path in sorted(root.ray_logs(cluster).glob("*.packages.json")):
        with suppress(OSError, ValueError, LookupError):
            content = json.loads(path.read_text(encoding="utf-8"))
            node = path.name.removesuffix(".packages.json")
            facts = (content[key] for key in ("python", "environment", "packages"))
            known.append(NodePackages(node, node == "head", *facts))
    return known


def recorded(known: Sequence[NodePackages]) -> dict[str, Any]:
    """The nodes' packages for config/packages.json: each distinct list once, with the nodes that have it.

    `sha256` is the hash of the workers' packages; if workers differ, the hash of their hashes.
    """
    lists: dict[tuple[str, str], dict[str, Any]] = {}
    for one in known:
        listed = dict(sorted(one.packages.items()))
        entry = {"nodes": [], "python": one.python, "sha256": one.sha256, "packages": listed}
        lists.setdefault((one.sha256, one.python), entry)["nodes"].append(one.node)
    hashes = sorted({one.sha256 for one in workers(known)})
    together = hashlib.sha256("".join(hashes).encode()).hexdigest()
    return {
        "sha256": together if len(hashes) > 1 else next(iter(hashes), None),
        "head": next((one.node for one in known if one.is_head), None),
        "lists": list(lists.values()),
    }


def workers(known: Iterable[NodePackages]) -> list[NodePackages]:
    """The nodes that jobs run on."""
    return [one for one in known if not one.is_head]


def of_workers(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lists in a config/packages.json that nodes other than the head have."""
    return [one for one in record.get("lists") or [] if any(node != record["head"] for node in one["nodes"])]


def in_job(record: Mapping[str, Any]) -> dict[str, str]:
    """Versions by name that a job's workers had, by its config/packages.json; several if the workers differed."""
    versions: dict[str, set[str]] = {}
    for one in of_workers(record):
        for name, version in {PYTHON: one["python"], **one["packages"]}.items():
            versions.setdefault(name, set()).add(version)
    return {name: "/".join(sorted(found)) for name, found in versions.items()}
