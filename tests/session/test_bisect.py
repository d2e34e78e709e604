"""What GOOD and BAD differ in, what each commit says, and the report of a search: on recorded job directories."""

import argparse
import json
import shutil

import pytest
from tests.session import test_verdict as made

from verl_regress.base.errors import BadInput, RegressError
from verl_regress.base.layout import SharedRoot
from verl_regress.session import bisect, report, suites, verdict
from verl_regress.session.bisect import BAD, GOOD, SKIP, Bisection
from verl_regress.session.checks import Result
from verl_regress.store.sessions import new_directory

pytestmark = pytest.mark.slow

COMMIT = "c" * 40
SUITE = "title: mine\npairs: 1\ncases:\n  ppo: {workload: ppo}\n  sft: {workload: sft}\n  resume: {continues: ppo, steps: 2}\n"


@pytest.fixture
def root(tmp_path):
    return SharedRoot(tmp_path)


def search_in(root, case="ppo", suite=SUITE):
    begin = {
        "suite": suites.parse(suite, "my.yaml").recorded(), "cluster": "mine", "repo": "path:/r", "good": "a" * 40, "bad": "b" * 40,
        "case": case,
    }  # fmt: skip
    search = Bisection(new_directory(root.bisections))
    search.evidence_dir.mkdir()
    search.write("begin", begin)
    return search


def session_in(root, search, role, change=None, name="20261122T100000Z", bad_exit=0, good_exit=0):
    """A session of that role that is over: the runs of A and B are recorded ones, B's changed."""
    suite = json.dumps({**search.suite_for(role), "cases": {"ppo": {"workload": "ppo"}}})
    session = made.make(root, name, suite)
    session.write_job("ppo_b", made.job(root, "ppo-0.9.1-v1-1", f"b-{name}", made.TREES["B"], change, bad_exit))
    session.write_job("ppo_a", made.job(root, "ppo-0.9.1-v1-1", f"a-{name}", made.TREES["A"], None, good_exit))
    session.write_job("ppo_a_again", made.job(root, "ppo-0.9.1-v1-2", f"again-{name}", made.TREES["A"]))
    evidence = session.evidence()
    placement = Result("placement", "Each job ran", "1", [])
    outcome = report.SessionOutcome(session, evidence, [placement], verdict.of_session(evidence))
    (session.path / "report.json").write_text(json.dumps(report.as_json(outcome)))  # the page takes seconds
    return session


def ends(root, change, **more):
    search = search_in(root)
    return search, session_in(root, search, "ends", change, **more)


def said_of(session, without="", problems=(), **case):
    """Changes what the session's report says of its case and its check; `without` names a run that was not made."""
    content = json.loads((session.path / "report.json").read_text())
    content["cases"][0] |= case
    content["checks"][0]["problems"] = problems
    content["jobs"].pop(without, None)
    (session.path / "report.json").write_text(json.dumps(content))


def signature(how_bad=1, failed=None):
    return {"case": "ppo", "how_bad": how_bad, "failed": failed, "why": "because"}


def test_the_verdict_and_the_first_difference_tell(root):
    _, session = ends(root, made.sign)
    found = bisect.found_at_the_ends(session, "ppo")
    assert (found["case"], found["how_bad"], found["failed"]) == ("ppo", 2, None)
    assert found["why"].startswith("ppo, step 1, critic/advantages/")
    assert "; regressed: with equal rewards, " in found["why"]


def test_a_first_difference_that_is_not_finite_can_be_said(root):
    def nan(step, data):
        if step > 1:
            data["critic/advantages/max"] = None  # as verl's file logger writes it

    _, session = ends(root, nan)
    assert bisect.found_at_the_ends(session, "")["how_bad"] == 2


@pytest.mark.parametrize("case", ["ppo", ""])
def test_a_good_end_that_fails_is_refused(root, case):
    _, session = ends(root, made.sign, good_exit=1)
    said = r"^GOOD itself fails in ppo \(.+\), so nothing says what is bad: name a commit "
    with pytest.raises(BadInput, match=said):
        bisect.found_at_the_ends(session, case)


