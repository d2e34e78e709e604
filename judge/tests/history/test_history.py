"""make history: points of recorded sessions, groups of comparable runs, change points that were planted, and none in flat noise."""

import dataclasses
import html
import json
import re
import shutil

import history_sessions as made
import numpy as np
import pytest
from judge.tests.show.test_verdict_page import Parsed
from shared_fixtures import write
from tests.session import test_verdict as sessions
from verdict_runs import edit, generator, noisy

from verl_regress.base.layout import SharedRoot
from verl_regress.session import recorded_points
from verl_verdict.decide import exact, speed
from verl_verdict.history import changes, history, history_page, trends
from verl_verdict.history.history import Point
from verl_verdict.read import metrics
from verl_verdict.read.comparable import REPLAY

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = SharedRoot(tmp_path_factory.mktemp("shared"))
    made.make(root)
    return root


@pytest.fixture(scope="module")
def page(root):
    return made.page(root)


@pytest.fixture(scope="module")
def text(page):
    return history_page.html(page)


def point(run, side="B", session=1, code="v1", case="ppo", **more):
    return Point(run, case, side, f"{case}_{side.lower()}", f"s{session:03}", f"2026-11-{session:02}T10:00:00+00:00", code, code, **more)  # fmt: skip


def series(values, metric="critic/score/mean", code=None, source="git:x@main", **more):
    """A noisy run a session, of one seed and of one source, whose metric has that mean; each of another code unless `code` is given."""
    rng = generator(5)
    return [
        point(
            edit(noisy(rng, f"r{at}", "1"), metric, lambda _step, _old, value=value: value),
            session=at, code=code or f"v{at}", source=source, **more,
        )
        for at, value in enumerate(values, start=1)
    ]  # fmt: skip


HIGHER = [*[0.5] * 8, *[0.9] * 8]


def changes_of(groups):
    return [each for same in history.change_points(groups) for each in same]


def found(groups):
    return [(each.metric, each.first.side, each.first.session) for each in changes_of(groups)]


def test_a_metric_that_the_case_ignores_has_no_change():
    assert [each[0] for each in found(history.groups_of(series(HIGHER)))] == ["critic/score/mean"]
    assert found(history.groups_of(series(HIGHER, ignore=("critic/score/mean",)))) == []


@pytest.mark.parametrize(("facts", "word"), [({}, "worse"), ({REPLAY: "True"}, "changed")])
def test_with_replay_a_larger_mismatch_is_not_worse(facts, word):
    points = series([*[0.002] * 8, *[0.02] * 8], "training/rollout_probs_diff_mean")
    points = [dataclasses.replace(each, run=dataclasses.replace(each.run, facts=facts)) for each in points]
    assert [each.word for each in changes_of(history.groups_of(points))] == [word]


class TestSteps:
    """The change points of a series of numbers."""

    def test_a_planted_step_is_found_with_its_means(self):
        values = [*(1.0 + 0.01 * (at % 3) for at in range(8)), *(2.0 + 0.01 * (at % 3) for at in range(5))]
        [step] = changes.change_points(values, lambda mean: 0.05 * mean)
        assert step.at == 8
        assert (step.before, step.after) == pytest.approx((1.00875, 2.008))
        assert step.p < 0.01

    def test_two_steps_are_found(self):
        rng = generator(1)
        levels = np.repeat([1.0, 3.0, 2.0], 10)
        found = changes.change_points(list(levels + 0.1 * rng.normal(size=30)), lambda mean: 0.0)
        assert [step.at for step in found] == [10, 20]
        assert [round(step.after) for step in found] == [3, 2]

    def test_flat_noise_has_none_more_often_than_declared(self):
        rng = generator(2)
        alarms = sum(
            bool(changes.change_points(list(rng.normal(size=size)), lambda mean: 0.0))
            for size in (10, 15, 20)
            for _ in range(70)
        )
        assert alarms <= 210 * changes.ALPHA + 3 * (210 * changes.ALPHA) ** 0.5

    def test_a_run_that_may_not_be_the_first_one_after_a_change_is_none(self):
        values = [*(1.0 + 0.01 * (at % 3) for at in range(8)), *(2.0 + 0.01 * (at % 3) for at in range(8))]
        assert [step.at for step in changes.change_points(values, lambda mean: 0.0, [5, 8, 12])] == [8]
        assert [step.at for step in changes.change_points(values, lambda mean: 0.0, [9, 12])] == [9]
        assert changes.change_points(values, lambda mean: 0.0, [1, 15, 16]) == []

    def test_what_does_not_matter_is_none(self):
        values = [*(1.0 + 0.001 * (at % 3) for at in range(8)), *(1.04 + 0.001 * (at % 3) for at in range(8))]
        assert changes.change_points(values, lambda mean: 0.05 * mean) == []
        assert len(changes.change_points(values, lambda mean: 0.03 * mean)) == 1

    @pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.0, 9.0, 9.0, 9.0], [2.0] * 20, [1.0] * 10 + [9.0] * 2])
    def test_too_few_runs_on_a_side_and_constant_ones_have_none(self, values):
        assert changes.change_points(values, lambda mean: 0.0) == []


