"""The runs of maintain/calibrate.sh, and maintain/calibration.md: what the judge says of all that is recorded.

calibrate.py cost PAIRS [WORKLOAD]      how many runs there are to make
calibrate.py next PAIRS [WORKLOAD]      the next run that lacks a record, as words that end with NUL; nothing if there is none
calibrate.py record NAME JOB VERL COMMIT IMAGE      record the job directory of a run that has ended
calibrate.py write           maintain/calibration.md
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from scipy.stats import beta

import calibration
import edits
from calibration import FURTHER, MEASURED_RUNS, REPO, SEEN, SESSION, WORKLOADS, Mutation, Result
from verl_verdict.decide.diagnosis import counted, number
from verl_verdict.decide.statistics import LOOKS
from verl_verdict.decide.verdicts import Verdict, Word

PAGE = REPO / "maintain" / "calibration.md"
_PAIRS = (1, *LOOKS)


# --- what to run


def cost(pairs: int, only: str = "") -> str:
    """How many runs, at most: in noise the judge may decide before the last pair."""
    recorded = sum(map(calibration.is_recorded, calibration.planned(pairs, only)))
    return f"at most {len(calibration.lacking(pairs, only))} runs, a minute each ({recorded} are recorded)"


def _seconds() -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for about in _abouts():
        found.setdefault(about["workload"], []).append(about["seconds"])
    return found


def _abouts() -> list[dict[str, Any]]:
    names = sorted(path.name.removesuffix(".json.xz") for path in calibration.RECORDS.glob("*.json.xz"))
    return [calibration.about(name) for name in names]


def words_of_next(pairs: int, only: str = "") -> list[str]:
    """NAME WORKLOAD SEED PERTURBED FURTHER OVERRIDES PATCH... of the next run."""
    run = next(iter(calibration.lacking(pairs, only)), None)
    if run is None:
        return []
    recipe = run.recipe
    further = str(recipe.steps + FURTHER) if recipe.continues else ""
    seed = "" if run.seed is None else str(run.seed)
    perturbed = "1" if run.perturbed else ""
    return [run.name, recipe.workload, seed, perturbed, further, " ".join(run.overrides), *map(str, run.patches)]


def record(name: str, job: str, verl: str, commit: str, image: str) -> None:
    """Record a run that has ended."""
    run = next(run for run in calibration.planned(calibration.MOST_PAIRS) if run.name == name)
    now = datetime.now(timezone.utc).isoformat(timespec="minutes")
    facts = {"workload": run.recipe.workload, "verl": verl, "commit": commit, "image": image, "recorded": now}
    calibration.record(run, Path(job), facts)


# --- the page


def page() -> str:
    """The whole document, from the records and today's judge."""
    found = calibration.results()
    planted = [each for each in found if not each.mutation.harmless]
    harmless = [each for each in found if each.mutation.harmless]
    in_noise = [
        (each, found) for each in calibration.in_noise() if (found := calibration.looks(calibration.noisy_pairs(each)))
    ]
    abouts, known = _abouts(), calibration.known()
    parts = [
        "# How far the judge can be trusted",
        "What [the judge](../docs/verdict.md) says of real rehearsal runs of verl: of planted regressions and harmless changes\n"
        "(`tests/mutations/index.yaml`), and of A against A. `make -C maintain calibrate ARGS=60` makes the records in\n"
        "`tests/recorded/calibration/`; a test judges all of them again, and fails if the judge has become weaker.",
        _source(abouts),
        "## Summary",
        _table(("what", "count", "with 95 % confidence"), (*_summary(planted, harmless), _row_in_noise(in_noise))),
        _sentence_on_noise(),
        "## Planted regressions",
        f"Those named `undo-N-…` are real: they take back what verl's pull request N fixed.\n"
        f"*caught*: the verdict is *regressed* or *changed*. *as expected*: the first step and the first metric that differ are those that\n"
        f"the index of the mutations names; six of its entries were too narrow and were corrected after the runs, with the reason beside them.\n"
        f"One run of B is enough, except for speed and memory, which take {MEASURED_RUNS} of each side, in turn.",
        _table(
            ("mutation", "workload", "steps", "verdict", "rule", "first difference", "as expected"),
            map(_planted, planted),
        ),
        "## Harmless changes",
        _table(("mutation", "workload", "steps", "verdict", "rule", "reason"), map(_harmless, harmless)),
        "## In noise: how many pairs are needed",
        _sentence_on_pairs(),
        _table(
            (
                "mutation",
                "workload",
                *(f"{pairs} {'pair' if pairs == 1 else 'pairs'}" for pairs in _PAIRS),
                "pairs needed",
                "first metric named, or the reason",
            ),
            [_in_noise(*each) for each in in_noise],
        ),
        *_replay(in_noise),
        *_edits(),
        "## Not caught",
        _reasons(known["not_caught"]) or "All recorded regressions are caught.",
        "In noise:\n\n" + (_reasons(known["not_caught_in_noise"]) or "All that are recorded to the end are caught."),
        "With replay:\n\n" + (_reasons(known["not_caught_with_replay"]) or "None is called the same."),
        "## Caught, but not as expected",
        _reasons(
            {
                each.mutation.name: _expected(each.mutation)
                for each in planted
                if each.is_caught and not each.is_named_right
            }
        )
        or "None.",
        "## Not recorded yet",
        _reasons(known["pending"]) or "All mutations are recorded.",
        "In noise:\n\n" + (_reasons(known["pending_in_noise"]) or "All that were chosen are recorded to the end."),
    ]
    return "\n\n".join(parts) + "\n"


