"""Which runs a session needs: B and A of each case with its first seed, then only what the verdict still lacks."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_regress.jobs.checkpoints import continuing, step_of
from verl_regress.session.suites import Case, Suite
from verl_regress.store.sessions import jobs_of

Evidence = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One run of a case with A or B. `again` is a second run of A with the first seed, `perturbed` one whose last bits are changed.

    `own` is one step of a replayed case for which the run generates its own rollouts.
    """

    case: str
    side: str  # A or B
    seed: int
    pair: int  # 1 is the first
    again: bool = False
    perturbed: bool = False
    own: bool = False

    @property
    def name(self) -> str:
        """`ppo_a`, `ppo_b_2` for the second pair, `ppo_a_again`, `ppo_a_perturbed`, `ppo_b_rollout`."""
        if self.again or self.perturbed or self.own:
            which = "_again" if self.again else "_perturbed" if self.perturbed else "_rollout"
        else:
            which = f"_{self.pair}" if self.pair > 1 else ""
        return f"{self.case}_{self.side.lower()}{which}"


@dataclass(frozen=True)
class Wants:
    """What the verdicts on a case still lack: a second run of A, a perturbed one, one of its own rollouts, or further pairs."""

    again: bool = False
    perturbed: bool = False
    own: bool = False
    pairs: bool = False


def first_runs(case: Case) -> tuple[Run, Run]:
    """A and B of its first pair."""
    return Run(case.name, "A", case.seeds[0], 1), Run(case.name, "B", case.seeds[0], 1)


@dataclass(frozen=True)
class Recording:
    """The rollouts on which a run trains (verl_regress.session.replay), and whether that run makes them."""

    name: str
    steps: int
    is_made: bool

    @property
    def evidence(self) -> str:
        """The name of the evidence of its files."""
        return f"recording-{self.name}"


def recording_of(run: Run, evidence: Evidence) -> Recording | None:
    """The recording of a run; None if its case is not replayed."""
    known = evidence.get("replay", {}).get("cases", {}).get(run.case)
    if known is None or run.own:
        return None
    is_first = run.side == "A" and not (run.again or run.perturbed) and run.case == known["recorded_by"]
    return Recording(f"{known['recorded_by']}-{run.seed}", known["steps"], is_first)


def runs_of(case: Case, side: str, evidence: Evidence) -> dict[str, Any]:
    """The evidence of the runs of a case with one side, by the names of the runs; without those that are not compared with B's or A's: A's
    perturbed one, and those of their own rollouts.
    """
    jobs = jobs_of(evidence)
    runs = [run for run in all_runs(case) if run.side == side and not (run.perturbed or run.own)]
    return {run.name: jobs[run.name] for run in runs if run.name in jobs}


def perturbed_of(case: Case, evidence: Evidence) -> dict[str, Any]:
    """The evidence of A's perturbed run, by its name; empty if there is none."""
    jobs, name = jobs_of(evidence), _perturbed(case).name
    return {name: jobs[name]} if name in jobs else {}


def own_of(case: Case, side: str, evidence: Evidence) -> dict[str, Any]:
    """The evidence of the run of that side that generated its own rollouts, by its name; empty if there is none."""
    jobs, name = jobs_of(evidence), own_run(case, side).name
    return {name: jobs[name]} if name in jobs else {}


def all_runs(case: Case) -> list[Run]:
    """Every run that a case may take, A's first, with its second, its perturbed and its own run after the first one."""
    runs = [Run(case.name, side, seed, pair) for side in "AB" for pair, seed in enumerate(case.seeds, start=1)]
    return [runs[0], _again(case), _perturbed(case), own_run(case, "A"), *runs[1:], own_run(case, "B")]


def spent(evidence: Evidence) -> int:
    """The runs that the session has made, lost and stopped ones included; reused runs do not count."""
    recorded = sum("reused_from" not in job for job in jobs_of(evidence).values())
    return recorded + sum(name.startswith("lost-") for name in evidence)


def next_run(
    suite: Suite, evidence: Evidence, wants: Callable[[Case], Wants], only: Collection[str] | None = None
) -> Run | None:
    """The next run that the session needs, case by case; None if nothing is lacking. `only` names the runs that are asked for."""
    for case in suite.cases:
        run = _of_checks(case, evidence, only) if only is not None else _of_case(case, evidence, wants)
        if run is not None:
            return run
    return None