@pytest.mark.parametrize(
    ("word", "error", "said"),
    [
        ("identical", BadInput, r"BAD trains as GOOD does \(ppo is identical: why\), so there is nothing to find: "),
        ("incomparable", RegressError, r"It is unclear whether BAD differs from GOOD \(ppo is incomparable: why\): see "),
    ],
)  # fmt: skip
def test_ends_that_train_alike_or_cannot_be_compared_leave_nothing_to_find(root, word, error, said):
    _, session = ends(root, made.sign)
    said_of(session, word=word, reason="why")
    with pytest.raises(error, match=said):
        bisect.found_at_the_ends(session, "ppo")


def test_a_bad_end_that_fails_is_found_by_where_it_fails(root):
    _, session = ends(root, made.sign, bad_exit=1)
    failed = bisect.found_at_the_ends(session, "ppo")["failed"]
    assert failed > 1
    assert bisect.said_of_commit(signature(2, failed), session)[0] == BAD
    word, why = bisect.said_of_commit(signature(2, failed - 1), session)
    assert (word, "KeyError: no" in why) == (SKIP, True)
    assert bisect.said_of_commit(signature(2), session)[0] == SKIP


def test_where_bad_is_refused_a_commit_that_is_refused_is_bad(root):
    _, session = ends(root, None)
    said_of(session, without="ppo_b", word="regressed", reason="B refuses what A takes")
    assert bisect.said_of_commit(signature(2, 0), session)[0] == BAD
    assert bisect.said_of_commit(signature(2), session)[0] == SKIP


@pytest.mark.parametrize(
    ("how_bad", "words"),
    [
        (1, {"regressed": BAD, "changed": BAD, "improved": BAD, "same": GOOD, "identical": GOOD, "inconclusive": SKIP, "incomparable": SKIP}),
        (2, {"regressed": BAD, "changed": GOOD, "improved": GOOD, "same": GOOD}),
    ],
)  # fmt: skip
def test_a_commit_is_bad_whose_verdict_is_as_bad_as_that_of_bad(root, how_bad, words):
    _, session = ends(root, made.sign)
    assert bisect.said_of_commit(signature(how_bad, 0), session)[0] == GOOD  # where BAD fails, it trains to the end
    for word, expected in words.items():
        said_of(session, word=word, reason="because")
        assert bisect.said_of_commit(signature(how_bad), session) == (expected, f"{word}: because")


def test_a_session_whose_checks_failed_tells_nothing(root):
    search, session = ends(root, made.sign)
    confirm = session_in(root, search, "confirm", made.sign, name="20261122T110000Z")
    assert bisect.said_of_commit(signature(), confirm)[0] == BAD
    for each in (session, confirm):
        said_of(each, problems=["the driver ran on the head"])
    doubt = "1 check of the session 20261122T100000Z failed, so its runs may not be of the code that was asked for"
    with pytest.raises(RegressError, match=f"^{doubt}: read .*/report.md for what to fix, and start a new search.$"):
        bisect.found_at_the_ends(session, "ppo")
    assert bisect.said_of_commit(signature(), session) == (SKIP, doubt)
    assert bisect.said_of_commit(signature(), confirm)[0] == SKIP


def test_a_session_is_found_by_its_role_and_the_confirmation_takes_no_run_over(root, capsys):
    search, session = ends(root, made.sign)
    assert search.session(root, "ends").path == session.path
    assert search.session(root, "confirm") is None
    word, suite = bisect._ask(root, search, _args("ask", "--role=confirm", "--subject="))
    assert (word, json.loads(suite)["reuse"]) == ("new", False)
    assert [search.suite_for(role)["reuse"] for role in ("ends", f"commit-{COMMIT}", "confirm")] == [True, True, False]
    (session.path / "report.json").unlink()
    assert bisect._ask(root, search, _args("ask", "--role=ends", "--subject=")) == ("open", session.path.name)


def test_a_case_keeps_the_one_that_it_continues(root):
    assert list(search_in(root, "resume").suite_for("ends")["cases"]) == ["ppo", "resume"]
    search = search_in(root, "")
    assert list(search.suite_for("ends")["cases"]) == ["ppo", "sft", "resume"]
    search.write("ends", {"case": "sft"})
    assert list(search.suite_for("confirm")["cases"]) == ["sft"]


