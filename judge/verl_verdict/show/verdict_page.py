"""report.html: a session's verdicts as one page that needs nothing else. It has no program, and its policy forbids every request."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from verl_verdict.decide import memory, speed
from verl_verdict.decide.diagnosis import listed, number
from verl_verdict.decide.verdicts import Finding, Row, Verdict
from verl_verdict.read import comparable
from verl_verdict.read.metrics import Decisive
from verl_verdict.read.records import Run
from verl_verdict.show import curves
from verl_verdict.show.curves import Curve
from verl_verdict.show.markup import Markup, element, joined
from verl_verdict.show.parts import badge, card, details, document, navigation, table

_CONFIG_ROWS = 200
_ROW = "A difference within the margin does not matter; p is how often chance alone makes one so large."
_PAIR = "a run of A and a run of B that have the same seed"
_MEMORY = ("perf/max_memory_allocated_gb", "perf/max_memory_reserved_gb", "perf/cpu_memory_used_gb")


@dataclass(frozen=True)
class Job:
    """A row of a case's jobs; `href` leads to its log, relative to the page."""

    run: str
    side: str
    submission_id: str
    href: str
    steps: int
    seconds: float | None
    failure: str | None = None


@dataclass(frozen=True)
class CaseCard:
    """A card: the verdicts on a case, on its speed and memory if those were judged, with the runs they are about."""

    name: str
    verdicts: Sequence[Verdict]
    runs_a: Sequence[Run] = ()
    runs_b: Sequence[Run] = ()
    decisive: Sequence[Decisive] = ()
    jobs: Sequence[Job] = ()


@dataclass(frozen=True)
class CheckLine:
    """A check from the outside; `word` is ok, skip or FAIL."""

    word: str
    claim: str
    detail: str
    problems: Sequence[str] = ()


@dataclass(frozen=True)
class VerdictPage:
    """All that the page shows. `answer` is the sentence at its top; `code` the unified diff of A and B, `code_note` what it lacks."""

    answer: str
    word: str
    facts: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    cases: Sequence[CaseCard] = ()
    checks: Sequence[CheckLine] = ()
    remarks: Sequence[str] = ()
    code: Sequence[str] = ()
    code_note: str = ""


def html(page: VerdictPage) -> str:
    """The whole file."""
    title = f"{page.word}: {page.answer}" if page.word else page.answer
    return document(title, _top(page), _main(page))


def _top(page: VerdictPage) -> Markup:
    facts = [joined(element("dt", name), element("dd", value)) for name, value in page.facts.items()]
    if page.cases:
        facts.append(joined(element("dt", "a pair"), element("dd", _PAIR)))
    links = [(f"case-{case.name}", case.name) for case in page.cases]
    links += [("checks", "checks"), *([("code", "code")] if page.code or page.code_note else [])]
    return element(
        "header",
        badge(page.word) if page.word else "",
        element("h1", page.answer),
        *(element("p", text, class_="warning") for text in page.warnings),
        element("dl", *facts),
        navigation(links),
    )


def _main(page: VerdictPage) -> Markup:
    return element(
        "main",
        *(_case(case, at) for at, case in enumerate(page.cases)),
        _checks(page),
        _code(page) if page.code or page.code_note else "",
        id="cases",
        tabindex="-1",
    )


def _case(case: CaseCard, at: int) -> Markup:
    first, is_open = next(((each.first, each.is_open) for each in case.verdicts if each.first), (None, False))
    workload = next((verdict.workload for verdict in case.verdicts), "")
    repeats = next((verdict.deterministic for verdict in case.verdicts), None)
    at_first = (first.metric, None if is_open else first.step) if first else None
    sides = curves.Sides(case.runs_a, case.runs_b, repeats)
    drawn = curves.case_curves(workload, sides, case.decisive, at_first)
    times = curves.metric_curve(speed.STEP, case.runs_a, case.runs_b)
    return card(
        f"case-{case.name}",
        case.name,
        *(part for verdict in case.verdicts for part in _verdict(verdict, is_only=len(case.verdicts) == 1)),
        element("h3", "Curves"),
        element("p", said) if (said := curves.summary(drawn)) else "",
        _curves(drawn, f"curve-{at}"),
        element("h3", "Times and memory"),
        _curves([times], f"time-{at}") if times.steps else "",
        _costs(case),
        _config(case),
        _jobs(case),
    )