def _of_checks(case: Case, evidence: Evidence, only: Collection[str]) -> Run | None:
    recorded = jobs_of(evidence)
    lacking = (run for run in first_runs(case) if run.name in only and run.name not in recorded)
    return next((run for run in lacking if refusal_of(run, evidence) is None), None)


def _of_case(case: Case, evidence: Evidence, wants: Callable[[Case], Wants]) -> Run | None:
    """The next run of a case.

    B comes first in the first pair: which earlier run of A fits is known when B has run. Then the sides alternate. In a replayed case A comes
    first in every pair, because B trains on what A recorded.
    """
    recorded = jobs_of(evidence)
    for pair, seed in enumerate(case.seeds, start=1):
        b_first = pair % 2 == 1 and recording_of(Run(case.name, "A", seed, pair), evidence) is None
        for side in "BA" if b_first else "AB":
            run = Run(case.name, side, seed, pair)
            if refusal_of(run, evidence) is not None:
                return None
            if run.name not in recorded:
                return run if why_not(run, case, evidence) is None else None
        wanted = wants(case)
        if wanted.again and _again(case).name not in recorded:
            return _again(case)
        if wanted.perturbed and _perturbed(case).name not in recorded:
            return _perturbed(case)
        for side in "BA" if wanted.own and refusal_of(own_run(case, "B"), evidence) is None else "":
            if not own_of(case, side, evidence):
                return own_run(case, side)
        if not wanted.pairs:
            return None
    return None


def refusal_of(run: Run, evidence: Evidence) -> str | None:
    """Why verl's own config refused a run of B that it takes with A; None if it did not."""
    return (evidence.get(f"refused-{run.name}") or {}).get("reason")


def why_not(run: Run, case: Case, evidence: Evidence) -> str | None:
    """Why a run cannot run: it continues another one, or trains on its rollouts, and there are none."""
    recording = recording_of(run, evidence)
    if recording and not recording.is_made and recording.evidence not in evidence:
        return f"A's run with the seed {run.seed} recorded no rollouts for it"
    if case.continues is None:
        return None
    source = source_of(run, case).name
    job = jobs_of(evidence).get(source)
    if job is None:
        return f"{source}, which it continues, was not run"
    if not job["checkpoints"]:
        return f"{source}, which it continues, left no checkpoint"
    is_there = start_of(job, case).is_dir()
    return None if is_there else f"the checkpoint of {source}, which it continues, is gone ('make gc' removes old ones)"


def start_of(source: Mapping[str, Any], case: Case) -> Path:
    """The checkpoint from which a case continues a job: the newest after which that job itself trained the case's steps or more.

    Then the same steps can be compared. Without such a checkpoint, the newest one.
    """
    known = [name for name in source["checkpoints"] if step_of(name) + (case.steps or 0) <= _last_step(source)]
    return Path(source["job_dir"], "checkpoints", (known or source["checkpoints"])[-1])


def last_step_after(source: Mapping[str, Any], case: Case) -> int:
    """The last step of a run that continues a job: the job's own last step, because schedules such as the learning rate's depend on it."""
    return max(_last_step(source), step_of(start_of(source, case).name) + (case.steps or 0))


def _last_step(job: Mapping[str, Any]) -> int:
    """0 if it recorded none: then a case continues from its newest checkpoint."""
    return max(job["steps"], default=0)


def _again(case: Case) -> Run:
    return Run(case.name, "A", case.seeds[0], 1, again=True)


def _perturbed(case: Case) -> Run:
    return Run(case.name, "A", case.seeds[0], 1, perturbed=True)


def own_run(case: Case, side: str) -> Run:
    """The run of a replayed case in which that side generates its own rollouts."""
    return Run(case.name, side, case.seeds[0], 1, own=True)


def overrides_of(run: Run, suite: Suite, evidence: Evidence) -> list[str]:
    """What the run adds to its JobSpec. A run that continues needs a checkpoint of its source with that side and seed."""
    case = suite.case(run.case)
    added = list(case.overrides)
    if run.own:
        return [*added, "trainer.total_training_steps=1", "trainer.save_freq=-1"]
    if case.continues is None:
        return added + ([f"trainer.total_training_steps={case.steps}"] if case.steps else [])
    source = jobs_of(evidence)[source_of(run, case).name]
    return [
        *added,
        *continuing(start_of(source, case)),
        f"trainer.total_training_steps={last_step_after(source, case)}",
    ]


def source_of(run: Run, case: Case) -> Run:
    """The run with the checkpoint from which a run of `case` continues."""
    return Run(case.continues or "", run.side, run.seed, run.pair)
