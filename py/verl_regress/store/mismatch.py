"""Compares a snapshot's requirements with the nodes' packages: before a job is made, all differences in one sentence.

Only what is needed counts: requirements whose markers are true on the workers, and not those of extras. A backend's
extra (vllm, sglang, …) pins what that backend wants. But what several backends' extras list, and verl's trainer cannot
be imported without, is needed by all (TransferQueue, from 0.9.1 on: verl's `verl-core`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from verl_regress.base.errors import BadInput, shown
from verl_regress.cluster.packages import NodePackages, Unknown, plain_name, workers

ALLOW = "ALLOW_MISMATCH=1"
_SHOWN = 5  # packages in which nodes differ


@dataclass(frozen=True)
class Harmless:
    """A requirement that some releases declare and do not need: `reason` says how that is known."""

    releases: str
    package: str
    declared: str
    has: str
    reason: str

    def covers(self, release: str, requirement: Requirement, version: str) -> bool:
        """Does it apply to this requirement and version?"""
        return (
            plain_name(requirement.name) == self.package
            and requirement.specifier == SpecifierSet(self.declared)
            and _is_in(release, SpecifierSet(self.releases))
            and _is_in(version, SpecifierSet(self.has))
        )


HARMLESS = (
    Harmless(
        releases=">=0.7.1,<0.9",
        package="numpy",
        declared="<2.0.0",
        has=">=2,<3",
        reason="0.7.1 and 0.8.0 trained with numpy 2.4.6; the limit is older than their code, and 0.9.1 wants numpy 2",
    ),
)


@dataclass(frozen=True)
class Finding:
    """The result of a comparison: `problems` refuse a job unless allowed, with their `cures`; `notes` are only printed."""

    problems: tuple[str, ...] = ()
    cures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """All problems, without a full stop."""
        return "; ".join(self.problems)

    def check(self) -> None:
        """Raises BadInput if there is a problem."""
        if self.problems:
            cures = [*dict.fromkeys(self.cures), f"or set {ALLOW}"]
            raise BadInput(f"{self.sentence}: {', '.join(cures)}.")


def compare(code: Mapping[str, Any], known: Sequence[NodePackages], unknown: Sequence[Unknown]) -> Finding:
    """Compare the snapshot whose record is `code` with the nodes that are up."""
    if unknown:
        names = " and ".join(f"{one.node} ({one.reason})" for one in unknown)
        problem = f"The packages of {names} are unknown"
        return Finding((problem,), ("run 'make up', which lists them",))
    on = workers(known)
    found = _declared(code, on)
    differing = _differences(on)
    problems, cures = [*found.problems], [*found.cures]
    if differing:
        problems.append(f"{'t' if problems else 'T'}he workers have different packages, {differing}")
        cures.append("give all workers the same packages")
    return Finding(tuple(problems), tuple(cures), found.notes, found.harmless)


def _declared(code: Mapping[str, Any], on: Sequence[NodePackages]) -> Finding:
    verl = f"verl {code['verl_version']} (CODE_ID={code['code_id']})"
    declared = code["requirements"]
    if "problem" in declared:
        note = f"{verl} does not say which packages it needs ({declared['problem']}): it was not compared with what the nodes have."
        return Finding(notes=(note,))
    try:
        parsed = _parsed(declared)
    except _Refused as refused:
        return Finding((f"{verl} declares {refused}",), (f"correct {declared['from']} and make the snapshot again",))
    needing: dict[str, tuple[Requirement, list[NodePackages]]] = {}
    for node in on:
        for requirement in _needed(parsed, declared, node):
            needing.setdefault(_described(requirement), (requirement, []))[1].append(node)
    wants: list[str] = []
    harmless: list[str] = []
    for requirement, nodes in needing.values():
        without = [node for node in nodes if not _has(requirement, node)]
        excuses = [_excuse(code["verl_version"], requirement, node) for node in without]
        if without and all(excuses):
            harmless.append(f"{_described(requirement)} ({_what_they_have(requirement, without, on)}): {excuses[0]}")
        elif without:
            wants.append(
                f"{_described(requirement)} ({_what_they_have(requirement, without, on, is_repeated=bool(wants))})"
            )
    if not wants:
        return Finding(harmless=tuple(harmless))
    cure = "build an image with them (docker/requirements.lock) or name one that has them with NODE_IMAGE"
    return Finding((f"{verl} wants {_joined(wants)}",), (cure,), harmless=tuple(harmless))


class _Refused(Exception):
    """A requirement that cannot be parsed, in words that follow 'declares'."""


def _parsed(declared: Mapping[str, Any]) -> list[Requirement]:
    """All requirements, in the order declared. Raises _Refused."""
    file, extras = declared["from"], declared["extras"]
    parsed = [_parse(text, file) for text in declared["requires"]]
    for requirement in filter(_is_own, parsed):
        for extra in sorted(requirement.extras):
            if plain_name(extra) not in map(plain_name, extras):
                has = f"it has {', '.join(extras)}" if extras else "it has none"
                raise _Refused(f"'{requirement.name}[{shown(extra)}]' in {file}, which is not an extra of it ({has})")
    return parsed


def _needed(parsed: Sequence[Requirement], declared: Mapping[str, Any], node: NodePackages) -> list[Requirement]:
    """The requirements that apply on that node."""
    extras: set[str] = set()  # extras of verl that verl itself requires
    while True:
        always = [one for one in parsed if _applies(one, node, ["", *extras])]
        own = {extra for one in filter(_is_own, always) for extra in one.extras}
        if own <= extras:
            break
        extras |= own
    needed = [one for one in always if not _is_own(one)]
    at_import = {_module(name) for name in declared["imports"]} - {_module(one.name) for one in needed}
    shared = {plain_name(extra) for one in filter(_is_own, parsed) for extra in one.extras}
    common = [extra for extra in declared["extras"] if plain_name(extra) in shared]
    optional: dict[str, list[Requirement]] = {}
    for one in parsed:
        if _module(one.name) in at_import and _applies(one, node, common):
            optional.setdefault(_module(one.name), []).append(one)
    return [*needed, *map(_of_alternatives, optional.values())]


def _is_own(requirement: Requirement) -> bool:
    return plain_name(requirement.name) == "verl"


def _parse(text: str, file: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        why = " ".join(str(error).split("\n")[0].split())
        raise _Refused(f"'{shown(text)}' in {file}, which is not a requirement ({shown(why)})") from None


def _of_alternatives(found: Sequence[Requirement]) -> Requirement:
    """Merge the requirements of alternative extras for one package: if they want different versions, any version will do."""
    return found[0] if len({str(one.specifier) for one in found}) == 1 else Requirement(found[0].name)


def _applies(requirement: Requirement, node: NodePackages, extras: Iterable[str]) -> bool:
    """Is its marker true there, with any of those extras?"""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({**node.environment, "extra": extra}) for extra in extras)


def _has(requirement: Requirement, node: NodePackages) -> bool:
    version = node.packages.get(plain_name(requirement.name))
    return version is not None and (not requirement.specifier or _is_in(version, requirement.specifier))


def _excuse(release: str, requirement: Requirement, node: NodePackages) -> str | None:
    """Why another version on the node does no harm."""
    version = node.packages.get(plain_name(requirement.name))
    return next((one.reason for one in HARMLESS if version and one.covers(release, requirement, version)), None)


def _is_in(version: str, wanted: SpecifierSet) -> bool:
    try:
        return wanted.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def _module(name: str) -> str:
    """A package's name without characters that its module's name may lack: TransferQueue is imported as transfer_queue."""
    return plain_name(name).replace("-", "")


def _described(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"


def _what_they_have(
    requirement: Requirement, without: Sequence[NodePackages], on: Sequence[NodePackages], *, is_repeated: bool = False
) -> str:
    name = plain_name(requirement.name)
    versions = {one.packages.get(name) for one in without}
    if len(versions) == 1 and len(without) == len(on):
        return f"{'they' if is_repeated else 'the nodes'} have {versions.pop() or 'none'}"
    return ", ".join(f"{one.node} has {one.packages.get(name) or 'none'}" for one in without)


def _differences(nodes: Sequence[NodePackages]) -> str:
    """`numpy 2.4.6 on worker-0 and 1.26.4 on worker-1, torch …`; empty if all nodes have the same."""
    names = sorted({name for one in nodes for name in one.versions}, key=str.lower)
    differences = []
    for name in names:
        having: dict[str | None, list[str]] = {}
        for one in nodes:
            having.setdefault(one.versions.get(name), []).append(one.node)
        if len(having) > 1:
            differences.append(
                f"{name} " + " and ".join(f"{version or 'none'} on {', '.join(at)}" for version, at in having.items())
            )
    return _first(differences)


def _first(texts: Sequence[str]) -> str:
    more = f", and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def differences_between(a: Mapping[str, str], b: Mapping[str, str]) -> str | None:
    """How the packages of two jobs (`packages.in_job`) differ: `numpy 1.26.4 with A, 2.4.6 with B; …`; None if they do not."""
    other = sorted((name for name in a.keys() | b.keys() if a.get(name) != b.get(name)), key=str.lower)
    differences = [f"{name} {a.get(name, 'none')} with A, {b.get(name, 'none')} with B" for name in other[:_SHOWN]]
    more = [f"{len(other) - _SHOWN} more"] if len(other) > _SHOWN else []
    return "; ".join([*differences, *more]) or None
