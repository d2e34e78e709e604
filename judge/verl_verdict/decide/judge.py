"""From runs to a verdict: the front door of the judge. The rules of table.py decide, by the facts that the other modules compute.

It fails closed: whatever cannot be judged is never the same.
"""

import dataclasses
from collections.abc import Collection, Sequence

from verl_verdict.decide import grid, notes, pairing, preconditions, restless, rules, table, verdicts
from verl_verdict.decide.case import CaseRuns
from verl_verdict.decide.diagnosis import listed
from verl_verdict.decide.invariants import FirstUpdates, Member
from verl_verdict.decide.memory import MemoryCost
from verl_verdict.decide.pairing import Pair
from verl_verdict.decide.relative import OtherDevices
from verl_verdict.decide.resumed import Resumed, Resumption
from verl_verdict.decide.rollout import Rollout, at_first_step
from verl_verdict.decide.rules import Regime
from verl_verdict.decide.speed import Speed
from verl_verdict.decide.unrun import Unrun
from verl_verdict.decide.verdicts import Verdict
from verl_verdict.read.metrics import Decisive
from verl_verdict.read.records import Run

_OF_OUTLIERS = ("far-outside", "outside", "outside-in-some")


def case(  # noqa: PLR0913  # the judge's own API: options by keyword, each with a default
    runs_a: Sequence[Run],
    runs_b: Sequence[Run],
    *,
    name: str = "",
    decisive: Sequence[Decisive] = (),
    ignore: Sequence[str] = (),
    accept: Collection[str] = (),
    deterministic: bool | None = None,
    perturbed: Sequence[Run] = (),
    relative_limit: float | None = None,
    common_steps: bool = False,
) -> Verdict:
    """The verdict on one case.

    `decisive` replaces the workload's decisive metrics; `ignore` names metrics that are not compared; `accept` names facts that may
    differ. `deterministic` says whether A repeats itself, if the caller knows; else two runs of A with one seed tell.
    `perturbed` are runs of A whose last bit was changed: what they do is noise. `relative_limit` is the largest mean relative error of
    reward and losses: then these alone decide. `common_steps`: runs of other lengths are judged by the steps that all have. Raises
    CannotJudge.
    """
    workload = preconditions.one_workload(runs_a, runs_b, perturbed)
    preconditions.no_copies([*runs_a, *runs_b, *perturbed])
    opening = verdicts.undecided(name or workload, workload, notes=notes.on_ignored([*runs_a, *runs_b], ignore))
    sides = [[run.without(ignore) for run in runs] for runs in (runs_a, runs_b, perturbed)]
    if early := _early(opening, sides[0], sides[1], accept):
        return early
    *sides, of_grid = grid.on_one_grid(*sides, common=common_steps)
    moving = restless.find(sides[0])
    said = [*of_grid, *([restless.note(moving)] if moving else [])]
    a, b, perturbed = ([run.without(moving) for run in runs] for runs in sides)
    facts = CaseRuns(
        opening=dataclasses.replace(opening, notes=(*opening.notes, *said)),
        runs_a=pairing.compared(a),
        runs_b=b,
        given=perturbed,
        chosen=[each for each in decisive if each.pattern not in ignore],
        ignore=ignore,
        asked=decisive,
        accept=accept,
        said_to_repeat=deterministic,
        restless=moving,
        whole_a=sides[0],
        whole_b=sides[1],
    )
    if relative_limit is not None and facts.compared:
        return devices(facts.base, facts.pairs, relative_limit, ignore)
    return rules.first_of(table.EVIDENT, facts) or _with_what_else(facts, rules.decided(table.CASE, facts))


def _with_what_else(facts: CaseRuns, verdict: Verdict) -> Verdict:
    """The verdict with what else differs, and where an outlier is if nothing else says where."""
    found = []
    outliers = facts.outliers
    if verdict.is_better:
        outliers = [each for each in outliers if each.side <= 0]
    if outliers and verdict.rule not in _OF_OUTLIERS:
        found.append(str(outliers[0]))
        verdict = dataclasses.replace(verdict, first=verdict.first or facts.at_outlier(outliers))
    if facts.breaches and verdict.rule != "law-broken" and facts.regime is not Regime.EXACT:
        found.append(str(facts.breaches[0]))
    return dataclasses.replace(verdict, notes=(*found, *verdict.notes))


def _early(base: Verdict, runs_a: Sequence[Run], runs_b: Sequence[Run], accept: Collection[str] = ()) -> Verdict | None:
    """The verdict that needs no value to be compared, if there is one."""
    return rules.first_of(table.RECORDS, preconditions.Records(base, runs_a, runs_b, accept))


def devices(base: Verdict, pairs: Sequence[Pair], limit: float, ignore: Collection[str] = ()) -> Verdict:
    """The verdict on runs on other devices: `limit` is the largest mean relative error, `ignore` what was left out."""
    return rules.decided(table.DEVICES, OtherDevices(base, pairs, limit, ignore))


def speed(runs_a: Sequence[Run], runs_b: Sequence[Run], *, name: str = "speed", profile: str | None = None) -> Verdict:
    """The verdict on the speed of B."""
    return rules.decided(table.COST, Speed(name, runs_a, runs_b, profile))


def memory(
    runs_a: Sequence[Run], runs_b: Sequence[Run], *, name: str = "memory", profile: str | None = None
) -> Verdict:
    """The verdict on the memory of B."""
    return rules.decided(table.COST, MemoryCost(name, runs_a, runs_b, profile))


def invariants(members: Sequence[Member], *, name: str, ignore: Sequence[str] = ()) -> Verdict:
    """The verdict on a group of at least two members."""
    runs_a, runs_b = [each.a for each in members], [each.b for each in members]
    workload = preconditions.one_workload(runs_a, runs_b, ())
    preconditions.no_copies([*runs_a, *runs_b])
    said = [f"not compared, as asked: {listed(list(ignore))}"] if ignore else []
    base = verdicts.undecided(name, workload, notes=said)
    early = (_early(base, [each.a], [each.b]) for each in members)
    if found := next(filter(None, early), None):
        return found
    return rules.decided(table.INVARIANTS, FirstUpdates(base, [each.at_first_update(ignore) for each in members]))


def resumed(
    found: Verdict, a: Sequence[Resumed], b: Sequence[Resumed], source: Verdict, ignore: Sequence[str] = ()
) -> Verdict:
    """The verdict on a case of resumed runs.

    `found` is that on A's against B's, and stays if no rule applies; `source` is that on the runs which they continue.
    """
    if not found.pairs:
        return found
    facts = Resumption(
        found,
        source,
        [each.without(ignore) for each in a],
        [each.without(ignore) for each in b],
        is_bit_equal=found.is_bit_equal or source.is_bit_equal,
        is_new=found.is_worse and not source.is_worse,
    )
    return rules.first_of(table.RESUMED, facts) or facts.base


def rollout(runs_a: Sequence[Run], b: Run, *, name: str, is_noisy: bool = False) -> Verdict:
    """The verdict on the first step of B's own run, compared with A's first run."""
    base = dataclasses.replace(verdicts.undecided(name, b.workload), pairs=1)
    first, other = [at_first_step(run) for run in runs_a], at_first_step(b)
    early = _early(base, first, [other])
    return early or rules.decided(table.ROLLOUT, Rollout(base, first, other, is_noisy))


def unrun(known: Unrun) -> Verdict:
    """The verdict on a case of which there is nothing to compare."""
    return rules.decided(table.UNRUN, known)