class TestSessions:
    """From sessions to points."""

    def test_every_run_is_a_point_and_a_reused_one_only_once(self, page):
        points = [each for group in page.groups for each in group.points]
        assert len(points) == len({each.run.name for each in points}) == 1 + 6 + 6 * 6 + 2 * 6
        assert [each.session for each in points if each.name == "ppo_a"] == [made.NAMES[0]]
        assert page.all_left == []

    def test_a_point_knows_its_session_code_seed_and_log(self, page, root):
        first = next(each for group in page.groups for each in group.points if each.name == "grpo_b_2")
        assert (first.session, first.side, first.code) == (made.NAMES[0], "B", "v2-0")
        assert first.time == "2026-11-21T10:00:00+00:00"
        assert (first.source, first.revision) == ("git:x@main", "commit 000000000000")
        assert first.run.seed == "verl's default seeds"
        assert (root.sessions / first.log).parent.is_dir()

    def test_a_value_is_the_mean_of_the_last_third_and_the_median_of_the_time(self, page):
        group = next(group for group in page.groups if group.case == "ppo")
        values = {trend.metric: trend.values for trend in group.trends}
        first, value = values["critic/score/mean"][0]
        steps = first.run.series["critic/score/mean"]
        assert value == pytest.approx((steps[3] + steps[4]) / 2)
        assert values[speed.STEP][0][1] == speed.seconds(first.run)
        assert list(values) == [*(name for name, _ in metrics.decisive_of("ppo", first.run.series)), speed.STEP]

    def test_what_cannot_be_used_is_named_and_the_rest_is_shown(self, tmp_path):
        root = SharedRoot(tmp_path)
        made.make(root, days=3)
        (root.sessions / made.NAMES[1] / "evidence/job-ppo_b.json").write_text('{"time": ')
        shutil.rmtree(root.jobs / f"ppo-b-{made.NAMES[2]}")
        (root.jobs / f"sft-b-{made.NAMES[2]}/logs/metrics.jsonl").write_text("no\n")
        record = root.jobs / f"sft-b-{made.NAMES[0]}/logs/metrics.jsonl"
        record.write_text(record.read_text().partition("\n")[0] + '\n{"step"')
        sessions.make(root, "20261201T100000Z")
        (root.sessions / "notes").mkdir()
        page = made.page(root)
        left = [str(each) for each in page.all_left]
        damaged = root.sessions / made.NAMES[1] / "evidence/job-ppo_b.json"
        assert left[0].startswith(f"{made.NAMES[1]}: its evidence is damaged (Unreadable: {damaged} cannot be read: ")
        assert left[1:] == [
            f"ppo_b of {made.NAMES[2]}: its job's directory {root.jobs}/ppo-b-{made.NAMES[2]} is gone",
            f"sft_b of {made.NAMES[2]}: Line 1 of '{root.jobs}/sft-b-{made.NAMES[2]}/logs/metrics.jsonl' is not JSON ('no'): give a metrics.jsonl of verl's file logger.",
            "20261201T100000Z: it has recorded no run",
            "notes: it has no evidence/begin.json: it is not a session, or was cut off",
            f"sft_b of {made.NAMES[0]} (v2-0): the record is cut off after step 1, in line 2",
        ]
        assert {group.case: len(group.points) for group in page.groups} == {"grpo": 12, "ppo": 2, "sft": 2}
        assert f"left out    {left[0]}" in history_page.text(page)
        assert all(reason in "".join(Parsed(history_page.html(page)).texts) for reason in left[0].split(": ", 1))

    def test_a_reused_run_counts_if_its_first_session_is_gone(self, tmp_path):
        root = SharedRoot(tmp_path)
        made.make(root, days=2)
        shutil.rmtree(root.sessions / made.NAMES[0])
        points, left = recorded_points.collect(root)
        assert left == []
        assert [each.session for each in points if each.name == "ppo_a"] == [made.NAMES[1]]

    def test_jobs_are_found_where_this_machine_sees_them(self, tmp_path):
        root = SharedRoot(tmp_path / "here")
        made.make(SharedRoot(tmp_path / "there"), days=1)
        (tmp_path / "there").rename(tmp_path / "here")
        points, left = recorded_points.collect(root)
        assert (len(points), left) == (10, [])


