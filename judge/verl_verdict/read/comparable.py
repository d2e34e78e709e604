"""May A and B be compared? What must be equal, and what differs in verl's resolved config, which is evidence only."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from verl_verdict.read.records import Run

# What a session records beyond what a job directory has. Not recorded is not equal: the verdict says that it was not compared.
RECORDED_BY_SESSIONS = ("model sha256", "data sha256", "image", "packages")
PERTURBED = "perturbed"  # the fact that the last bits of a run were changed
REPLAY = "replay"  # the fact that a run recorded its rollouts, or trained on recorded ones
OWN_REWARDS = "own rewards"  # the fact that a replayed run did not take the recorded rewards
# What other devices bring with them, which `--accept devices` accepts too: none of it decides what is computed.
_OF_DEVICES = re.compile(
    r"profile|nodes|image|packages|variable (NCCL_DEBUG|TOKENIZERS_PARALLELISM)"
    r"|override (trainer\.device|.+\.(use_torch_compile|param_offload|optimizer_offload|attn_implementation))"
)
# A side without it differs.
_SAID_BY_ONE = ("override ", "variable ", "reward_fn", "deterministic", PERTURBED, REPLAY, OWN_REWARDS)


@dataclass(frozen=True)
class Difference:
    """Something that differs between A and B; None where a side lacks it."""

    name: str
    a: str | None
    b: str | None

    def __str__(self) -> str:
        return f"{self.name}: A {shown(self.a)}, B {shown(self.b)}"


def shown(text: str | None) -> str:
    """A fact as messages show it."""
    if text is None:
        return "without it"
    return text if len(text) <= 80 else f"{text[:77]}..."


def facts(a: Run, b: Run) -> list[Difference]:
    """The facts that differ among what both runs have recorded; an override or a variable on one side only differs, too."""
    found = _differing(a.facts, b.facts)
    return [each for each in found if None not in (each.a, each.b) or each.name.startswith(_SAID_BY_ONE)]


def packages(runs_a: Sequence[Run], runs_b: Sequence[Run]) -> str | None:
    """Which packages differ between A and B, and whether their effect can be separated from the code's; None if none is known to differ."""
    a, b = runs_a[0].packages, runs_b[0].packages
    differ = [f"{each.name} ({shown(each.a)}, {shown(each.b)})" for each in _differing(a, b)]
    if not differ:
        return None
    lists = [{tuple(sorted(run.packages.items())) for run in runs} for runs in (runs_a, runs_b)]
    both = next((side for side, mine in zip("AB", lists, strict=True) if lists[0] | lists[1] <= mine), None)
    separated = (
        f"{both} ran with both: compare its own runs, and those of A and B with equal packages"
        if both
        else "code and packages cannot be separated unless one of the two codes runs with both"
    )
    return f"packages that differ (A, B): {', '.join(differ)}; {separated}"


def config(a: Run, b: Run) -> list[Difference]:
    """Where verl's resolved configs differ: changed defaults, new and removed keys."""
    return _differing(a.config, b.config)


def _differing(a: Mapping[str, str], b: Mapping[str, str]) -> list[Difference]:
    """What differs, by name; nothing if a side has recorded nothing."""
    names = sorted(a.keys() | b.keys()) if a and b else []
    return [Difference(name, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)]


def is_accepted(difference: Difference, accept: Collection[str]) -> bool:
    """Has the user accepted it, by its name (`packages`, `override trainer.nnodes`), or with `devices`, never another number of them?"""
    if difference.name == "devices":
        return "devices" in accept and len({str(side).split(" ")[0] for side in (difference.a, difference.b)}) == 1
    return difference.name in accept or ("devices" in accept and bool(_OF_DEVICES.fullmatch(difference.name)))


def not_compared(a: Run, b: Run) -> list[str]:
    """What should be equal and was not recorded by both."""
    expected = ("profile", "model", "dataset", "devices", "nodes", *RECORDED_BY_SESSIONS)
    return [name for name in expected if name not in a.facts or name not in b.facts]
