"""A suite: the cases that a session trains with A and with B. suite.schema.json describes the file."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from verl_regress.base import documents
from verl_regress.base.errors import BadInput, shown
from verl_regress.jobs import recorded_run

# The judge decides at 3, 4, 6 and 8 pairs (verl_verdict.decide.statistics.LOOKS). verl adds the number of a replica or a rank to a seed, so these
# are far apart.
SEEDS = (100, 200, 300, 400, 500, 600, 700, 800)
_OF_GROUP = ("workload", "jobspec", "steps", "overrides", "ignore", "equal")


@dataclass(frozen=True)
class Case:
    """One case. `spec` is the JobSpec's file. A case that `continues` another one has the other's JobSpec."""

    name: str
    spec: str
    seeds: tuple[int, ...]  # one per pair, so their number is the most pairs
    continues: str | None = None
    steps: int | None = None  # None: what the JobSpec says
    overrides: tuple[str, ...] = ()
    equal: tuple[tuple[str, ...], ...] = ()  # override sets with which a code must train as without: a case each
    equals: str | None = None  # the case of which it is one
    speed: bool = False
    memory: bool = False
    deterministic: bool | None = None
    recompute_rewards: bool = False  # if it is replayed
    ignore: tuple[str, ...] = ()
    decisive: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by metric: better, floor, relative_floor

    def part(self, what: str) -> str:
        """The name of the verdict on a part of it: speed, memory, or the rollout of a replayed case."""
        return f"{self.name} {what}"

    @property
    def is_in_group(self) -> bool:
        """Its runs are compared with others of the same code, not those of A with B's."""
        return bool(self.equal or self.equals)

    def most_runs(self, *, is_replayed: bool = False) -> int:
        """The most runs that it can take:

        - its pairs, A once more to see whether it repeats itself, and if it may, A perturbed;
        - replayed: A once more in each pair, a third time in the first, and one step of A and of B with rollouts of their own;
          `deterministic` counts for nothing.
        """
        if self.is_in_group:
            return 2
        is_replayed = is_replayed and not (self.speed or self.memory)
        deterministic = None if is_replayed else self.deterministic
        own = len(self.seeds) + 2 if is_replayed and not self.continues else 0
        return 2 * len(self.seeds) + (deterministic is None) + (deterministic is not False) + own


@dataclass(frozen=True)
class Suite:
    """A suite by its name, with its cases in the order in which they run."""

    name: str
    title: str
    cases: tuple[Case, ...]
    content: Mapping[str, Any] = field(repr=False)  # as the file has it, but for `_with_whole_paths`
    reuse: bool = True  # take runs of A over from earlier sessions

    def case(self, name: str) -> Case:
        """The case of that name."""
        return next(case for case in self.cases if case.name == name)

    def group(self, case: Case) -> list[Case]:
        """The case and the cases that must train as it does."""
        return [case, *(each for each in self.cases if each.equals == case.name)]

    @property
    def specs(self) -> list[str]:
        """The JobSpec files that it needs, each once."""
        return list(dict.fromkeys(case.spec for case in self.cases))

    def recorded(self) -> dict[str, Any]:
        """What `of_recorded` needs."""
        return {"name": self.name, "content": dict(self.content)}


def parse(text: str, name: str, folder: Path = Path()) -> Suite:
    """The suite in the text of the file `name`; its JobSpec files are relative to `folder`, where that file is. Raises BadInput."""
    suite = _suite(name, _with_whole_paths(documents.parse(text, name, "suite").content, folder))
    for case in suite.cases:
        if seed := next((text for text in case.overrides if recorded_run.is_seed(text)), None):
            raise BadInput(
                f"The case '{case.name}' of the suite {name} has the override '{shown(seed)}', with which all of its pairs would have one seed: leave it out, and give seeds instead."
            )
        if case.decisive and set(case.decisive) <= set(case.ignore):
            raise BadInput(
                f"The case '{case.name}' of the suite {name} ignores every metric that decides it ({', '.join(case.decisive)}): compare one of them."
            )
    return suite