def _verdict(verdict: Verdict, is_only: bool) -> Iterable[Markup]:
    name = "" if is_only else f"{verdict.case}: "
    yield element("p", name, badge(verdict.word.value), " ", verdict.reason)
    known = [
        *_first_difference(verdict),
        ("how it was decided", verdict.decided),
        *([("by the rule", verdict.rule)] if verdict.rule else []),
        *(("differs", str(each)) for each in verdict.differs),
        *(("note", note) for note in verdict.notes),
    ]
    said: dict[str, list[Markup]] = {}
    for label, text in known:
        said.setdefault(label, []).append(element("dd", text))
    yield element("dl", *(joined(element("dt", label), *texts) for label, texts in said.items()))
    if verdict.rows:
        caption = f"{verdict.case}: means over {verdict.how}"
        head = ("metric", "A", "B", "finding")
        yield details(caption, table(f"{caption}. {_ROW}", head, [_means(row) for row in verdict.rows]))


def _first_difference(verdict: Verdict) -> Iterable[tuple[str, str]]:
    """Labels with what is known of where B first differs."""
    if not verdict.first:
        return
    if verdict.is_open:
        yield "first difference", f"{verdict.first}; it may be noise"
    else:  # in noise there are smaller differences before the step
        in_noise = verdict.rows and not verdict.deterministic
        yield "first clearly apart" if in_noise else "first difference", str(verdict.first)
        yield "which may mean", verdict.first.means
    if verdict.first.others:
        yield "in the same step", listed(verdict.first.others)
    for each in verdict.first.config:
        yield "may explain it", f"verl's config differs in {each}"


def _means(row: Row) -> list[str]:
    finding = "not known" if row.finding is Finding.OPEN else row.finding.value
    how_sure = f"{finding} (margin {row.margin:.2g}, p {row.p:.2g})"
    return [row.summary, f"{row.a:.4g}", f"{row.b:.4g}", how_sure]


def _curves(shown: Sequence[Curve], name: str) -> Markup:
    drawn = [curve for curve in shown if curve.steps]
    if not drawn:
        return element("p", "No run has recorded a decisive metric, so there is no curve.", class_="quiet")
    figures = [_figure(curve, f"{name}-{at}") for at, curve in enumerate(drawn)]
    return element("div", *figures, class_="curves")


def _figure(curve: Curve, name: str) -> Markup:
    names, values = curve.table()
    rows = [[str(step), *("-" if value is None else number(value) for value in row)] for step, row in values]
    caption = f"{curve.metric}: {len(rows)} of {len(curve.steps)} steps"
    return element(
        "figure",
        element("figcaption", curve.metric),
        element("p", curve.story) if curve.story else "",
        curves.svg(curve, name),
        details(f"Values of {curve.metric}", table(caption, ("step", *names), rows)),
    )


def _costs(case: CaseCard) -> Markup:
    """What both sides took: the phases of a step, and memory, as the largest value of any run."""
    rows = [*_phases(case), *_recorded_memory(case), *_memory(case)]
    if not rows:
        return element("p", "The runs recorded neither times nor memory.", class_="quiet")
    caption = "Of all runs, not only of the pairs that decided: medians of a step's phases, and the most memory"
    return table(caption, ("", "A", "B", "B / A"), rows)


def _phases(case: CaseCard) -> list[list[str]]:
    """How long the phases of a step take. Replayed runs generate nothing, so they show none."""
    is_replay = any(comparable.REPLAY in run.facts for run in (*case.runs_a, *case.runs_b))
    if not (case.runs_a and case.runs_b) or is_replay:
        return []
    rows = []
    for phase in speed.phases(case.runs_a, case.runs_b):
        ratio = f"{phase.b / phase.a:.2f}" if phase.a else "-"
        rows.append([phase.name, f"{phase.a:.3g} s", f"{phase.b:.3g} s", ratio])
    return rows


