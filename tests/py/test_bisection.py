"""What tells a bad commit from a good one, and what each commit says: on recorded job directories."""

import argparse
import json
import math

import pytest
import test_session_verdict as made

from verl_regress.base.errors import BadInput, RegressError
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.session import bisect, bisect_report, bisection, report, suites, verdict
from verl_regress.session.bisection import BAD, GOOD, SKIP, Bisection, Signature
from verl_regress.session.checks import Verdict as Checked

pytestmark = pytest.mark.slow

SUITE = "title: mine\npairs: 1\ncases:\n  ppo: {workload: ppo}\n  sft: {workload: sft}\n  resume: {continues: ppo, steps: 2}\n"
VALUE = Signature("ppo", "value", 1, "critic/advantages/max", 1.5, -0.5)


@pytest.fixture
def root(tmp_path):
    return SharedRoot(tmp_path)


def search_in(root, case="ppo", suite=SUITE):
    content = bisection.of_case(suites.parse(suite, "my.yaml"), case)
    begin = {
        "suite": {"name": "my.yaml", "content": content}, "cluster": "mine", "repo": "path:/r", "good": "a" * 40, "bad": "b" * 40,
        "good_tree": "1" * 40, "bad_tree": "2" * 40, "case": case, "metric": "",
    }  # fmt: skip
    return Bisection.begin(root, begin)


def session_in(root, search, role, change=None, name="20261122T100000Z", bad_exit=0, good_exit=0):
    """A session of that role that is over: the runs of A and B are recorded ones, B's changed."""
    session = made.make(
        root, name=name, suite=json.dumps({**search.suite_for(role), "cases": {"ppo": {"workload": "ppo"}}})
    )
    session.write_job("ppo_b", made.job(root, "ppo-0.9.1-v1-1", f"b-{name}", made.TREES["B"], change, bad_exit))
    session.write_job("ppo_a", made.job(root, "ppo-0.9.1-v1-1", f"a-{name}", made.TREES["A"], None, good_exit))
    session.write_job("ppo_a_again", made.job(root, "ppo-0.9.1-v1-2", f"again-{name}", made.TREES["A"]))
    evidence = session.evidence()
    outcome = report.Outcome(
        session, evidence, [Checked("placement", "Each job ran", "1", [])], verdict.of_session(evidence)
    )
    (session.path / "report.json").write_text(json.dumps(report.as_json(outcome)))  # the page takes seconds
    return session


def ends(root, change, **more):
    search = search_in(root)
    return search, session_in(root, search, "ends", change, **more)


def said_of(session, **case):
    """Changes what the session's report says of its case."""
    content = json.loads((session.path / "report.json").read_text())
    content["cases"][0] |= case
    (session.path / "report.json").write_text(json.dumps(content))


def test_the_first_step_and_metric_that_differ_tell(root):
    _, session = ends(root, made.sign)
    found = bisection.found_at_the_ends(session, "ppo", "")
    assert (found.case, found.kind, found.step) == ("ppo", "value", 1)
    assert found.metric.startswith("critic/advantages/")
    assert found.good == pytest.approx(-found.bad, rel=0.5) or found.good != found.bad


def test_the_metric_that_the_user_names_tells_at_the_first_step_that_differs(root):
    _, session = ends(root, made.sign)
    found = bisection.found_at_the_ends(session, "", "critic/advantages/min")
    assert (found.metric, found.step) == ("critic/advantages/min", 1)


@pytest.mark.parametrize(
    ("metric", "sentence"),
    [
        ("critic/nope", "METRIC=critic/nope does not appear in the run of ppo with GOOD and BAD: name a metric of its metrics.jsonl."),
        ("critic/score/mean", "METRIC=critic/score/mean is the same with GOOD and BAD at steps 1 to "),
    ],
)  # fmt: skip
def test_a_metric_that_does_not_tell_is_refused(root, metric, sentence):
    _, session = ends(root, made.sign)
    with pytest.raises(BadInput) as error:
        bisection.found_at_the_ends(session, "ppo", metric)
    assert sentence in str(error.value)


def test_a_metric_is_not_followed_where_good_does_not_repeat_itself(root):
    """One noisy run of a commit would decide on it."""
    _, session = ends(root, made.sign)
    said_of(session, deterministic=False)
    with pytest.raises(BadInput) as error:
        bisection.found_at_the_ends(session, "ppo", "critic/advantages/max")
    assert str(error.value) == (
        "METRIC=critic/advantages/max cannot be followed in ppo, whose runs with GOOD do not repeat themselves: leave METRIC empty, and the verdict on all pairs decides."
    )


@pytest.mark.parametrize("case", ["ppo", ""])
@pytest.mark.parametrize("metric", ["", "critic/advantages/max"])
def test_a_good_end_that_fails_is_refused(root, case, metric):
    _, session = ends(root, made.sign, good_exit=1)
    with pytest.raises(
        BadInput, match=r"^GOOD itself fails in ppo \(.+\), so nothing says what is bad: name a commit "
    ):
        bisection.found_at_the_ends(session, case, metric)