class TestGroups:
    """Which runs share a series, and where it changes."""

    @pytest.mark.parametrize("images", [("1", "2", "1"), (None, "1", "2")])
    def test_runs_that_are_not_comparable_are_another_series_and_that_is_said(self, images):
        """A fact that was not recorded does not join what differs."""
        rng = generator(1)
        facts = [{"model": "m", **({"image": image} if image else {})} for image in images]
        runs = [dataclasses.replace(noisy(rng, f"r{at}", "1"), facts=each) for at, each in enumerate(facts)]
        groups = history.groups_of([point(run, session=at) for at, run in enumerate(runs, start=1)])
        assert [(group.name, len(group.points)) for group in groups] == [("ppo", 2), ("ppo (2)", 1)]
        text = history_page.text(history_page.HistoryPage(groups))
        said = "apart       ppo (2): not comparable with the first runs of ppo: image: 1, here 2"
        assert images[0] is None or said in text

    def test_another_case_and_another_start_are_other_series(self):
        rng = generator(1)
        run = noisy(rng, "a", "1")
        late = dataclasses.replace(run, series={name: {step + 4: value for step, value in each.items()} for name, each in run.series.items()})  # fmt: skip
        groups = history.groups_of([point(run), point(late, session=2), point(run, case="other", session=3)])
        assert [group.name for group in groups] == ["ppo", "ppo (2)", "other"]

    def test_planted_change_points_are_found_and_no_others(self, page):
        at = made.NAMES[3]
        [one] = history.change_points(page.groups)
        assert [(each.metric, each.word) for each in one] == [
            ("timing_s/step", "worse"), ("critic/score/mean", "worse"), ("actor/entropy", "changed"),
        ]  # fmt: skip
        assert {(each.first.series, each.first.code, each.first.session) for each in one} == {
            ("git:x@main", "v2-3", at)
        }
        assert {group.case: group.repeats for group in page.groups} == {"grpo": False, "ppo": True, "sft": True}

    def test_the_same_sessions_without_them_have_none(self, tmp_path):
        root = SharedRoot(tmp_path)
        made.make(root, plant=False)
        page = made.page(root)
        assert found(page.groups) == []
        assert page.answer == "No source's metrics changed when its code did."
        assert history_page.text(page)[1] == "change      none"

    def test_one_run_after_a_change_is_enough_where_runs_repeat_themselves(self, root):
        points, _ = recorded_points.collect(root)
        early = [each for each in points if each.case == "ppo" and each.session <= made.NAMES[3]]
        [change] = changes_of(history.groups_of(early))
        assert (change.metric, change.p, change.word) == ("actor/entropy", None, "changed")
        assert (change.last.code, change.first.code) == ("v2-2", "v2-3")
        assert change.after == pytest.approx(1.5 * change.before)

    def test_rounding_is_no_change_where_runs_repeat_themselves(self, root):
        points, _ = recorded_points.collect(root)
        mine = [each for each in points if each.case == "ppo" and each.session < made.NAMES[3]]

        def last_is(factor):
            run = edit(mine[-1].run, "actor/entropy", lambda _step, value: value * factor)
            return found(history.groups_of([*mine[:-1], dataclasses.replace(mine[-1], run=run)]))

        assert last_is(1 + exact.ROUNDING / 2) == []
        assert last_is(1 + exact.ROUNDING * 3) == [("actor/entropy", "B", made.NAMES[2])]

    def test_two_runs_that_differ_do_not_show_that_runs_repeat_themselves(self):
        groups = history.groups_of(series([0.5, 0.5, 0.5, 0.9, 0.9], code="v1"))
        assert groups[0].repeats is False
        assert found(groups) == []
        alone = series([0.5, 0.5, 0.9])
        assert history.groups_of(alone)[0].repeats is None
        assert found(history.groups_of(alone)) == []

    def test_a_source_is_a_series_of_its_own_of_both_sides(self):
        assert [each[2] for each in found(history.groups_of(series(HIGHER)))] == ["s009"]
        others = [dataclasses.replace(each, source=f"path:/b{at}") for at, each in enumerate(series(HIGHER))]
        groups = history.groups_of(others)
        assert list(groups[0].series) == [f"path:/b{at}" for at in range(16)]
        assert found(groups) == []
        unknown = [dataclasses.replace(each, source="") for each in series(HIGHER)]
        assert list(history.groups_of(unknown)[0].series) == [each.code for each in unknown]
        mixed = [dataclasses.replace(each, side="AB"[at % 2]) for at, each in enumerate(series(HIGHER))]
        assert found(history.groups_of(mixed)) == [("critic/score/mean", "A", "s009")]
        assert found(history.groups_of(series(HIGHER, code="v1"))) == []  # a repeat of equal code is no change

    def test_a_run_of_earlier_code_is_beside_the_other_runs_of_that_code(self):
        codes = dict(zip(("old", "new"), (series([0.5] * 10, code="old"), series([0.9] * 10, code="new")), strict=True))
        points = [codes[name][at] for at in range(10) for name in ("old", "new")]
        [change] = [each for each in changes_of(history.groups_of(points)) if each.metric == "critic/score/mean"]
        assert (change.last.code, change.first.code) == ("old", "new")
        assert (change.before, change.after) == (0.5, pytest.approx(0.9))

    def test_where_runs_repeat_themselves_the_last_run_before_a_change_is_the_newest_one(self, root):
        points = [each for each in recorded_points.collect(root)[0] if each.case == "ppo" and each.side == "B"]
        old, new = points[0], points[3]
        again = [dataclasses.replace(old, session=made.NAMES[at], time=points[at].time) for at in (1, 2, 4)]
        [change] = changes_of(history.groups_of([old, *again[:2], new, again[2]]))
        assert (change.last.session, change.first.session) == (made.NAMES[2], made.NAMES[3])

    def test_a_noisy_change_is_found_on_its_own_side_and_says_whether_it_is_worse(self):
        rng = generator(3)
        low, high = 0.5 + 0.01 * rng.normal(size=12), 0.6 + 0.01 * rng.normal(size=8)
        flat = series(0.5 + 0.01 * rng.normal(size=20), source="pypi:1", side="A")
        groups = history.groups_of([*flat, *series([*low, *high])])
        changes = [each for each in changes_of(groups) if each.metric == "critic/score/mean"]
        assert [(each.first.side, each.first.session, each.word) for each in changes] == [("B", "s013", "better")]
        assert not [each for each in changes_of(groups) if each.first.side == "A"]

    def test_a_run_that_failed_or_ended_early_is_left_out(self):
        points = series([0.5] * 4)
        failed = dataclasses.replace(points[1], run=dataclasses.replace(points[1].run, failure="no memory"))
        short = {
            name: {step: value for step, value in each.items() if step < 5}
            for name, each in points[2].run.series.items()
        }
        early = dataclasses.replace(points[2], run=dataclasses.replace(points[2].run, series=short))
        crashed = dataclasses.replace(points[3], run=dataclasses.replace(points[3].run, series={}, failure="no module"))
        [group] = history.groups_of([points[0], failed, early, crashed, *series([0.5] * 3)])
        assert len(group.points) == 4
        assert [each.why for each in group.left] == [
            "the job failed after step 12 (no memory)",
            "the record ends at step 4 of 12",
            "the job failed before its first step (no module)",
        ]


