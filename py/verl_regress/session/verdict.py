"""From a session's evidence to its verdicts: makes the judge's runs of the jobs, and says what a verdict still lacks."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from verl_regress.jobs import recorded_run
from verl_regress.session import schedule, suites
from verl_regress.session.schedule import Evidence
from verl_regress.session.suites import Case
from verl_regress.store.sessions import jobs_of
from verl_verdict.decide import diagnosis, judge, preconditions
from verl_verdict.decide.invariants import Member
from verl_verdict.decide.resumed import Resumed
from verl_verdict.decide.unrun import Unrun
from verl_verdict.decide.verdicts import Verdict
from verl_verdict.errors import CannotJudge
from verl_verdict.read import records
from verl_verdict.read.metrics import Decisive

_SIDES = {"more": +1, "less": -1, "neither": 0}


def of_session(evidence: Evidence, budget: int | None = None) -> list[Verdict]:
    """The verdicts on all cases of the session's suite; on rollouts, speed and memory too where a case has them."""
    cases = [case for case in suites.of_recorded(evidence["begin"]["suite"]).cases if not case.equals]
    return [verdict for case in cases for verdict in of_case(case, evidence, budget)]


def of_case(case: Case, evidence: Evidence, budget: int | None = None) -> list[Verdict]:
    """The verdict on a case, and on its speed and memory if it asks for them. Without a pair it says why there is none."""
    if case.is_in_group:
        return [_of_group(case, evidence, budget)]
    if lacking := _without_a_pair(case, evidence, budget):
        return [lacking]
    try:
        found = _of_pairs(case, evidence, budget)
    except CannotJudge as error:
        return [judge.unrun(Unrun(case.name, unreadable=str(error)))]
    used_up = budget if schedule.is_used_up(budget, evidence) else None
    if used_up is not None or len(schedule.runs_of(case, "B", evidence)) == len(case.seeds):
        found = [_with_limit(verdict, case, used_up) for verdict in found]
    return found


def _of_pairs(case: Case, evidence: Evidence, budget: int | None) -> list[Verdict]:
    """The verdicts on a case that has a pair, the one on its training first. Raises CannotJudge."""
    sides = {side: schedule.runs_of(case, side, evidence) for side in "AB"}
    a, b = ([run_of(job) for job in sides[side].values()] for side in "AB")
    judged = judge.case(
        a,
        b,
        name=case.name,
        decisive=decisive_of(case),
        ignore=case.ignore,
        deterministic=_deterministic(case, evidence),
        perturbed=[run_of(job) for job in schedule.special_of(case, schedule.PERTURBED, evidence)],
    )
    found = [_with_files(_compared_with_its_source(judged, case, evidence), sides)]
    if of_rollout := _of_rollout(case, evidence, found[0], budget):
        found = [_with_half(found[0], of_rollout), _with_files(of_rollout, sides)]
    if case.speed:
        found.append(judge.speed(a, b, name=case.part("speed")))
    if case.memory:
        found.append(judge.memory(a, b, name=case.part("memory")))
    return found


def _without_a_pair(case: Case, evidence: Evidence, budget: int | None) -> Verdict | None:
    """The verdict on a case of which B's config refuses the first run, or that lacks a run of A or B.

    None if it has a pair.
    """
    first = schedule.first_runs(case)
    refusal = schedule.refusal_of(first[1], evidence)
    if refusal is not None:
        return judge.unrun(Unrun(case.name, refusal=refusal))
    if all(schedule.runs_of(case, side, evidence) for side in "AB"):
        return None
    missing = [run for run in first if run.name not in jobs_of(evidence)]
    why = next((why for run in missing if (why := schedule.why_not(run, case, evidence))), None)
    return judge.unrun(
        Unrun(
            case.name,
            baseline=_unusable_a(case, evidence),
            missing=[run.name for run in missing],
            why=why or _why_ended(evidence, budget),
        )
    )


def _unusable_a(case: Case, evidence: Evidence) -> tuple[str, str] | None:
    """A run of A that is no baseline, and why; None if there is none."""
    for job in schedule.runs_of(case, "A", evidence).values():
        try:
            run = run_of(job)
            why = preconditions.why_unusable(run, run.last_step)
        except CannotJudge as error:
            why = str(error)
        if why:
            return job["submission_id"], why
    return None