@pytest.mark.parametrize(
    ("word", "error", "said"),
    [
        ("identical", BadInput, r"BAD trains as GOOD does \(ppo is identical: why\), so there is nothing to find: "),
        (
            "incomparable",
            RegressError,
            r"It is unclear whether BAD differs from GOOD \(ppo is incomparable: why\): see ",
        ),
    ],
)
def test_ends_that_train_alike_or_cannot_be_compared_leave_nothing_to_find(root, word, error, said):
    _, session = ends(root, made.sign)
    said_of(session, word=word, reason="why")
    with pytest.raises(error, match=said):
        bisection.found_at_the_ends(session, "ppo", "")


def test_a_bad_end_that_fails_is_found_by_where_it_fails(root):
    _, session = ends(root, made.sign, bad_exit=1)
    found = bisection.found_at_the_ends(session, "ppo", "")
    assert found.kind == "failure"
    assert found.step > 1


@pytest.mark.parametrize(
    ("value", "word"), [(1.5, GOOD), (1.49, GOOD), (-0.5, BAD), (-7.0, BAD), (0.5, SKIP), (math.nan, SKIP), (math.inf, SKIP)]
)  # fmt: skip
def test_a_commit_is_what_its_value_is_nearer_to(value, word):
    said, why = bisection.of_value(VALUE, value)
    assert said == word
    assert why.startswith("critic/advantages/max at step 1 is ")


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        (0.5, (GOOD, "train/loss at step 2 is 0.5, finite as with GOOD")),
        (math.nan, (BAD, "train/loss at step 2 is nan, not finite as with BAD")),
    ],
)
def test_a_commit_is_bad_whose_value_is_not_finite_as_bads(value, answer):
    assert bisection.of_value(Signature("sft", "value", 2, "train/loss", 0.25), value) == answer


def test_a_metric_that_is_not_finite_with_bad_tells(root):
    def nan(step, data):
        if step > 1:
            data["critic/advantages/max"] = None  # as verl's file logger writes it

    _, session = ends(root, nan)
    found = bisection.found_at_the_ends(session, "", "critic/advantages/max")
    assert (found.kind, found.step, math.isfinite(found.good), math.isnan(found.bad)) == ("value", 2, True, True)


def test_a_job_says_good_or_bad_by_its_value(root):
    _, session = ends(root, made.sign)
    signature = bisection.found_at_the_ends(session, "ppo", "")
    good = JobDir(root.jobs / "a-20261122T100000Z")
    assert bisection.of_job(signature, JobDir(root.jobs / "again-20261122T100000Z"), good)[0] == GOOD
    word, why = bisection.of_job(signature, JobDir(root.jobs / "b-20261122T100000Z"), good)
    assert (word, why.endswith(", as with BAD")) == (BAD, True)


def test_a_job_that_fails_before_the_step_is_skipped_unless_that_is_how_bad_fails(root):
    made.job(root, "ppo-0.9.1-v1-1", "good", made.TREES["A"])
    made.job(root, "ppo-0.9.1-v1-2", "broken", made.TREES["B"], exit_code=1)
    metrics = root.jobs / "broken/logs/metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:1]))
    good, broken = JobDir(root.jobs / "good"), JobDir(root.jobs / "broken")
    late = Signature("ppo", "value", 2, "critic/score/mean", 0.5, 0.1)
    word, why = bisection.of_job(late, broken, good)
    assert (word, why) == (SKIP, "its run did not record critic/score/mean at step 2 (KeyError: no)")
    assert bisection.of_job(Signature("ppo", "failure", 1), broken, good) == (
        BAD,
        "it fails after step 1: KeyError: no",
    )
    assert bisection.of_job(Signature("ppo", "failure", 3), broken, good)[0] == SKIP
    assert bisection.of_job(Signature("ppo", "failure", 3), good, good)[0] == GOOD


def test_a_commit_that_cannot_run_is_skipped_unless_that_is_how_bad_fails():
    assert bisection.of_refusal(VALUE, "no key x") == (SKIP, "it does not run: no key x")
    assert bisection.of_refusal(Signature("ppo", "failure", 0), "no key x")[0] == BAD


def test_a_job_that_ran_under_other_conditions_is_skipped(root):
    made.job(root, "ppo-0.9.1-v1-1", "good", made.TREES["A"])
    made.job(root, "ppo-0.9.1-v1-2", "other", made.TREES["B"])
    resolved = root.jobs / "other/config/resolved.json"
    resolved.write_text(json.dumps({**json.loads(resolved.read_text()), "profile": "gpu"}))
    word, why = bisection.of_job(VALUE, JobDir(root.jobs / "other"), JobDir(root.jobs / "good"))
    assert word == SKIP
    assert why.startswith("it differs from GOOD in more than its code: profile: A cpu")


