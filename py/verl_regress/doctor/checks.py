"""What a check is: a code, what it tries, and what its alarm means. Most are decided by a node's probe, some by a judge of all nodes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from verl_regress.base.knobs import Knobs

Facts = Mapping[str, Any]  # what a group's probe found on a node; JSON
OK, ALARM, SKIPPED = "ok", "alarm", "skipped"
# A check that could not be made in time. The judge makes it an alarm, unless the load of one of its nodes explains it.
LATE = "late"


class Seen(NamedTuple):
    """What a check said: OK, ALARM, SKIPPED or LATE; on which node (`head`) or between whom (`head -> worker-0`); and what was seen."""

    code: str
    status: str
    where: str
    seen: str


@dataclass(frozen=True)
class ProbePlan:
    """What a probe and the judge must know. `nodes`: the address of each, by name, head first. `quick`: only the quick checks are made.
    `run`: this run's own name. `node`: that of the probe, on which a job may run (`trains`): do not disturb it. `seen`: what it saw so far."""

    nodes: Mapping[str, str]
    knobs: Knobs
    quick: bool = False
    run: str = "run"
    node: str = ""
    trains: bool = False
    seen: list[Seen] = field(default_factory=list)

    def see(self, code: str, what: str, where: str = "", status: str = ALARM) -> None:
        """Note it; of this node if it says not `where`."""
        self.seen.append(Seen(code, status, where or self.node, what))

    @property
    def peers(self) -> list[str]:
        """The other nodes."""
        return [name for name in self.nodes if name != self.node]


class DoctorCheck(NamedTuple):
    """A line of a group's table. `means` follows "so", and `cure` is in this tool's terms.
    What was seen is what the probes saw under its code, and what `judge` says of the facts of all nodes; if that is nothing, all is well."""

    code: str
    tries: str
    means: str
    cure: str
    judge: Callable[[Mapping[str, Facts], ProbePlan], Iterable[Seen]] | None = None
    quick: bool = True