def _of_group(case: Case, evidence: Evidence, budget: int | None) -> Verdict:
    """The verdict on a case and the cases that must train as it does."""
    group = suites.of_recorded(evidence["begin"]["suite"]).group(case)
    if lacking := next((found for each in group if (found := _without_a_pair(each, evidence, budget))), None):
        return dataclasses.replace(lacking, case=case.name)
    sides = {side: _jobs_of_group(group, side, evidence) for side in "AB"}
    jobs = zip(group, sides["A"].values(), sides["B"].values(), strict=True)
    try:
        members = [Member(_apart(each, case), _first_step_of(a), _first_step_of(b)) for each, a, b in jobs]
        return _with_files(judge.invariants(members, name=case.name, ignore=case.ignore), sides)
    except CannotJudge as error:
        return judge.unrun(Unrun(case.name, unreadable=str(error)))


def _jobs_of_group(group: Iterable[Case], side: str, evidence: Evidence) -> dict[str, Any]:
    return {name: job for each in group for name, job in schedule.runs_of(each, side, evidence).items()}


def _apart(member: Case, case: Case) -> str:
    """What sets a member of the case's group apart from it."""
    return " ".join(member.overrides[len(case.overrides) :])


def _with_files(verdict: Verdict, sides: Mapping[str, Mapping[str, Any]]) -> Verdict:
    """The verdict with the files of verl that the first runs of A and B loaded, and that differ."""
    a, b = (next(iter(jobs.values())).get("loaded") or {} for jobs in (sides["A"], sides["B"]))
    differ = [name for name in a.keys() & b.keys() if a[name] != b[name]]
    return dataclasses.replace(verdict, files=diagnosis.likely_first(differ, verdict.first))


def _compared_with_its_source(verdict: Verdict, case: Case, evidence: Evidence) -> Verdict:
    """Runs that continue other ones are judged beside those.

    What these trained after the checkpoint counts, and whether they differ already.
    """
    if case.continues is None or not verdict.pairs:
        return verdict
    source = of_case(suites.of_recorded(evidence["begin"]["suite"]).case(case.continues), evidence)[0]
    a, b = (_resumed(case, side, evidence) for side in "AB")
    return judge.resumed(verdict, a, b, source, case.ignore)


def _of_rollout(case: Case, evidence: Evidence, trainer: Verdict, budget: int | None) -> Verdict | None:
    """The verdict on what B of a replayed case samples itself; None for another case.

    A B that failed shows nothing more.
    """
    if not schedule.records(case, evidence) or not trainer.pairs:
        return None
    name, run = case.part("rollout"), schedule.special_run(case, schedule.ROLLOUT, "B")
    own_a, own_b = (schedule.special_of(case, schedule.ROLLOUT, evidence, side) for side in "AB")
    refusal = schedule.refusal_of(run, evidence)
    if refusal is not None or not own_b:
        why = _why_ended(evidence, budget)
        return judge.unrun(Unrun(name, refusal=refusal, is_rollout=True, missing=[run.name], why=why))
    first = next(iter(schedule.runs_of(case, "A", evidence).values()))
    *a, b = (_first_step_of(job).without(case.ignore) for job in (first, *own_a, *own_b))
    # A third run was made because the first two differ, though later the two that replay may be equal.
    is_noisy = trainer.deterministic is False or bool(schedule.special_of(case, schedule.THIRD, evidence))
    return judge.rollout(a, b, name=name, is_noisy=is_noisy)


def _first_step_of(job: Mapping[str, Any]) -> records.Run:
    found = job.get("sampled_first")
    return dataclasses.replace(run_of(job), hashes={records.TOKENS: found} if found else {})


def _with_half(trainer: Verdict, of_rollout: Verdict) -> Verdict:
    """The verdict on replayed runs, which is about the trainer, with which half of verl differs."""
    says = {
        half: "is as in A" if found.agrees else "is not decided" if found.is_undecided else "differs"
        for half, found in (("trainer", trainer), ("rollout", of_rollout))
    }
    note = f"which half: the trainer {says['trainer']}, the rollout {says['rollout']}"
    return dataclasses.replace(trainer, notes=(note, *trainer.notes))


def _resumed(case: Case, side: str, evidence: Evidence) -> list[Resumed]:
    """The recorded runs of a case with one side, each with the run that it continues."""
    jobs = jobs_of(evidence)
    return [
        Resumed(run_of(jobs[run.name]), run_of(jobs[schedule.source_of(run, case).name]))
        for run in schedule.all_runs(case)
        if run.name in schedule.runs_of(case, side, evidence)
    ]