def _source(abouts: Sequence[Mapping[str, Any]]) -> str:
    hours = sum(each["seconds"] for each in abouts) / 3600
    verl, image = (sorted({str(each[key]) for each in abouts}) for key in ("verl", "image"))
    last = max((str(each["recorded"]) for each in abouts), default="never")[:10]
    per_run = ", ".join(f"{workload} {statistics.median(took):.0f} s" for workload, took in sorted(_seconds().items()))
    return (
        f"{len(abouts)} runs of {', '.join(verl)} on {len(image)} {'image' if len(image) == 1 else 'images'} of nodes (`{', '.join(each[:19] for each in image)}`), {hours:.1f} hours in all, the last one on {last}.\n"
        f"The median of a run: {per_run}. Runs of pairs from {calibration.REPLAYED} on were made two at a time."
    )


def _summary(planted: Sequence[Result], harmless: Sequence[Result]) -> Iterable[Sequence[str]]:
    caught = [each for each in planted if each.is_caught]
    yield _row_at_least("planted regressions caught", len(caught), len(planted))
    yield _row_at_least(
        "of these, first step and metric as expected", sum(each.is_named_right for each in caught), len(caught)
    )
    yield _row_at_most("alarms over harmless changes", sum(each.is_alarm for each in harmless), len(harmless))
    held_out: tuple[list[Verdict], list[Verdict]] = ([], [])
    for workload in WORKLOADS:
        alone, sessions = calibration.verdicts_on_noise(workload)
        yield from _rows_on_replays(workload)
        held_out[0].extend(alone[SEEN:])
        held_out[1].extend(sessions[SEEN // SESSION :])
        yield from _rows_on_noise("", workload, alone, sessions)
    yield from _rows_on_noise("of these, held out: ", "all workloads", *held_out)


def _rows_on_replays(workload: str) -> Iterable[Sequence[str]]:
    by_seed = {
        seed: [each.word for each in verdicts] for seed, verdicts in calibration.verdicts_on_replays(workload).items()
    }
    pairs, shared = [word for words in by_seed.values() for word in words], "no bound: the pairs of a seed share runs"
    if pairs:
        alarms = sum(word in calibration.ALARMS for word in pairs)
        yield f"alarms over A against A, {workload}, pairs with replay", f"{alarms} of {len(pairs)}", shared
        same = pairs.count(Word.SAME)
        yield f"A against A called the same, {workload}, pairs with replay", f"{same} of {len(pairs)}", shared
        alarmed = {seed: not set(calibration.ALARMS).isdisjoint(words) for seed, words in by_seed.items()}
        yield _row_at_most(
            f"seeds with an alarm in any of their pairs with replay, {workload}", sum(alarmed.values()), len(alarmed)
        )
        held_out = [is_alarm for seed, is_alarm in alarmed.items() if seed > calibration.SEEN_REPLAYED[workload]]
        yield _row_at_most(f"of these seeds, those held out, {workload}", sum(held_out), len(held_out))


def _rows_on_noise(
    which: str, workload: str, alone: Sequence[Verdict], sessions: Sequence[Verdict]
) -> Iterable[Sequence[str]]:
    for what, verdicts in (("pairs", alone), (f"sessions of {SESSION} pairs", sessions)):
        alarms = sum(each.word in calibration.ALARMS for each in verdicts)
        yield _row_at_most(f"{which}alarms over A against A, {workload}, {what}", alarms, len(verdicts))
    same = sum(each.word is Word.SAME for each in sessions)
    what = f"{which}A against A called the same, {workload}, sessions of {SESSION} pairs"
    yield _row_at_least(what, same, len(sessions))


def _row_in_noise(found: Sequence[tuple[Mutation, Mapping[int, Verdict]]]) -> Sequence[str]:
    words = [list(seen.values())[-1].word for each, seen in found if not each.harmless and calibration.is_judged(seen)]
    caught = sum(word in calibration.CAUGHT for word in words)
    return (
        f"planted regressions caught in noise, at most {LOOKS[-1]} pairs",
        f"{caught} of {len(words)}",
        "no bound: few, and chosen",
    )


def _row_at_least(what: str, count: int, of: int) -> Sequence[str]:
    return what, f"{count} of {of}", f"at least {lower(count, of):.0%}" if of else "-"


def _row_at_most(what: str, count: int, of: int) -> Sequence[str]:
    return what, f"{count} of {of}", f"at most {upper(count, of):.0%}" if of else "-"


def upper(count: int, of: int) -> float:
    """The largest rate that `count` of `of` leaves possible: Clopper and Pearson, one-sided, 95 %."""
    return 1.0 if count == of else float(beta.ppf(0.95, count + 1, of - count))


def lower(count: int, of: int) -> float:
    """The smallest rate that `count` of `of` leaves possible."""
    return 1 - upper(of - count, of)


def _sentence_on_noise() -> str:
    return (
        "A against A: two runs of the same code with one seed, made noisy by `tests/recorded/calibration/noise.patch`. A session of\n"
        f"{SESSION} pairs is the smallest one that can show a difference; a pair alone is an alarm only if it is wrong on its face. The bounds are\n"
        f"of Clopper and Pearson, one-sided. *Held out* are the pairs from {SEEN + 1} on: they were run after the last rule\n"
        "that judges them was made. Only the rules for replay, without which these pairs are judged, are newer, and that `actor/pg_clipfrac` decides:\n"
        f"records of noise have it from pair {calibration.REPLAYED} on."
    )


def _planted(result: Result) -> Sequence[str]:
    first = result.verdict.first
    shown = (
        f"step {first.step}, `{first.metric}`: {number(first.a)}, {number(first.b)}" if first else result.verdict.reason
    )
    return (
        *_named(result.mutation),
        f"{result.verdict.word.value}{'' if result.is_caught else ' (**not caught**)'}",
        f"`{result.verdict.rule}`",
        shown,
        "yes" if result.is_named_right else "no",
    )


def _sentence_on_pairs() -> str:
    return (
        "Some mutations, judged as on GPUs, where A does not repeat itself. The judge decides after the first pair, "
        f"{', '.join(map(str, LOOKS[:-1]))} and {LOOKS[-1]}\npairs only, and the first decision is final.\n\n"
        "`sft-validation-last-batch` alone is in the noise of `rounding.patch`: each gradient changes by up to 1/256 of its size, and the rows stay in\n"
        "one order. verl's SFT takes no seed for that order, on GPUs either ([the verdict](../docs/verdict.md#seeds)), so these pairs repeat one training\n"
        "with one order of the data: they say nothing about other orders. A's validation loss varies by 0.008 there, and the fault adds 0.17. In the\n"
        "noise of the others, which puts all rows of SFT in another order in each run, it was inconclusive after 8 pairs: the fault added 0.09, and A varied\n"
        "as much."
    )


def _in_noise(mutation: Mutation, found: Mapping[int, Verdict]) -> Sequence[str]:
    pairs, last = list(found.items())[-1]
    first = (
        f"step {last.first.step}, `{last.first.metric}`: {number(last.first.a)}, {number(last.first.b)}"
        if last.first
        else last.reason
    )
    words = [f"{found[each].word.value} (`{found[each].rule}`)" if each in found else "" for each in _PAIRS]
    decided = calibration.is_decided(found)
    passed = decided and not mutation.harmless and last.word not in calibration.CAUGHT
    needed = f"{last.word.value} at {pairs}" if passed else str(pairs) if decided else f"more than {pairs}"
    return (f"`{mutation.name}`", mutation.recipe.workload, *words, needed, first if decided else last.reason)


def _replay(in_noise: Sequence[tuple[Mutation, Mapping[int, Verdict]]]) -> Iterable[str]:
    """The section on replay."""
    rows: list[Sequence[str]] = []
    hidden = calibration.known()["hidden_by_replay"]
    for mutation, without in in_noise:
        name, workload, *_, needed, _ = _in_noise(mutation, without)
        if found := calibration.looks(calibration.replayed_pairs(mutation)):
            rows.append((name, workload, needed, *_in_noise(mutation, found)[-2:]))
        elif mutation.name in hidden:
            rows.append((name, workload, needed, "not seen", hidden[mutation.name]))
    yield "## With replay"
    yield (
        "A's repeat and B train on the rollouts of A's first run (`REPLAY=1`), in the same noise. What differs only in what is sampled or\n"
        f"rewarded is not seen. For A against A, up to {calibration.REPLAYS} runs of A train on each recording: each measures the noise with which the next one is judged,\n"
        "so the pairs of a seed share runs. Earlier rules called one of PPO's first two pairs changed, and then one of the next; today's was made with the\n"
        "seeds of the pairs up to 69. The others are held out: they were judged when it was done. The noise is harder than that of a real replay: the\n"
        "patch shuffles each run's batches, and verl hands a recording on in one order."
    )
    yield _table(
        ("mutation", "workload", "pairs needed in noise", "with replay", "first metric named, or the reason"), rows
    )


def _edits() -> Iterable[str]:
    """The section on edited records."""
    yield "## Edited records: how large a difference is seen"
    yield (
        "B is a run of A of which only the named values were edited, so all else is real noise: PPO from pair "
        f"{calibration.REPLAYED} on, whose records\nhave all metrics, and SFT. {edits.SESSIONS} sessions of each row and number of pairs, which share runs; the second verdict is shown where\n"
        "it is another one. *With replay*: one pair."
    )
    titles = ("what differs in B", "workload", *(counted(pairs, "pair") for pairs in edits.PAIRS), "with replay")
    yield _table(titles, map(_edit, edits.results()))
    yield (
        "How often all metrics that do not decide, in their one test, differ in sessions of equal code, and how large a difference they show, is\n"
        "simulated in `judge/tests/decide/test_joint.py`: at most 4 % of the sessions by its declared error, over all looks."
    )


def _edit(found: edits.Found) -> Sequence[str]:
    by_pairs = (found.noise.get(pairs, ()) for pairs in edits.PAIRS)
    return (found.edit.title, found.edit.workload, *map(_words, by_pairs), _words(found.replay))


def _words(found: Sequence[Verdict]) -> str:
    """The words and their rules, each once: `changed (law-broken)`."""
    return ", ".join(dict.fromkeys(f"{each.word.value} (`{each.rule}`)" for each in found)) or "-"


def _harmless(result: Result) -> Sequence[str]:
    return (
        *_named(result.mutation),
        f"{result.verdict.word.value}{' (**alarm**)' if result.is_alarm else ''}",
        f"`{result.verdict.rule}`",
        result.verdict.reason,
    )


def _named(mutation: Mutation) -> Sequence[str]:
    recipe = mutation.recipe
    steps = f"{recipe.steps} + {FURTHER}" if recipe.continues else str(recipe.steps)
    return f"`{mutation.name}`", recipe.workload, steps


def _expected(mutation: Mutation) -> str:
    signal = mutation.signal
    if "metrics" not in signal:
        return f"expected: {', '.join(signal)}"
    return f"expected: step {signal['step']}, {' or '.join(f'`{name}`' for name in signal['metrics'])}"


def _reasons(found: Mapping[str, str]) -> str:
    return "\n".join(f"- `{name}`: {why}" for name, why in found.items())


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} |" for cells in lines)


def main(action: str, *words: str) -> int:
    """One of cost, next, record, write; returns the exit status."""
    if action == "cost":
        print(cost(int(words[0]), *words[1:]))
    elif action == "next":
        print("".join(f"{word}\0" for word in words_of_next(int(words[0]), *words[1:])), end="")
    elif action == "record":
        record(*words)
    else:
        PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
