"""What a comparison value by value shows, where A repeats itself or its repeats measure the noise: the evidence of these rules."""

from collections.abc import Sequence

from verl_verdict.decide import diagnosis, exact, sampled
from verl_verdict.decide.case import CaseRuns
from verl_verdict.decide.diagnosis import counted
from verl_verdict.decide.exact import Outcome
from verl_verdict.decide.rules import Evidence
from verl_verdict.decide.statistics import LOOKS
from verl_verdict.read.records import TOKENS, Run


def how(case: CaseRuns) -> str:
    """What was compared."""
    number = case.compared[0][1]
    pairs = counted(len(case.compared), "pair")
    return f"{number.metrics} metrics over {number.steps} steps of {pairs}, value by value"


def _is_identical(case: CaseRuns) -> bool:
    return case.outcomes == {Outcome.IDENTICAL}


def _has_grown(case: CaseRuns) -> bool:
    """Are the differences larger than rounding, and do A's perturbed runs show that rounding grows so far?"""
    return case.largest > exact.ROUNDING and bool(case.perturbed)


def _is_noise(case: CaseRuns) -> bool:
    """Are the differences larger than rounding, and no more than A's repeats with replay do?"""
    return case.largest > exact.ROUNDING and case.is_replayed


def _sees_from(case: CaseRuns) -> int | None:
    """The step from which on A's noise hides too much; None if it never does."""
    return exact.blind_from(case.noise[0])


def _is_blind(case: CaseRuns) -> bool:
    """Does the noise of A's repeats hide too much in most steps?"""
    since, steps = _sees_from(case), case.runs_a[0].steps
    return _is_noise(case) and since is not None and 2 * steps.index(since) < len(steps)


def agrees(case: CaseRuns) -> bool:
    """Is B equal to A but for rounding and noise?"""
    if _is_identical(case):
        return True
    if not case.is_exact or case.outcomes & {Outcome.DIFFERS, Outcome.GROWS}:
        return False
    return not (_has_grown(case) and case.has_other_tokens) and not _is_blind(case)


def _equal(case: CaseRuns) -> str:
    return "bit-equal" if _is_identical(case) else "equal but for rounding"


def recorded_by_one_side(case: CaseRuns) -> Evidence | None:
    """What both record agrees, or differs by what may be rounding, and one side records a metric that the other one does not."""
    if not case.unexplained:
        return None
    if agrees(case):
        what = f"the metrics that both record are {_equal(case)}, but"
        return Evidence({"what": what, "metrics": case.unexplained}, how=how(case))
    if not case.is_exact or Outcome.GROWS not in case.outcomes:
        return None
    return Evidence(
        {"what": "B differs from A, and", "metrics": case.unexplained}, how=how(case), first=case.first_value
    )


def other_hashes(case: CaseRuns) -> Evidence | None:
    """All metrics agree, and tokens or weights do not. Weights may differ by rounding; a token cannot, unless it has grown."""
    if not agrees(case):
        return None
    must_be_equal: Sequence[str] = [TOKENS] if case.has_other_tokens else []
    if _is_identical(case):
        must_be_equal = [each for pair, _ in case.compared for each in case.other_hashes(pair)]
    if not must_be_equal:
        return None
    return Evidence({"equal": _equal(case), "what": " and the ".join(dict.fromkeys(must_be_equal))}, how=how(case))


def shows_nothing(case: CaseRuns) -> Evidence | None:
    """All values agree, but nothing that trains is among them."""
    if not agrees(case):
        return None
    a = case.compared[0][0].a[0]
    names = {name for pair, _ in case.compared for name in exact.compared(a, pair.b[0])}
    why = None
    if not names:
        why = "A and B have no metric in common that is compared, which shows nothing"
    elif not any(len(set(a.series[name].values())) > 1 for name in names):
        why = "every metric is constant over all steps, which shows nothing: train more steps"
    elif diagnosis.no_gradient(a):
        why = "the gradient of A is 0 at every step, so nothing trains and nothing is shown: change the case"
    return Evidence({"why": why}, how=how(case)) if why else None


def identical(case: CaseRuns) -> Evidence | None:
    """All values are bit-equal."""
    return Evidence(how=how(case)) if _is_identical(case) else None


def same(case: CaseRuns) -> Evidence | None:
    """B differs by rounding only."""
    if not agrees(case) or _is_noise(case) or _has_grown(case):
        return None
    return Evidence({"size": f"{case.largest:.1g}"}, how=how(case))


