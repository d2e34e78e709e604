"""Which runs a session needs: B and A of each case with its first seed, then only what the verdict still lacks."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_regress.jobs.checkpoints import resume_overrides, step_of
from verl_regress.session.suites import Case, Suite
from verl_regress.store.sessions import jobs_of

Evidence = Mapping[str, Any]

AGAIN, THIRD, PERTURBED, ROLLOUT = "again", "third", "perturbed", "rollout"  # kinds of runs
_SPECIAL = ((AGAIN, "A"), (THIRD, "A"), (PERTURBED, "A"), (ROLLOUT, "B"), (ROLLOUT, "A"))  # in this order
PAIRS = "pairs"  # what a verdict may lack beside these


@dataclass(frozen=True)
class ScheduledRun:
    """One run of a case with A or B. Its kind may be AGAIN, a second run of A with the first seed, and in a replayed case with each; THIRD,
    one more there with the first seed; PERTURBED, one whose last bits are changed; or ROLLOUT, one step of a replayed case for which the
    run generates its own rollouts.
    """

    case: str
    side: str  # A or B
    seed: int
    pair: int  # 1 is the first
    kind: str = ""

    @property
    def name(self) -> str:
        """`ppo_a`, `ppo_b_2` for the second pair, `ppo_a_again`, `ppo_a_again_2`, `ppo_a_perturbed`, `ppo_b_rollout`."""
        which = (self.kind, str(self.pair) if self.pair > 1 else "")
        return "_".join([self.case, self.side.lower(), *filter(None, which)])


def first_runs(case: Case) -> tuple[ScheduledRun, ScheduledRun]:
    """A and B of its first pair."""
    return ScheduledRun(case.name, "A", case.seeds[0], 1), ScheduledRun(case.name, "B", case.seeds[0], 1)


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


def recording_of(run: ScheduledRun, evidence: Evidence) -> Recording | None:
    """The recording of a run; None if its case is not replayed."""
    known = evidence.get("replay", {}).get("cases", {}).get(run.case)
    if known is None or run.kind == ROLLOUT:
        return None
    is_first = run.side == "A" and not run.kind and run.case == known["recorded_by"]
    return Recording(f"{known['recorded_by']}-{run.seed}", known["steps"], is_first)


def is_replayed(case: Case, evidence: Evidence) -> bool:
    """Its runs train on recorded rollouts."""
    return recording_of(first_runs(case)[0], evidence) is not None


def records(case: Case, evidence: Evidence) -> bool:
    """Its first run of each seed records the rollouts; with `continues` that run replays, too."""
    recording = recording_of(first_runs(case)[0], evidence)
    return recording is not None and recording.is_made


def runs_of(case: Case, side: str, evidence: Evidence) -> dict[str, Any]:
    """The evidence of a side's runs of a case, by name, without the special ones: A's perturbed run, and runs with rollouts of their own."""
    jobs = jobs_of(evidence)
    runs = [run for run in all_runs(case) if run.side == side and run.kind in ("", AGAIN, THIRD)]
    return {run.name: jobs[run.name] for run in runs if run.name in jobs}


def special_of(case: Case, kind: str, evidence: Evidence, side: str = "A") -> list[Any]:
    """The evidence of the run of that kind and side; empty if there is none."""
    jobs, name = jobs_of(evidence), special_run(case, kind, side).name
    return [jobs[name]] if name in jobs else []


def all_runs(case: Case) -> list[ScheduledRun]:
    """Every run that a case may take, A's first, in each pair with its second, and after the first pair's those of other kinds."""
    pairs = list(enumerate(case.seeds, start=1))
    of_a = [ScheduledRun(case.name, "A", seed, pair, kind) for pair, seed in pairs for kind in ("", AGAIN)]
    special = [special_run(case, kind) for kind in (THIRD, PERTURBED, ROLLOUT)]
    of_b = [ScheduledRun(case.name, "B", seed, pair) for pair, seed in pairs]
    return [*of_a[:2], *special, *of_a[2:], *of_b, special_run(case, ROLLOUT, "B")]


def spent(evidence: Evidence) -> int:
    """The runs that the session has made, lost and stopped ones included; reused runs do not count."""
    recorded = sum("reused_from" not in job for job in jobs_of(evidence).values())
    return recorded + sum(name.startswith("lost-") for name in evidence)


def is_used_up(budget: int | None, evidence: Evidence) -> bool:
    """The session may make no further run."""
    return budget is not None and spent(evidence) >= budget


def next_run(
    suite: Suite, evidence: Evidence, wants: Callable[[Case], Collection[str]], only: Collection[str] | None = None
) -> ScheduledRun | None:
    """The next run that the session needs, case by case; None if nothing is lacking. `wants` says which kinds of runs, and whether PAIRS, the
    verdicts on a case still lack. `only` names the runs that are asked for.
    """
    if only is None:
        return next((run for case in suite.cases if (run := _of_case(case, evidence, wants))), None)
    recorded, runs = jobs_of(evidence), (run for case in suite.cases for run in first_runs(case))
    lacking = (run for run in runs if run.name in only and run.name not in recorded)
    return next((run for run in lacking if refusal_of(run, evidence) is None), None)


def _of_case(case: Case, evidence: Evidence, wants: Callable[[Case], Collection[str]]) -> ScheduledRun | None:
    """The next run of a case.

    B comes first in the first pair: which earlier run of A fits is known when B has run. Then the sides alternate. In a replayed case A comes
    first in every pair, because B trains on what A recorded, and from the second one on A replays that, too: B is compared with that run.
    """
    for pair, seed in enumerate(case.seeds, start=1):
        if missing := _first_missing(_of_pair(case, pair, seed, evidence), evidence):
            can_run = refusal_of(missing, evidence) is None and why_not(missing, case, evidence) is None
            return missing if can_run else None
        wanted = wants(case)
        if missing := _first_missing((special_run(case, *each) for each in _SPECIAL if each[0] in wanted), evidence):
            return missing
        if PAIRS not in wanted:
            return None
    return None


def _first_missing(runs: Iterable[ScheduledRun], evidence: Evidence) -> ScheduledRun | None:
    """The first run that is not recorded. One that verl's config refused never will be."""
    recorded = jobs_of(evidence)
    return next((run for run in runs if run.name not in recorded), None)