class TestPage:
    """history.html."""

    def test_it_says_first_what_changed(self, page, text):
        assert re.fullmatch(
            r"1 change: since v2-3 of git:x@main, 2026-11-24, timing_s/step of grpo is [\d.]+ instead of [\d.]+ \(worse\), "
            r"and 2 more metrics changed\.",
            page.answer,
        )
        assert html.unescape(re.sub("<[^>]+>", "", text[text.index("<h1>") : text.index("</h1>")])) == page.answer
        assert page.counts == "55 runs of 3 cases in 6 sessions, 2026-11-21 to 2026-11-26"
        [change] = [line for line in history_page.text(page) if line.startswith("change")]
        assert re.fullmatch(
            r"change      git:x@main: grpo, timing_s/step: [\d.]+ -> [\d.]+ \(worse\) "
            rf"from grpo_b_3 of {made.NAMES[2]} \(v2-2\) to grpo_b of {made.NAMES[3]} \(v2-3\); p 0\.\d+; 2 more metrics",
            change,
        )

    def test_the_newest_of_several_changes_is_the_one_that_it_says(self):
        points = series([*[0.1] * 8, *[0.5] * 8, *[0.9] * 8])
        page = history_page.HistoryPage(history.groups_of(points))
        assert page.answer.startswith(f"The newest of 2 changes: since {points[16].code} of ")
        assert page.answer.endswith("critic/score/mean of ppo is 0.9 instead of 0.5 (better).")

    def test_the_curves_of_a_case_that_changed_come_first(self, text):
        drawn = re.findall("<figcaption>(.*?)</figcaption>", text[text.index('id="case-0"') :])
        assert set(drawn[:2]) == {"critic/score/mean", "timing_s/step"}

    def test_curves_come_before_the_one_row_of_a_change_of_code(self, text):
        assert text.rindex("<svg") < text.index('id="changes"')
        card = text[text.index('id="changes"') :].split("</section>")[0]
        assert card.count("<tr>") == 2
        shown, folded = card.split("<summary>2 more metrics</summary>")
        assert ("grpo, timing_s/step" in shown, "critic/score/mean" in shown) == (True, False)
        assert "grpo, critic/score/mean" in folded
        assert "ppo, actor/entropy: 0.685547 -&gt; 1.02832 (changed); runs with one seed are equal" in folded

    def test_a_key_names_each_series_once_and_folds_what_is_too_long(self):
        many = [dataclasses.replace(each, source=f"path:/b{at}") for at, each in enumerate(series([0.5] * 15))]
        keys = Parsed(history_page.html(history_page.HistoryPage(history.groups_of(many)))).texts
        assert [text for text in keys if "(1 session)" in text] == [
            f"\N{NO-BREAK SPACE}path:/b{at} (1 session)" for at in range(15)
        ]
        assert "3 more" in keys
        assert len({trends.style(at)[:2] for at in range(35)}) == 35

    def test_every_metric_has_a_curve_and_every_change_point_a_mark(self, page, text):
        groups = [each["id"] for each in Parsed(text).all("g") if "id" in each]
        drawn = [
            (at, number, trend) for at, group in enumerate(page.groups) for number, trend in enumerate(group.trends)
        ]
        assert text.count("<svg") == len(drawn) == 8 + 11 + 4
        for at, number, trend in drawn:
            name = f"trend-{at}-{number}"
            assert {f"{name}-line-0", f"{name}-line-1"} <= set(groups)
            assert len([each for each in groups if each.startswith(f"{name}-mark-")]) == len(trend.changes)

    def test_every_element_is_closed_and_can_be_read_without_seeing_it(self, page, text):
        parsed = Parsed(text)
        assert parsed.open == []
        ids = [attributes["id"] for _, attributes in parsed.found if "id" in attributes and "-" in attributes["id"]]
        assert len(ids) == len(set(ids)) > 40
        labels = [each["aria-label"] for each in parsed.all("svg")]
        group = next(group for group in page.groups if group.case == "ppo")
        trend = next(trend for trend in group.trends if trend.metric == "actor/entropy")
        assert trends.sentence(group, trend) in labels
        assert trends.sentence(group, trend).startswith(
            f"actor/entropy, 6 sessions. pypi:1 {made.EVIL} begins with 0.685547 and ends with 0.685547. git:x@main begins with"
        )
        assert "git:x@main changes from 0.685547 to 1.02832 with ppo_b of" in trends.sentence(group, trend)
        targets = {each["href"][1:] for each in parsed.all("a") if each["href"].startswith("#")}
        assert targets <= {attributes["id"] for _, attributes in parsed.found if "id" in attributes}

    def test_text_of_users_stays_text(self, text):
        assert made.EVIL not in text
        assert made.EVIL in "".join(Parsed(text).texts)

    def test_a_session_with_a_page_is_linked_and_one_without_is_not(self, tmp_path):
        root = SharedRoot(tmp_path)
        made.make(root, days=2)
        (root.sessions / made.NAMES[1] / "report.html").touch()
        links = {each["href"] for each in Parsed(history_page.html(made.page(root))).all("a")}
        assert f"{made.NAMES[1]}/report.html" in links
        assert f"{made.NAMES[0]}/report.html" not in links
        assert f"../jobs/sft-a-{made.NAMES[0]}/logs/driver.log" in links