def same_as_perturbed(case: CaseRuns) -> Evidence | None:
    """B differs by what rounding grows to, as A's perturbed runs show."""
    if not agrees(case) or not _has_grown(case):
        return None
    since, notes = _sees_from(case), []
    if since is not None:
        hides = f"perturbed last bits change some of A's metrics by more than {exact.BLIND:.0%} of their size"
        notes = [f"from step {since} on, {hides}: a change that begins there is not seen"]
    return Evidence({"size": f"{case.largest:.1g}"}, how=how(case), notes=notes)


def same_on_replay(case: CaseRuns) -> Evidence | None:
    """On A's rollouts B differs by no more than A's repeats do, and in most steps that is so little that a change would show."""
    if not agrees(case) or not _is_noise(case):
        return None
    since, notes = _sees_from(case), []
    if since is not None:
        share, metric = exact.hidden(case.noise[0], *_runs(case))
        hides = f"A's own replays differ by more than {exact.BLIND:.0%} of some metrics"
        notes = [
            f"from step {since} on, {hides}: a change that begins there is not seen, of up to {share:.0%} of {metric}"
        ]
    return Evidence({"size": f"{case.largest:.1g}"}, how=how(case), notes=notes)


def _runs(case: CaseRuns) -> tuple[Run, Run]:
    pair, _ = case.worst_pair
    return pair.a[0], pair.b[0]


def worse(case: CaseRuns) -> Evidence | None:
    """B differs, and a metric that hardly depends on the path of training is worse: one pair shows it."""
    for pair, found in case.compared:
        if found.outcome is Outcome.DIFFERS:
            said = sampled.worse_alone(pair.a[0], pair.b[0], case.workload, case.deciding)
            if said:
                return Evidence({"worse": said}, how=how(case), first=case.first_value)
    return None


def differs(case: CaseRuns) -> Evidence | None:
    """A repeats itself and B differs; no statistics show a better or a worse side."""
    first = case.first_value
    if first is None or Outcome.DIFFERS not in case.outcomes:
        return None
    says = "runs of A with one seed are equal, and B differs"
    if case.is_replayed:
        says = "on A's rollouts B differs from A by more than A's repeat does"
    values = diagnosis.a_and_b(first.a, first.b)
    differing = [each for _, each in case.compared if each.outcome is Outcome.DIFFERS]
    is_rounding_first = all((at := each.first) and each.differences[0].step < at.step for each in differing)
    lacks_perturbed = not (case.perturbed or case.unused)
    return Evidence(
        {"says": says, "step": first.step, "metric": first.metric, "values": values},
        how=how(case),
        first=first,
        needs_perturbed=is_rounding_first and lacks_perturbed,
    )


def grows(case: CaseRuns) -> Evidence | None:
    """The difference may come from rounding alone. A run of A with perturbed last bits can show that; otherwise run more seeds."""
    if len(case.pairs) >= LOOKS[0] or not case.outcomes or agrees(case):
        return None
    what = str(case.first_value) if Outcome.GROWS in case.outcomes else "the sampled tokens"
    lacks_perturbed = not (case.perturbed or case.unused)
    ask = ": run A with a perturbed last bit to measure the noise, or run more seeds"
    if not lacks_perturbed:
        ask = "".join(f", and {why}" for why in case.unused) + ": run more seeds"
    return Evidence(
        {"than": "what A with perturbed last bits does" if case.perturbed else "it", "what": what, "ask": ask},
        how=how(case),
        first=case.first_value,
        pairs_needed=LOOKS[0] - len(case.pairs),
        needs_perturbed=lacks_perturbed,
    )


def hidden_by_replay(case: CaseRuns) -> Evidence | None:
    """Too few pairs, and on A's rollouts B is as far from A as A's repeats may be: how large a change that hides."""
    if case.number_of_pairs >= LOOKS[0] or agrees(case):
        return None
    a, b = _runs(case)
    share, metric = exact.hidden(case.noise[1], a, b)
    needed = LOOKS[0] - case.number_of_pairs
    said = {"size": f"{case.largest:.1g}", "share": f"{share:.0%}", "metric": metric, "ask": more_pairs(needed)}
    return Evidence(said, how="too few pairs", first=case.first_value, pairs_needed=needed)


def more_pairs(needed: int) -> str:
    """What is asked for."""
    return f"run {needed} more {'pair with another seed' if needed == 1 else 'pairs with other seeds'}"
