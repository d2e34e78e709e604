"""report.html, from recorded job directories: what it shows, that it asks for nothing, and that text stays text."""

import dataclasses
import math
import re
from html.parser import HTMLParser

import page_sessions
import pytest
from judge.tests.decide import test_memory
from verdict_runs import edit, generator, noisy, session

from verl_regress.base.layout import SharedRoot
from verl_regress.session import report
from verl_verdict.decide import exact, judge
from verl_verdict.read import comparable, metrics
from verl_verdict.read.records import Memory
from verl_verdict.show import curves, verdict_page
from verl_verdict.show.markup import element, joined

pytestmark = pytest.mark.slow


class Parsed(HTMLParser):
    """The elements of a page with their attributes, and whether they are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, name, attributes):
        self.found.append((name, dict(attributes)))
        if name not in ("meta", "br"):
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.found.append((name, dict(attributes)))

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, text):
        self.texts.append(text)

    def all(self, name):
        return [attributes for each, attributes in self.found if each == name]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    outcome = page_sessions.outcome(SharedRoot(tmp_path_factory.mktemp("shared")))
    report.write(outcome)
    return outcome


@pytest.fixture(scope="module")
def text(outcome):
    return (outcome.session.path / "report.html").read_text()


@pytest.fixture(scope="module")
def parsed(text):
    return Parsed(text)


def test_every_element_is_closed_and_no_id_is_used_twice(parsed):
    assert parsed.open == []
    ids = [attributes["id"] for _, attributes in parsed.found if "id" in attributes and "-" in attributes["id"]]
    assert len(ids) == len(set(ids)) > 10


def test_the_answer_is_first(outcome):
    text = report.as_html(dataclasses.replace(outcome, checks=outcome.checks[:1]))
    evidence = "step 1, critic/advantages/max: A 2.065, B 0.4766; one pair with the same seed, value by value"
    answer = f"B breaks what A does (ppo: {evidence}; 3 cases judged)"
    assert (f"<title>regressed: {answer}</title>" in text, f"<h1>{answer}</h1>" in text) == (True, True)
    assert text.index('class="badge regressed"') < text.index("<h1>")


def test_a_failed_check_leaves_no_answer_as_in_the_other_reports(text, outcome):
    answer = "no answer: leaks failed, so the runs were not what was asked for; 1 of 3 checks passed, 1 not checked"
    assert outcome.headline == answer
    assert (f"<title>{answer}</title>" in text, f"<h1>{answer}</h1>" in text) == (True, True)
    top = text[: text.index("<nav")]
    assert 'class="badge' not in top
    assert "1 check failed, so this may not be about the code that was asked for: No secret is left" in top


def test_each_case_has_a_card_with_its_verdicts_and_jobs(parsed, outcome):
    cards = [each["id"] for each in parsed.all("section")]
    assert cards == ["case-ppo", "case-grpo", "case-sft", "checks", "code"]
    badges = [each["class"] for each in parsed.all("span") if str(each.get("class")).startswith("badge")]
    assert badges[:4] == [f"badge {word}" for word in ("regressed", "inconclusive", "inconclusive", "identical")]  # fmt: skip
    links = [each["href"] for each in parsed.all("a") if not each["href"].startswith("#")]
    assert links[:2] == [
        "../../jobs/ppo-a-20261122T100000Z/logs/driver.log",
        "../../jobs/ppo-b-20261122T100000Z/logs/driver.log",
    ]
    assert len(links) == 10
    assert all((outcome.session.path / link).parent.is_dir() for link in links)


def test_all_decisive_metrics_are_drawn_with_the_band_and_the_first_difference(text, parsed):
    groups = [each["id"] for each in parsed.all("g") if "id" in each]
    captions = re.findall("<figcaption>(.*?)</figcaption>", text)
    expected = 0
    for at, (case, word) in enumerate((("ppo", "regressed"), ("grpo", "inconclusive"), ("sft", "identical"))):
        names = {name for name in captions if name != "timing_s/step"}
        wanted = [name for name, _ in metrics.decisive_of(case, names)]
        card = text[text.index(f'id="case-{case}"') :].split("</section>")[0]
        drawn = re.findall("<figcaption>(.*?)</figcaption>", card)
        assert set(drawn) - {"timing_s/step"} <= set(wanted)
        assert len([name for name in drawn if name != "timing_s/step"]) >= 3
        number = len(drawn) - ("timing_s/step" in drawn)
        for part in ("a", "b"):
            assert [f"curve-{at}-{each}-{part}" for each in range(number)] == [name for name in groups if re.fullmatch(rf"curve-{at}-\d+-{part}", name)]  # fmt: skip
        differing = [name for name in drawn if name.startswith(("critic/advantages/m", "val-core"))]
        marks = [name for name in groups if re.fullmatch(rf"curve-{at}-\d+-mark", name)]
        assert len(marks) == (len(differing) - 1 if word == "regressed" else 0)
        bands = [name for name in groups if re.fullmatch(rf"curve-{at}-\d+-band", name)]
        assert len(bands) == (number if case == "grpo" else 0)
        expected += len(drawn)
    assert len(parsed.all("svg")) == expected == len(captions)
    assert text.count(">first difference: step 1<") == len([name for name in groups if name.endswith("-mark")])


def test_a_case_may_have_its_own_decisive_curves():
    rng = generator(7)
    a, b = noisy(rng, "a", "1"), noisy(rng, "b", "1")
    chosen = [metrics.Decisive("critic/values/mean", 0)]
    found = curves.case_curves("ppo", curves.Sides([a], [b]), chosen, ("timing_s/step", 3))
    assert [curve.metric for curve in found] == ["timing_s/step", "critic/values/mean"]


class TestStory:
    """What happened, since which step, in how many runs: above the drawing, and in what a screen reader says."""

    SCORE = (metrics.Decisive("critic/score/mean", 1),)

    def of_noise(self, change, pairs=8, of_b=None):
        a, b = session(generator(5), pairs, steps=30)
        collapsed = [
            edit(run, "critic/score/mean", change) if at in (of_b or range(pairs)) else run for at, run in enumerate(b)
        ]
        found = curves.case_curves("ppo", curves.Sides(a, collapsed), self.SCORE)
        return found[0], curves.summary(found)

    def test_runs_that_leave_the_band_are_counted_from_the_first_step_outside(self):
        curve, said = self.of_noise({12: 0.01, 13: 0.02}, of_b=[1, 2, 6])
        assert (curve.mark, curve.band.metric) == (12, "critic/score/mean")
        pattern = r"3 of 8 runs of B leave A's band at 2 of 30 steps, first at step 12: the value is 0\.01, the band goes from 0\.\d+ to 0\.\d+\."
        assert re.fullmatch(pattern, curve.story)
        assert curve.sentence.endswith(curve.story)
        assert said == (
            "A's band, in blue, is where runs of A's code stay at each step. "
            f"B leaves it in 1 of 1 metric, first in critic/score/mean: {curve.story}"
        )
        drawn = curves.svg(curve, "x")
        assert ('id="x-band"' in drawn, ">first outside: step 12<" in drawn) == (True, True)

    def test_runs_in_the_band_that_are_apart_together_are_marked_where_the_verdict_says(self):
        a, b = session(generator(11), 8, {"critic/score/mean": -0.03}, steps=30)
        named = [metrics.Decisive("actor/entropy", 0), *self.SCORE]
        found = curves.case_curves("ppo", curves.Sides(a, b, False), named, ("critic/score/mean", 4))
        story = "All 8 runs of B stay in A's band at every step, but taken together they are clearly apart, first at step 4."
        assert [(curve.mark, curve.story) for curve in found[:1]] == [(4, story)]
        assert curves.summary(found).endswith(
            f"B leaves it in none of 2 metrics, but see critic/score/mean: a{story[1:]}"
        )
        assert ">first clearly apart: step 4<" in curves.svg(found[0], "x")
        undecided = curves.case_curves("ppo", curves.Sides(a, b, False), named, ("critic/score/mean", None))
        assert [curve.mark for curve in undecided] == [None, None]

    def test_what_leaves_the_band_first_is_drawn_first(self):
        a, b = session(generator(5), 8, steps=30)
        b = [edit(edit(run, "critic/score/mean", {20: -9.0}), "actor/entropy", {12: 99.0}) for run in b]
        named = ("actor/kl_loss", "critic/score/mean", "actor/entropy")
        found = curves.case_curves("ppo", curves.Sides(a, b), [metrics.Decisive(name, 0) for name in named])
        assert [curve.mark for curve in found][:2] == [12, 20]

    def test_runs_in_the_band_are_said_to_stay_in_it(self):
        curve, said = self.of_noise({})
        assert (curve.mark, curve.story) == (None, "All 8 runs of B stay in A's band at every step.")
        assert said.endswith("B leaves it in none of 1 metric.")
        assert "-mark" not in curves.svg(curve, "x")

    def test_a_value_that_is_not_finite_is_outside_and_does_not_stop_the_drawing(self):
        curve, _ = self.of_noise({5: math.nan}, of_b=[0])
        assert curve.story.startswith(
            "1 of 8 runs of B leaves A's band at 1 of 30 steps, first at step 5: the value is nan,"
        )
        assert 'id="x-band"' in curves.svg(curve, "x")

    def test_too_few_runs_of_a_that_differ_draw_no_band_and_mark_nothing(self):
        a, b = session(generator(5), 2)
        found = curves.case_curves("ppo", curves.Sides(a, b, False), self.SCORE)
        assert (found[0].band, found[0].mark, found[0].story) == (None, None, "")
        assert curves.summary(found) == ""

    def test_a_metric_without_a_band_is_marked_in_noise_only_where_the_verdict_says(self):
        a, b = session(generator(5), 8)
        found = curves.case_curves("ppo", curves.Sides(a, b), self.SCORE, ("actor/grad_norm", 9))
        assert [(curve.metric, curve.mark, curve.story) for curve in found[:1]] == [("actor/grad_norm", 9, "")]
        assert curves.summary(found).endswith("B leaves it in none of 1 metric.")

    def test_where_a_repeats_itself_each_run_is_compared_with_the_one_of_its_seed(self):
        a, _ = session(generator(5), 3)
        same = [dataclasses.replace(run, name=f"b{run.seed}") for run in reversed(a)]
        [equal] = curves.case_curves("ppo", curves.Sides([*a, a[0]], same, True), self.SCORE)
        assert (equal.band, equal.mark, equal.story) == (None, None, "B has A's values at every step.")
        rounded = [
            edit(run, "critic/score/mean", lambda _step, value: value * (1 + exact.ROUNDING / 3)) for run in same
        ]
        assert curves.case_curves("ppo", curves.Sides(a, rounded, True), self.SCORE)[0].mark is None
        other = [edit(same[0], "critic/score/mean", {7: 0.9}), *same[1:]]
        found = curves.case_curves("ppo", curves.Sides(a, other, True), self.SCORE)
        assert found[0].story == "1 of 3 runs of B differs from A, first at step 7."
        assert curves.summary(found) == (
            "B differs from A in 1 of 1 metric, first in critic/score/mean: 1 of 3 runs of B differs from A, first at step 7."
        )
        assert ">first difference: step 7<" in curves.svg(found[0], "x")

    def test_a_band_that_is_much_wider_than_the_courses_does_not_hide_them(self):
        curve, _ = self.of_noise({})
        wide = dataclasses.replace(curve.band, low=(-math.inf,) * 30, high=(1e9,) * 30)
        labels = re.findall(r">(\d+\.\d+)</text>", curves.svg(dataclasses.replace(curve, band=wide), "x"))
        assert labels
        assert max(map(float, labels)) < 2


def test_a_curve_can_be_read_without_seeing_it(text, parsed):
    pictures = parsed.all("svg")
    assert all(each["role"] == "img" and each["viewbox"] and "width" not in each for each in pictures)
    label = next(each["aria-label"] for each in pictures if each["aria-label"].startswith("critic/advantages/max"))
    assert re.fullmatch(
        r"critic/advantages/max, steps 1 to 4\. A begins with [-\d.]+ and ends with [-\d.]+\. B begins with [-\d.]+ and ends with [-\d.]+\. "
        r"They differ most at step \d, by [\d.]+\. The run of B differs from A, first at step 1\.",
        label,
    )
    assert text.count("<summary>Values of ") == len(pictures)
    regions = [each for each in parsed.all("div") if each.get("class") == "wide"]
    assert regions
    assert all(each["role"] == "region" and each["tabindex"] == "0" and each["aria-label"] for each in regions)
    assert parsed.all("html") == [{"lang": "en"}]
    assert all(each.get("scope") in ("row", "col") for each in parsed.all("th"))


def test_the_table_of_a_curve_has_all_values_or_evenly_chosen_ones():
    rng = generator(3)
    a, b = noisy(rng, "a", "1", steps=1000), noisy(rng, "b", "1", steps=1000)
    curve = dataclasses.replace(curves.metric_curve("critic/score/mean", [a], [b]), mark=777)
    names, rows = curve.table()
    steps = [row[0] for row in rows]
    assert (steps[0], steps[-1], len(steps)) == (1, 1000, 200)
    assert 777 in steps
    one, other = (run.series["critic/score/mean"][1] for run in (a, b))
    assert (names, rows[0]) == (("A", "B", "B - A"), (1, (one, other, other - one)))
    short = curves.metric_curve("critic/score/mean", [noisy(rng, "a", "1")], [])
    assert [step for step, _ in short.table()[1]] == list(range(1, 13))
    assert short.table()[1][0][1][1:] == (None, None)
    assert "B has no value." in short.sentence


def test_the_table_of_a_curve_with_a_band_has_its_limits_and_those_of_b():
    a, b = session(generator(5), 3)
    [curve] = curves.case_curves("ppo", curves.Sides(a, b), [metrics.Decisive("critic/score/mean", 1)])
    names, rows = curve.table()
    of_b = [run.series["critic/score/mean"][1] for run in b]
    assert names == ("A from", "A to", "B from", "B to")
    assert rows[0] == (1, (curve.band.low[0], curve.band.high[0], min(of_b), max(of_b)))


def test_values_that_cannot_be_drawn_are_no_part_of_a_curve():
    run = dataclasses.replace(noisy(generator(1), "a", "1"), series={"x": {1: math.nan, 2: 1e301, 3: 0.5}})
    assert curves.metric_curve("x", [run], []).a == ({3: 0.5},)


def test_it_asks_for_nothing_and_runs_nothing(text, parsed):
    rest = re.sub(r'\sxmlns(:xlink)?="[^"]*"', "", text)
    assert re.findall("https?://", rest) == []
    assert set(re.findall(r"url\((.)", rest)) == {"#"}
    assert {name for name, _ in parsed.found} & {"script", "link", "img", "iframe", "object", "form"} == set()
    assert not any(name.startswith("on") for _, attributes in parsed.found for name in attributes)
    policies = [each["content"] for each in parsed.all("meta") if each.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_text_of_users_stays_text(text, parsed):
    assert page_sessions.EVIL not in text
    assert (
        "".join(parsed.texts).count(page_sessions.EVIL) >= 6
    )  # a metric, its table, a check, its problem, the warning, the code
    assert element("p", "<b>", joined("&", element("i", '"')), title='"<') == '<p title="&quot;&lt;">&lt;b&gt;&amp;<i>&quot;</i></p>'  # fmt: skip


def test_light_and_dark_have_a_value_for_every_colour(text):
    light, dark = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    names = [set(re.findall(r"--([a-z]+):", each)) for each in (light, dark)]
    assert names[0] == names[1] == set(re.findall(r"var\(--([a-z]+)\)", text))
    assert "@media (prefers-color-scheme: dark)" in text
    assert not re.findall(r"#00[0-9a-f]{2}fe", text), "a colour of the drawing that is no variable"


@pytest.mark.parametrize("theme", [0, 1])
def test_text_has_enough_contrast_in_both(text, theme):
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", re.findall(r":root \{(.*?)\}", text, re.DOTALL)[theme]))

    def luminance(name):
        parts = [int(colours[name][at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one, other):
        high, low = sorted((luminance(one), luminance(other)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    on_card = ("ink", "quiet", "a", "b", "mark", "good", "bad")
    pairs = [(name, "card") for name in on_card] + [(name, "paper") for name in ("ink", "quiet", "a")]
    pairs += [(name, "badge") for name in ("good", "bad", "odd", "unsure")]
    assert {pair: contrast(*pair) for pair in pairs if contrast(*pair) < 4.5} == {}


def test_a_metric_that_the_case_ignores_is_not_drawn(tmp_path, text):
    ignoring = page_sessions.SUITE.replace("speed: true", "ignore: [critic/score/mean]")
    shown = report.as_html(page_sessions.outcome(SharedRoot(tmp_path), ignoring))
    drawn = [each.split('id="case-grpo"')[0].count("<figcaption>critic/score/mean<") for each in (text, shown)]
    assert drawn == [1, 0]


def test_a_session_of_checks_only_has_a_page_without_cases(outcome):
    only = report.SessionOutcome(outcome.session, outcome.evidence, page_sessions.CHECKS[:1])
    parsed = Parsed(report.as_html(only))
    assert [each["id"] for each in parsed.all("section")] == ["checks", "code"]
    assert "1 of 1 checks passed" in parsed.texts


def test_one_pair_that_shows_a_regression_on_its_face_has_a_first_difference(parsed):
    texts = parsed.texts
    assert texts[texts.index("first difference") + 1] == "step 1, critic/advantages/max: A 2.065, B 0.4766"


def test_a_case_that_needs_more_pairs_says_how_to_run_them(parsed):
    how = "this case may take no more pairs: set pairs: {} in your own copy of the suite, and run make verify again"
    assert [text for text in parsed.texts if "more pairs: set" in text] == [
        how.format("3 for ppo"),
        how.format("6 for grpo"),
    ]


def test_in_noise_it_says_how_many_pairs_decided_and_where_b_is_first_clearly_apart():
    a, b = session(generator(11), 8, {"critic/score/mean": -0.03}, steps=30)
    found = judge.case(a, b)
    texts = Parsed(
        verdict_page.html(verdict_page.VerdictPage("", "", cases=[verdict_page.CaseCard("ppo", [found], a, b)]))
    ).texts
    assert (found.pairs, "ppo: means over 6 pairs of runs, by statistics" in texts) == (8, True)
    assert texts[texts.index("first clearly apart") + 1] == str(found.first)
    assert {"first difference", "which means"}.isdisjoint(texts)
    assert texts[texts.index("a pair") + 1] == "a run of A and a run of B that have the same seed"


def test_each_run_of_a_is_drawn_behind_their_mean():
    lines = []
    for pairs in (1, 3):
        a, b = session(generator(5), pairs)
        [curve] = curves.case_curves("ppo", curves.Sides(a, b, False), [metrics.Decisive("critic/score/mean", 1)])
        lines.append(curves.svg(curve, "x").count("stroke-opacity: 0.5"))
    assert lines == [0, 1]


def test_a_case_without_runs_says_so():
    shown = verdict_page.html(
        verdict_page.VerdictPage("Nothing ran.", "inconclusive", cases=[verdict_page.CaseCard("ppo", [])])
    )
    assert "No run has recorded a decisive metric, so there is no curve." in shown


class TestCodes:
    """The diff of the code of A and B."""

    def trees(self, tmp_path, **files):
        for side in "ab":
            for name, texts in files.items():
                path = tmp_path / side / f"{name}.py"
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(texts["ab".index(side)])
        return report.difference(tmp_path / "a", tmp_path / "b")

    def test_the_lines_that_differ(self, tmp_path):
        lines, note = self.trees(tmp_path, x=(b"1\n2\n", b"1\n3\n"), y=(b"same", b"same"))
        assert [line.partition("\t")[0] for line in lines] == [
            "--- a/x.py",
            "+++ b/x.py",
            "@@ -1,2 +1,2 @@",
            " 1",
            "-2",
            "+3",
        ]
        assert note == "1 file differs."

    def test_what_is_too_long_is_cut_and_a_binary_file_is_named(self, tmp_path):
        many = b"".join(b"%d\n" % number for number in range(2500))
        lines, note = self.trees(tmp_path, a=(b"", bytes(300_000)), b=(b"", many), c=(b"1", b"2"))
        assert (lines[0], len(lines)) == ("Binary files a/a.py and b/a.py differ", 2000)
        assert note == "3 files differ. The diff is cut after 2000 lines."

    def test_equal_code_and_a_snapshot_that_is_gone(self, tmp_path):
        assert self.trees(tmp_path, a=(b"1", b"1")) == ([], "A and B are the same code.")
        gone = report.difference(tmp_path / "a", tmp_path / "c")
        assert gone == ([], f"The code cannot be compared: {tmp_path}/c no longer exists.")


def test_phases_are_shown_only_where_all_runs_generate():
    rng = generator(1)
    runs = [noisy(rng, name) for name in "ab"]
    assert "timing_s/step" in verdict_page._costs(verdict_page.CaseCard("ppo", [], runs[:1], runs[1:]))
    replayed = [dataclasses.replace(run, facts={comparable.REPLAY: "1"}) for run in runs]
    assert "timing_s/step" not in verdict_page._costs(verdict_page.CaseCard("ppo", [], replayed[:1], replayed[1:]))


def test_the_memory_of_the_processes_is_shown_where_it_was_recorded():
    rng = generator(1)
    runs = [test_memory.remember(noisy(rng, name), rng, leak=leak) for name, leak in (("a", 0.0), ("b", 64e6))]
    cells = Parsed(str(verdict_page._costs(verdict_page.CaseCard("ppo", [], runs[:1], runs[1:])))).texts
    rows = {name: cells[cells.index(name) + 1 : cells.index(name) + 4] for name in cells if name in MEMORY_ROWS}
    assert list(rows) == list(MEMORY_ROWS)
    assert rows["all processes together"][2] == "1.15"
    assert rows["growth a step"][1].endswith(" MB")
    without = verdict_page.CaseCard("ppo", [], runs[:1], [dataclasses.replace(runs[1], memory=Memory())])
    assert "all processes together" not in verdict_page._costs(without)


MEMORY_ROWS = ("all processes together", "process WorkerDict", "process TaskRunner", "growth a step")