def of_recorded(recorded: Mapping[str, Any]) -> Suite:
    """The suite that a session recorded."""
    return _suite(recorded["name"], recorded["content"])


def _with_whole_paths(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The content with JobSpec files that are the same wherever it is read again: a search writes what it recorded to another file."""
    cases = {name: dict(said) for name, said in content["cases"].items()}
    for said in cases.values():
        if not said.get("jobspec", "~/").startswith("~/"):
            said["jobspec"] = str(folder / said["jobspec"])
    return {**content, "cases": cases}


def _suite(name: str, content: Mapping[str, Any]) -> Suite:
    cases: list[Case] = []
    for case_name, said in content["cases"].items():
        case = _case(name, content, case_name, said, {case.name: case for case in cases})
        cases.append(case)
        for number, apart in enumerate(case.equal, start=1):
            named, overrides = f"{case_name}-{number}", (*case.overrides, *apart)
            cases.append(replace(case, name=named, overrides=overrides, equal=(), equals=case_name))
    names = [case.name for case in cases]
    if twice := next((each for each in names if names.count(each) > 1), None):
        raise BadInput(
            f"The suite {name} has two cases '{twice}', because each override set of 'equal' is one, named by its number: rename the other one."
        )
    return Suite(name, content.get("title", ""), tuple(cases), content, content.get("reuse", True))


def _case(
    suite: str, content: Mapping[str, Any], name: str, said: Mapping[str, Any], before: Mapping[str, Case]
) -> Case:
    where = f"The case '{name}' of the suite {suite}"
    given = [key for key in ("workload", "jobspec", "continues") if key in said]
    if len(given) != 1:
        raise BadInput(
            f"{where} has {' and '.join(given) or 'neither workload, jobspec nor continues'}: give one of workload, jobspec, continues."
        )
    continues = said.get("continues")
    if continues is not None and continues not in before:
        raise BadInput(
            f"{where} continues '{continues}', which is not a case before it: use one of {', '.join(before) or 'the cases before it, of which there are none'}."
        )
    if continues is not None and "steps" not in said:
        raise BadInput(
            f"{where} continues '{continues}' and does not say how far: add steps, the number of further steps."
        )
    if continues is not None and "recompute_rewards" in said:
        raise BadInput(
            f"{where} continues '{continues}' and has recompute_rewards: leave it out, it has that case's, whose runs it is compared with."
        )
    if "equal" in said and (more := sorted(key for key in said if said[key] and key not in _OF_GROUP)):
        raise BadInput(f"{where} has equal, so only runs of the same code are compared: leave out {', '.join(more)}.")
    return Case(
        name=name,
        spec=before[continues].spec if continues else said.get("jobspec") or f"jobspecs/{said['workload']}.yaml",
        seeds=_seeds(where, content, said, before[continues] if continues else None)[: 1 if "equal" in said else None],
        continues=continues,
        steps=said.get("steps"),
        overrides=(*(before[continues].overrides if continues else ()), *said.get("overrides", ())),
        equal=tuple(map(tuple, said.get("equal", ()))),
        speed=said.get("speed", False),
        memory=said.get("memory", False),
        deterministic=said.get("deterministic"),
        recompute_rewards=before[continues].recompute_rewards if continues else said.get("recompute_rewards", False),
        ignore=tuple(said.get("ignore", ())),
        decisive=said.get("decisive", {}),
    )


def _seeds(where: str, content: Mapping[str, Any], said: Mapping[str, Any], source: Case | None) -> tuple[int, ...]:
    """The seeds of its pairs, as many as it may take. A case that continues another one has the other's seeds."""
    pairs = said.get("pairs", content.get("pairs", 1))
    given = said.get("seeds", content.get("seeds"))
    seeds = source.seeds if source else tuple(given or SEEDS)
    if source and "seeds" in said:
        raise BadInput(
            f"{where} continues '{source.name}' and has seeds of its own: leave them out, a seed does not change midway."
        )
    if source and "pairs" not in said:
        return seeds
    if pairs > len(seeds):
        raise BadInput(f"{where} has pairs: {pairs} and {len(seeds)} seeds: give a seed for each pair, or fewer pairs.")
    return seeds[:pairs]