def _of_pair(case: Case, pair: int, seed: int, evidence: Evidence) -> list[ScheduledRun]:
    """The runs of a pair in their order."""
    a, b, again = (
        ScheduledRun(case.name, side, seed, pair, kind) for side, kind in (("A", ""), ("B", ""), ("A", AGAIN))
    )
    if is_replayed(case, evidence):
        return [a, again, b] if pair > 1 and records(case, evidence) else [a, b]
    return [b, a] if pair % 2 else [a, b]


def refusal_of(run: ScheduledRun, evidence: Evidence) -> str | None:
    """Why verl's own config refused a run of B that it takes with A; None if it did not."""
    return (evidence.get(f"refused-{run.name}") or {}).get("reason")


def why_not(run: ScheduledRun, case: Case, evidence: Evidence) -> str | None:
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


def special_run(case: Case, kind: str, side: str = "A") -> ScheduledRun:
    """The run of that kind, which has the first seed."""
    return ScheduledRun(case.name, side, case.seeds[0], 1, kind)


def overrides_of(run: ScheduledRun, suite: Suite, evidence: Evidence) -> list[str]:
    """What the run adds to its JobSpec. A run that continues needs a checkpoint of its source with that side and seed."""
    case = suite.case(run.case)
    added = list(case.overrides)
    if run.kind == ROLLOUT:
        return [*added, "trainer.total_training_steps=1", "trainer.save_freq=-1"]
    if case.continues is None:
        return added + ([f"trainer.total_training_steps={case.steps}"] if case.steps else [])
    source = jobs_of(evidence)[source_of(run, case).name]
    return [
        *added,
        *resume_overrides(start_of(source, case)),
        f"trainer.total_training_steps={last_step_after(source, case)}",
    ]


def source_of(run: ScheduledRun, case: Case) -> ScheduledRun:
    """The run with the checkpoint from which a run of `case` continues."""
    return ScheduledRun(case.continues or "", run.side, run.seed, run.pair)