def checked(root, name, *problems):
    """The session is over; each of these is what one check found."""
    found = [{"name": "head", "claim": "…", "skipped": None, "problems": each} for each in problems]
    write(root.sessions / name / "report.json", json.dumps({"passed": not any(problems), "checks": found}))


@pytest.fixture(scope="module")
def doubtful(tmp_path_factory):
    """The page of four sessions, of which a check of the last one failed."""
    root = SharedRoot(tmp_path_factory.mktemp("shared"))
    made.make(root, days=4)
    checked(root, made.NAMES[2], [])
    checked(root, made.NAMES[3], [], ["the driver of ppo_b ran on the head", "so did that of sft_b"])
    return made.page(root)


class TestFailedChecks:
    """Runs of a session whose checks failed are shown, but not as if they were surely of the code that was asked for."""

    WORDS = "1 check failed, so this may not be about the code that was asked for"

    def test_are_counted_for_each_run_that_its_session_made(self, tmp_path):
        root = SharedRoot(tmp_path)
        made.make(root, days=3)
        checked(root, made.NAMES[1], ["no"], [], ["no", "no"])
        checked(root, made.NAMES[2], [], [])
        points, left = recorded_points.collect(root)
        assert left == []
        assert {each.session: each.failed_checks for each in points} == dict(zip(made.NAMES, (0, 2, 0), strict=False))

    def test_are_shown_with_the_answer_and_with_each_change_that_they_may_explain(self, doubtful):
        assert doubtful.answer == (
            "1 change: since v2-3 of git:x@main, 2026-11-24, actor/entropy of ppo is 1.028 instead of 0.6855 (changed); "
            f"{self.WORDS}."
        )
        assert history_page.text(doubtful)[1:] == [
            f"change      git:x@main: ppo, actor/entropy: 0.685547 -> 1.02832 (changed) from ppo_b of {made.NAMES[2]} (v2-2) "
            f"to ppo_b of {made.NAMES[3]} (v2-3); runs with one seed are equal; {self.WORDS}",
            f"in doubt    {made.NAMES[3]}: {self.WORDS}",
        ]

    def test_are_shown_on_the_page_beside_each_run_value_curve_and_change(self, doubtful):
        text = history_page.html(doubtful)
        parsed = Parsed(text)
        shown = [trend for group in doubtful.groups for trend in group.trends]
        values = [point for trend in shown for point, _ in trend.values if point.session == made.NAMES[3]]
        runs = [each for group in doubtful.groups for each in group.points if each.session == made.NAMES[3]]
        assert text.count(f'<p class="warning">{self.WORDS}</p>') == len(runs) == 9
        assert text.count("<td>change, checks failed</td>") == 1
        assert text.count("<td>checks failed</td>") == len(values) - 1
        assert sum(each.get("id", "").endswith("-doubt") for each in parsed.all("g")) == len(shown)
        assert text.count(">since v2-3 (checks failed)<") == 1
        assert f"runs with one seed are equal; {self.WORDS}</p>" in text
        card = text[text.index('id="doubts"') :]
        assert f'<th scope="row">{made.NAMES[3]}</th><td>{self.WORDS}</td>' in card
        assert '<a href="#doubts">in doubt</a>' in text

    @pytest.mark.parametrize("at", [2, 3])
    def test_put_a_change_in_doubt_if_they_are_of_a_run_next_to_it(self, root, at):
        points = [
            dataclasses.replace(each, failed_checks=each.session == made.NAMES[at])
            for each in recorded_points.collect(root)[0]
            if each.case == "ppo"
        ]
        [change] = [each for each in changes_of(history.groups_of(points)) if each.metric == "actor/entropy"]
        assert change.doubt == self.WORDS

    @pytest.mark.parametrize(("at", "doubts"), [(2, [1, 0]), (10, [1, 1]), (20, [0, 1])])
    def test_put_a_change_in_doubt_that_is_found_by_statistics_from_such_runs(self, at, doubts):
        points = series([*[0.1] * 8, *[0.5] * 8, *[0.9] * 8])
        points[at] = dataclasses.replace(points[at], failed_checks=1)
        changes = [each for each in changes_of(history.groups_of(points)) if each.metric == "critic/score/mean"]
        assert [each.doubt for each in changes] == [self.WORDS if each else "" for each in doubts]