def test_speed_and_memory_are_not_searched(root):
    search = search_in(root, suite="cases: {ppo: {workload: ppo, speed: true, memory: true}}")
    assert search.suite_for("ends")["cases"] == {"ppo": {"workload": "ppo", "speed": False, "memory": False}}


def test_what_was_decided_is_answered_at_once(root, capsys):
    search, session = ends(root, made.sign)
    of_commit = session_in(root, search, f"commit-{COMMIT}", None, name="20261122T110000Z")
    asked = [_args("ask", f"--role={role}", "--subject=a | <b>") for role in ("ends", f"commit-{COMMIT}")]
    assert [bisect._ask(root, search, args) for args in asked] == [("differ",), ("good",)]
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("        what tells them apart: ppo, step 1, critic/advantages/")
    assert said[1].startswith(f"        {COMMIT[:12]} is good: identical: ")
    for each in (session, of_commit):
        shutil.rmtree(each.path)
    assert [bisect._ask(root, search, args) for args in asked] == [("differ",), ("good",)]
    assert capsys.readouterr().err.splitlines() == said
    assert search.tried[COMMIT]["session"] == of_commit.path.name


def test_a_commit_without_verl_is_skipped_and_trains_nothing(root, capsys):
    search, _ = ends(root, made.sign)
    asked = _args("ask", f"--role=commit-{COMMIT}", "--subject=s", "--refused=it has no verl")
    assert bisect._ask(root, search, asked) == ("skip",)
    assert capsys.readouterr().err == f"        {COMMIT[:12]} is skipped: it has no verl\n"
    said = search.tried[COMMIT]
    assert (said["word"], said["why"], said["subject"]) == (SKIP, "it has no verl", "s")


def test_the_report_names_the_commit_its_parent_and_what_each_commit_said(root, capsys):
    search, confirm = confirmed(root, made.sign)
    for number, word in enumerate((GOOD, SKIP, BAD)):
        search.write(f"commit-{number:040d}", {"word": word, "why": f"why {number}", "subject": "a | <b>"})
    args = _args("finish", f"--parent={'d' * 40}", "--about=Turn {it} round\nMe <me@x>\n2026-01-01", COMMIT)
    assert bisect._finish(root, search, args, "diff --git a b\n-one\n+<two>\n") == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"the first bad commit is {'c' * 12} (Turn {{it}} round); fresh runs of it and of its parent confirm it",
        f"their curves and code: {confirm.path}/report.html",
    ]
    written = json.loads((search.path / "report.json").read_text())
    assert (written["found"], written["parent"], written["confirmed"]) == (COMMIT, "d" * 40, True)
    assert written["said"][0].startswith("the commit against its parent: regressed: ")
    assert list(written["commits"]) == [f"{number:040d}" for number in range(3)]
    page = (search.path / "report.md").read_text()
    assert "| 000000000000 | good | why 0 | a \\| <b> |" in page
    assert "+<two>" in page


def test_a_confirmation_that_disagrees_is_no_answer(root, capsys):
    search, _ = confirmed(root, None)
    assert bisect._finish(root, search, _args("finish", "--parent=", "--about=Subject", COMMIT), "") == 11
    said = "seems to be cccccccccccc (Subject), but fresh runs of it and of its parent do not confirm it"
    assert said in capsys.readouterr().out


def test_only_skipped_commits_left_are_named(root, capsys):
    search, _ = ends(root, made.sign)
    search.write("ends", signature())
    args = _args("finish", "--parent=", "--about=", "1" * 40, "2" * 40)
    assert bisect._finish(root, search, args, "") == 11
    said = "not found: it is one of 2 commits, of which those in between could not be judged"
    assert f"{said}: 111111111111, 222222222222" in capsys.readouterr().out


def confirmed(root, change):
    """A search whose ends differ, and the session that trained the commit and its parent again."""
    search, _ = ends(root, made.sign)
    bisect._ask(root, search, _args("ask", "--role=ends", "--subject="))
    session = session_in(root, search, "confirm", change, name="20261122T110000Z")
    bisect._ask(root, search, _args("ask", "--role=confirm", "--subject="))
    return search, session


def _args(step, *words):
    parser = argparse.ArgumentParser()
    bisect.add_arguments(parser)
    return parser.parse_args([step, "--search=/x", *(["--refused="] if step == "ask" else []), *words])