def _recorded_memory(case: CaseCard) -> list[list[str]]:
    """The most memory that verl itself recorded, metric by metric."""
    names = {name for run in (*case.runs_a, *case.runs_b) for name in run.series}
    rows = []
    for name in sorted(name for name in names if name.endswith(_MEMORY)):
        both = curves.metric_curve(name, case.runs_a, case.runs_b)
        most = [max((value for run in side for value in run.values()), default=0.0) for side in (both.a, both.b)]
        if all(most):
            rows.append([name, *(f"{value:.3g} GB" for value in most), f"{most[1] / most[0]:.2f}"])
    return rows


def _memory(case: CaseCard) -> list[list[str]]:
    """The memory of the job's processes: the most of any run, all together and by name, and how it grows."""
    both = (case.runs_a, case.runs_b)
    most = [max((size for run in side if (size := memory.peak(run))), default=0.0) for side in both]
    if not all(most):
        return []
    rows = [_sizes("all processes together", *most)]
    rows += [_sizes(f"process {share.name}", share.a, share.b) for share in memory.shares(*both)]
    unit = memory.unit_of([*case.runs_a, *case.runs_b])
    grown = [[each for run in side if (each := memory.growth_per(run, unit)) is not None] for side in both]
    if all(grown):
        rows.append([f"growth a {unit}", *(f"{median(side) / 1e6:.3g} MB" for side in grown), "-"])
    return rows


def _sizes(name: str, a: float, b: float) -> list[str]:
    return [name, f"{a / 1e9:.3g} GB", f"{b / 1e9:.3g} GB", f"{b / a:.2f}" if a else "-"]


def _config(case: CaseCard) -> Markup:
    if not case.runs_a or not case.runs_b:
        return joined()
    found = comparable.config(case.runs_a[0], case.runs_b[0])
    if not found:
        finding = "is the same" if case.runs_a[0].config and case.runs_b[0].config else "was not recorded by both"
        return joined(element("h3", "verl's config"), element("p", f"The resolved config {finding}."))
    rows = [[each.name, each.a or "-", each.b or "-"] for each in found[:_CONFIG_ROWS]]
    caption = f"{len(rows)} of {len(found)} keys that differ"
    differing = table(caption, ("key", "A", "B"), rows, "config")
    return joined(element("h3", "verl's config"), details(f"{len(found)} keys differ", differing))


def _jobs(case: CaseCard) -> Markup:
    rows: list[list[str]] = []
    for job in case.jobs:
        seconds = "-" if job.seconds is None else f"{job.seconds:.0f}"
        log = element("a", job.submission_id, href=job.href, aria_label=f"log of {job.submission_id}")
        rows.append([job.run, job.side, log, str(job.steps), seconds, job.failure or "succeeded"])
    if not rows:
        return joined()
    head = ("run", "side", "job (its log)", "steps", "seconds", "end")
    return joined(element("h3", "Jobs"), table("The jobs of this case", head, rows, "jobs"))


def _checks(page: VerdictPage) -> Markup:
    rows: list[list[str]] = []
    for check in page.checks:
        problems = [element("p", problem, class_="warning") for problem in check.problems]
        rows.append([badge(check.word), joined(check.claim, *problems), check.detail])
    words = [check.word for check in page.checks]
    skipped = f", {words.count('skip')} not checked" if "skip" in words else ""
    return card(
        "checks",
        f"{words.count('ok')} of {len(words)} checks passed{skipped}",
        *(element("p", remark) for remark in page.remarks),
        details("All checks", table("What was checked from the outside", ("", "check", "checked"), rows, "checks")),
    )


def _code(page: VerdictPage) -> Markup:
    lines = [element("span", f"{line}\n", class_={"+": "added", "-": "removed"}.get(line[:1])) for line in page.code]
    text = element("div", element("pre", *lines), class_="wide", role="region", aria_label="Code diff", tabindex="0")
    return card(
        "code",
        "Code: from A to B",
        element("p", page.code_note) if page.code_note else "",
        details(f"{len(page.code)} lines", text) if page.code else "",
    )