def wants(case: Case, evidence: Evidence) -> set[str]:
    """What the verdicts on a case with at least one pair still lack: kinds of runs, and PAIRS."""
    if case.is_in_group:
        return set()
    found = of_case(case, evidence)
    of_pairs = [verdict for verdict in found if verdict.pairs]
    lacks = {
        schedule.AGAIN: any(_lacks_repeat(verdict, case, evidence) for verdict in of_pairs),
        schedule.THIRD: _lacks_third_run(found[0], case, evidence),
        schedule.PERTURBED: any(verdict.needs_perturbed for verdict in of_pairs),
        schedule.ROLLOUT: any(_lacks_own_rollouts(verdict, case, evidence) for verdict in found),
        schedule.PAIRS: any(verdict.is_open and verdict.pairs_needed for verdict in of_pairs),
    }
    return {what for what, is_lacking in lacks.items() if is_lacking}


def _lacks_repeat(verdict: Verdict, case: Case, evidence: Evidence) -> bool:
    """An open verdict on the case's training lacks it as long as nothing says whether A repeats itself."""
    if verdict.case != case.name or not verdict.is_open or verdict.deterministic is not None:
        return False
    return _deterministic(case, evidence) is None


def _lacks_third_run(trainer: Verdict, case: Case, evidence: Evidence) -> bool:
    """A replayed case whose two runs of A differ lacks it, unless B is bit-equal to A or is known to differ.

    The first one recorded, so only a third one tells how far two replays are apart.
    """
    if trainer.deterministic is not False or not schedule.records(case, evidence):
        return False
    return (trainer.agrees and not trainer.is_bit_equal) or bool(trainer.pairs_needed)


def _lacks_own_rollouts(verdict: Verdict, case: Case, evidence: Evidence) -> bool:
    """An open verdict on the rollouts that a replayed case samples itself lacks B's run, or if that differs, A's."""
    if verdict.case != case.part("rollout") or not verdict.is_open or verdict.deterministic is not None:
        return False
    return verdict.first is not None or not schedule.special_of(case, schedule.ROLLOUT, evidence, "B")


def run_of(job: Mapping[str, Any]) -> records.Run:
    """The judge's run of a recorded job, with the facts that only a session records. Raises CannotJudge."""
    run = recorded_run.read(Path(job["job_dir"]))
    facts = {**run.facts, **job["artefacts"]}
    if job.get("image"):
        facts["image"] = job["image"]
    facts |= recorded_run.packages_fact(job.get("packages") or {})
    stalled = (
        "it stalled: it made no step for too long (START_TIMEOUT, STALL_TIMEOUT), and was stopped"
        if job.get("stalled")
        else None
    )
    hashes = {records.WEIGHTS: job.get("weights"), records.TOKENS: job.get("sampled")}
    return dataclasses.replace(
        run,
        facts=facts,
        hashes={name: found for name, found in hashes.items() if found},
        failure=stalled or run.failure,
        unfinished=None if stalled else job.get("misused") or run.unfinished,
    )


def judged(job: Mapping[str, Any]) -> records.Run | None:
    """The same; None if files were removed, another user closed them, or evidence is missing."""
    try:
        return run_of(job)
    except (CannotJudge, LookupError, OSError):
        return None


def _deterministic(case: Case, evidence: Evidence) -> bool | None:
    """What the suite says about that. verl replays in another order than it generates, so in a replayed case only a repeat tells."""
    return None if schedule.is_replayed(case, evidence) else case.deterministic


def decisive_of(case: Case) -> list[Decisive]:
    """The decisive metrics that the case names; if it names none, its workload's."""
    return [
        Decisive(name, _SIDES[said["better"]], said.get("floor", 0.0), said.get("relative_floor", 0.0), required=True)
        for name, said in case.decisive.items()
    ]


def _why_ended(evidence: Evidence, budget: int | None) -> str:
    is_used_up = schedule.is_used_up(budget, evidence)
    return f"BUDGET={budget} runs were used up before" if is_used_up else "the session ended before"


def _with_limit(verdict: Verdict, case: Case, budget: int | None) -> Verdict:
    """With what keeps the session from the pairs that the verdict asks for: the budget, if it is used up, or the case."""
    if not (verdict.is_open and verdict.pairs_needed):
        return verdict
    note = f"BUDGET={budget} runs are used up"
    if budget is None:
        pairs = f"pairs: {verdict.pairs + verdict.pairs_needed} for {case.continues or case.name}"
        note = f"this case may take no more pairs: set {pairs} in your own copy of the suite, and run make verify again"
    return dataclasses.replace(verdict, notes=(*verdict.notes, note))