def test_the_command_writes_the_page_and_prints_its_place(run, shared):
    assert run("history").is_refusal(f"There is no session in {shared.sessions}: 'make verify' makes one.")
    made.make(shared, days=1)
    outcome = run("history")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [
        "history     10 runs of 3 cases in 1 session, 2026-11-21 to 2026-11-21",
        "change      none",
        f"page        {shared.sessions}/history.html",
    ]
    assert (shared.sessions / "history.html").read_text().startswith("<!DOCTYPE html>")


class TestVerdicts:
    """A run that failed has no value to draw: what its session found is in the summary all the same."""

    SAID = "regressed: B breaks what A does (sft: every run of B failed; 1 case judged)"

    def end(self, root, name, verdict, said):
        write(root.sessions / name / "report.json", json.dumps({"verdict": verdict, "headline": said, "checks": []}))

    def test_sessions_in_which_b_failed_are_no_change_none(self, run, shared):
        for name, said in (("20261121T100000Z", self.SAID), ("20261122T100000Z", "same: B trains as A does")):
            sessions.make(shared, name)
            self.end(shared, name, said.split(":")[0], said)
        time = sessions.Session(shared.sessions / "20261122T100000Z").read("begin")["time"][:10]
        outcome = run("history")
        assert (outcome.status, outcome.out.splitlines()) == (
            0,
            [
                f"history     0 runs of 0 cases in 2 sessions, {time} to {time}",
                f"verdict     20261121T100000Z (codeB): {self.SAID}",
                "left out    20261121T100000Z: it has recorded no run",
                "left out    20261122T100000Z: it has recorded no run",
                f"page        {shared.sessions}/history.html",
            ],
        )
        page = (shared.sessions / "history.html").read_text()
        assert (
            f"The newest session in which B did not train as A does is 20261121T100000Z (codeB): {self.SAID}." in page
        )
        assert self.SAID in page[page.index('id="verdicts"') :]

    @pytest.mark.parametrize(("day", "is_newest"), [("24", False), ("25", True)])
    def test_the_sentence_at_the_top_is_the_newer_of_both(self, root, page, day, is_newest):
        """The newest change point is of the 24th."""
        ended = history.Ended("s", f"2026-11-{day}T10:00:00+00:00", "v", "regressed", "regressed: …")
        answer = dataclasses.replace(page, ended=[ended]).answer
        assert (answer == "The newest session in which B did not train as A does is s (v): regressed: ….") is is_newest
        assert not dataclasses.replace(page, ended=[dataclasses.replace(ended, word="same")]).verdicts
