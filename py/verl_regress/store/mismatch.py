"""Compares a snapshot's requirements with the nodes' packages: before a job is made, all differences in one sentence.

Requirements of extras do not count: a backend's extra (vllm, sglang, …) pins what that backend wants.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from verl_regress.base.errors import BadInput, first, shown
from verl_regress.cluster.packages import NodePackages, plain_name, workers

ALLOW = "ALLOW_MISMATCH=1"
# The one requirement of an extra that counts: from 0.9.1 on, verl's trainer cannot be imported without it.
_IN_EXTRA = ("transferqueue", "verl-core")
# Declared, and not needed: 0.7.1 and 0.8.0 trained with numpy 2.4.6, their limit is older than their code, and 0.9.1 wants numpy 2.
_NOT_NEEDED = ("numpy<2.0.0", ("0.7.1", "0.8."))


@dataclass(frozen=True)
class Mismatch:
    """The result of a comparison: `problems` refuse a job unless allowed, with their `cures`; `note` is only printed."""

    problems: tuple[str, ...] = ()
    cures: tuple[str, ...] = ()
    note: str | None = None

    @property
    def sentence(self) -> str:
        """All problems, without a full stop."""
        return "; ".join(self.problems)

    def check(self) -> None:
        """Raises BadInput if there is a problem."""
        if self.problems:
            raise BadInput(f"{self.sentence}: {', '.join((*self.cures, f'or set {ALLOW}'))}.")


def compare(code: Mapping[str, Any], known: Sequence[NodePackages], unknown: Sequence[str]) -> Mismatch:
    """Compare a snapshot's record `code` with the nodes that are up."""
    if unknown:
        return Mismatch((f"The packages of {' and '.join(unknown)} are unknown",), ("run 'make up', which lists them",))
    on, declared = workers(known), code["requirements"]
    verl = f"verl {code['verl_version']} (CODE_ID={code['code_id']})"
    problem = declared.get("problem")
    problems, cures, wants = [], [], list[str]()
    try:
        wants = _wants(code["verl_version"], declared.get("requires", ()), on)
    except InvalidRequirement as error:
        problem = shown(str(error).partition("\n")[0])
    if wants:
        problems.append(f"{verl} wants {', '.join(wants)}")
        cures.append("build an image with them (docker/requirements.in) or name one that has them with NODE_IMAGE")
    differing = _differences(on)
    if differing:
        problems.append(f"{'t' if problems else 'T'}he workers have different packages, {differing}")
        cures.append("give all workers the same packages")
    unsaid = f"{verl} does not say which packages it needs ({problem}): it was not compared with what the nodes have."
    return Mismatch(tuple(problems), tuple(cures), unsaid if problem else None)


def _wants(release: str, requires: Sequence[str], on: Sequence[NodePackages]) -> list[str]:
    """Each requirement that nodes lack, and what they have: `numpy<2 (2.4.6 on worker-0, worker-1)`. Raises InvalidRequirement."""
    wants = []
    for requirement in map(Requirement, requires):
        needed, releases = f"{requirement.name}{requirement.specifier}", _NOT_NEEDED[1]
        without = [node for node in on if _lacks(requirement, node)]
        if without and not (needed == _NOT_NEEDED[0] and release.startswith(releases)):
            wants.append(f"{needed} ({_versions(plain_name(requirement.name), without)})")
    return wants


def _lacks(requirement: Requirement, node: NodePackages) -> bool:
    """Is its marker true there, and is there no package that fits?"""
    name, (of_extra, extra) = plain_name(requirement.name), _IN_EXTRA
    marker, extras = requirement.marker, ("", extra) if name == of_extra else ("",)
    if marker is not None and not any(marker.evaluate({**node.environment, "extra": each}) for each in extras):
        return False
    version = node.packages.get(name)
    with suppress(InvalidVersion):
        return version is None or not requirement.specifier.contains(version, prereleases=True)
    return True


def _versions(name: str, nodes: Sequence[NodePackages]) -> str:
    """`2.4.6 on worker-0 and none on worker-1`."""
    having: dict[str, list[str]] = {}
    for one in nodes:
        having.setdefault(one.versions.get(name, "none"), []).append(one.node)
    return " and ".join(f"{version} on {first(names)}" for version, names in having.items())


def _differences(nodes: Sequence[NodePackages]) -> str:
    """`numpy 2.4.6 on worker-0 and 1.26.4 on worker-1, torch …`; empty if all nodes have the same."""
    names = sorted({name for one in nodes for name in one.versions}, key=str.lower)
    return first(
        [f"{name} {_versions(name, nodes)}" for name in names if len({one.versions.get(name) for one in nodes}) > 1]
    )


def differences_between(a: Mapping[str, str], b: Mapping[str, str]) -> str | None:
    """How the packages of two jobs (`packages.in_job`) differ: `numpy 1.26.4 with A and 2.4.6 with B, …`; None if they do not."""
    other = sorted((name for name in a.keys() | b.keys() if a.get(name) != b.get(name)), key=str.lower)
    return first([f"{name} {a.get(name, 'none')} with A and {b.get(name, 'none')} with B" for name in other]) or None