@pytest.mark.parametrize(
    ("word", "expected"),
    [("regressed", BAD), ("changed", BAD), ("improved", BAD), ("same", GOOD), ("identical", GOOD), ("inconclusive", SKIP), ("incomparable", SKIP)],
)  # fmt: skip
def test_where_runs_are_noisy_the_verdict_on_all_pairs_says_it(root, word, expected):
    _, session = ends(root, made.sign)
    said_of(session, word=word, reason="because")
    assert bisection.of_session(Signature("ppo", "verdict"), session) == (expected, f"{word}: because")


def test_a_session_whose_checks_failed_tells_nothing(root):
    search, session = ends(root, made.sign)
    confirm = session_in(root, search, "confirm", made.sign, name="20261122T110000Z")
    signature = bisection.found_at_the_ends(session, "ppo", "")
    assert bisection.confirmed(signature, confirm)[0]
    for each in (session, confirm):
        content = json.loads((each.path / "report.json").read_text())
        content["checks"][0]["problems"] = ["the driver ran on the head"]
        (each.path / "report.json").write_text(json.dumps(content))
    doubt = "1 check of the session 20261122T100000Z failed, so its runs may not be of the code that was asked for"
    with pytest.raises(RegressError, match=f"^{doubt}: read .*/report.md for what to fix, and start a new search.$"):
        bisection.found_at_the_ends(session, "ppo", "")
    assert bisection.of_session(Signature("ppo", "verdict"), session) == (SKIP, doubt)
    assert not bisection.confirmed(signature, confirm)[0]


def test_a_session_is_found_by_its_role_and_the_confirmation_takes_no_run_over(root):
    search, session = ends(root, made.sign)
    assert search.session(root, "ends").path == session.path
    assert search.session(root, "confirm") is None
    assert bisect._state(search.session(root, "ends")) == f"over {session.path.name}"
    assert [search.suite_for(role)["reuse"] for role in ("ends", "c" * 40, "confirm")] == [True, True, False]
    with pytest.raises(
        RegressError, match=r"The session 'bisect .*: confirm' is not in .* any more: start a new search."
    ):
        search.session_of(root, "confirm")


def test_a_case_keeps_the_one_that_it_continues(root):
    suite = suites.parse(SUITE, "my.yaml")
    assert list(bisection.of_case(suite, "resume")["cases"]) == ["ppo", "resume"]
    assert list(bisection.of_case(suite, "")["cases"]) == ["ppo", "sft", "resume"]


def test_the_report_names_the_commit_its_parent_and_what_each_commit_said(root, capsys):
    search = followed(root)
    session_in(root, search, "confirm", made.sign, name="20261122T110000Z")
    for number, word in enumerate((GOOD, SKIP, BAD)):
        search.write(
            f"commit-{number:040d}", {"word": word, "why": f"why {number}", "subject": "a | <b>", "tree": "", "job": ""}
        )
    args = _finish_args("--commit", "c" * 40, "--parent", "d" * 40, "--about", "Turn it round\nMe <me@x>\n2026-01-01")
    assert bisect_report.finish(root, search, args, "diff --git a b\n-one\n+<two>\n") == 0
    assert capsys.readouterr().out.startswith(
        f"the first bad commit is {'c' * 12} (Turn it round); fresh runs of it and of its parent confirm it\n"
    )
    written = json.loads((search.path / "report.json").read_text())
    assert (written["found"], written["parent"], written["confirmed"]) == ("c" * 40, "d" * 40, True)
    assert written["said"][0].startswith("parent: good, critic/advantages/max at step 1 is ")
    assert written["said"][1].startswith("commit: bad, critic/advantages/max at step 1 is ")
    page = (search.path / "report.html").read_text()
    assert page.count("<svg ") > 5
    assert "&lt;two&gt;" in page
    assert "3 commits" in page
    assert "a | &lt;b&gt;" in page
    assert "| 000000000000 | good | why 0 | a \\| <b> |" in (search.path / "report.md").read_text()


def test_a_confirmation_that_disagrees_is_no_answer(root, capsys):
    search = followed(root)
    session_in(root, search, "confirm", None, name="20261122T110000Z")
    assert bisect_report.finish(root, search, _finish_args("--commit", "c" * 40, "--about", "Subject"), "") == 11
    said = "seems to be cccccccccccc (Subject), but fresh runs of it and of its parent do not confirm it"
    assert said in capsys.readouterr().out


def test_only_skipped_commits_left_are_named(root, capsys):
    search = followed(root)
    assert bisect_report.finish(root, search, _finish_args("--possible", f"{'1' * 40} {'2' * 40}"), "") == 11
    said = (
        "not found: it is one of 2 commits, of which those in between could not be judged: 111111111111, 222222222222"
    )
    assert said in capsys.readouterr().out


def followed(root):
    """A search that follows a metric which tells the ends apart."""
    search, session = ends(root, made.sign)
    found = bisection.found_at_the_ends(session, "ppo", "critic/advantages/max")
    search.write(
        "signature", {name: getattr(found, name) for name in ("case", "kind", "step", "metric", "good", "bad")}
    )
    return search


def _finish_args(*words):
    parser = argparse.ArgumentParser()
    bisect.add_arguments(parser)
    return parser.parse_args(["finish", "--search", "/x", *words])
