"""What a check is: a code, what it tries, and a function that judges the facts of all nodes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from verl_regress.base.knobs import Knobs

Facts = Mapping[str, Any]  # what a group's probe found on a node; JSON


@dataclass(frozen=True)
class Plan:
    """What a probe on a node must know. `nodes`: the address of each, by name, head first. `quick`: only the quick checks are made.
    `run`: this run's own name, the same on all nodes."""

    node: str
    nodes: Mapping[str, str]
    cluster: str
    profile: str
    shared_root: str
    gcs_port: int
    quick: bool
    trains: bool  # a job runs on this node: do not disturb it
    run: str = "run"
    knobs: Knobs = field(default_factory=lambda: Knobs({}))

    @property
    def address(self) -> str:
        """That of this node."""
        return self.nodes[self.node]

    @property
    def peers(self) -> dict[str, str]:
        """The other nodes."""
        return {name: address for name, address in self.nodes.items() if name != self.node}


@dataclass(frozen=True)
class Cluster:
    """What a judge must know beside the facts."""

    nodes: Mapping[str, str]
    profile: str
    quick: bool
    knobs: Knobs
    training: tuple[str, ...]  # nodes on which a job runs

    @property
    def workers(self) -> list[str]:
        """All but the head."""
        return [name for name in self.nodes if name != "head"]


OK, ALARM, SKIPPED = "ok", "alarm", "skipped"


class Seen(NamedTuple):
    """What a judge says: between whom, and what was seen. An alarm may have another meaning and cure than its check."""

    status: str
    where: str
    seen: str
    means: str = ""
    cure: str = ""


def ok(where: str, seen: str) -> Seen:
    """It is as it should be."""
    return Seen(OK, where, seen)


def alarm(where: str, seen: str, means: str = "", cure: str = "") -> Seen:
    """A job will have trouble."""
    return Seen(ALARM, where, seen, means, cure)


def skipped(where: str, why: str) -> Seen:
    """It was not tried."""
    return Seen(SKIPPED, where, why)


class Check(NamedTuple):
    """A line of a group's table. `means` follows "so", and `cure` is in this tool's terms.

    `judge` gets the group's facts of each node by name; if it says nothing, all is well.
    """

    code: str
    tries: str
    judge: Callable[[Mapping[str, Facts], Cluster], Iterable[Seen]]
    means: str
    cure: str
    quick: bool = False


def probed(code: str, tries: str, means: str, cure: str, *, quick: bool = True, only: str = "") -> Check:
    """A check that a node's probe decides alone: its facts have `problems`, a list of (code, where, seen). `only`: it is for this profile."""

    def judge(nodes: Mapping[str, Facts], cluster: Cluster) -> Iterable[Seen]:
        if only and cluster.profile != only:
            return [skipped("all nodes", f"it is for the profile {only}")]
        return [alarm(where, seen) for found in nodes.values() for of, where, seen in found["problems"] if of == code]

    return Check(code, tries, judge, means, cure, quick)
