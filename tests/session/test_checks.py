"""Every check of verify, on copies of a recorded session's evidence: passes as recorded, fails when broken."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from verl_regress.cluster import packages
from verl_regress.session import checks, report
from verl_regress.session.report import SessionOutcome
from verl_regress.store.sessions import Session

RECORDED = Path(__file__).parents[1] / "recorded" / "session"


@pytest.fixture
def evidence():
    """A copy of the evidence of a real rehearsal (tests/recorded/README.md says how it was made)."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RECORDED.glob("*.json"))}


def head_address(evidence):
    return next(node["address"] for node in evidence["end"]["nodes"] if node["is_head"])


def test_every_check_passes_on_the_recorded_session_and_says_how_much_it_checked(evidence):
    verdicts = checks.judge(evidence, set())
    assert len(verdicts) == len(checks.CHECKS)
    assert {verdict.name: verdict.problems for verdict in verdicts} == {check.name: [] for check in checks.CHECKS}
    assert [verdict.checked for verdict in verdicts if not verdict.checked.startswith("10 jobs")] == []


def test_pairs_are_not_compared_where_an_earlier_version_recorded_nothing(evidence):
    evidence["begin"]["trees"]["A"] = "another"
    for case in ("ppo", "grpo", "sft", "resume"):
        for side in "ab":
            evidence[f"job-{case}_{side}"]["state"]["identity"]["files_sha256"] = "equal"
    (found,) = checks.judge(evidence, {"imports"})
    assert (found.checked, len(found.problems)) == ("10 jobs and 4 pairs", 1)
    del evidence["job-sft_a"]["state"]["identity"]["files_sha256"]
    (found,) = checks.judge(evidence, {"imports"})
    said = "10 jobs, no pairs: 1 of 4 did not run or recorded nothing to compare"
    assert (found.checked, found.problems) == (said, [])


def test_the_table_in_docs_has_the_checks_and_their_claims():
    page = (
        (Path(__file__).parents[2] / "docs/verify.md").read_text().partition("## The checks\n")[2].partition("\n## ")[0]
    )
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE)
    assert [(name, claim.replace("`", "")) for name, claim in rows] == [
        (each.name, each.claim) for each in checks.CHECKS
    ]


B, PAIR = {"ppo_b"}, {"ppo_a", "ppo_b"}
ALL = {f"{case}_{side}" for case in ("ppo", "grpo", "sft", "resume") for side in "ab"}


@pytest.mark.parametrize(
    ("only", "runs"),
    [
        ("placement", B), ("outputs", PAIR), ("checkpoints", B), ("further", {"ppo_b", "resume_b"}),
        ("imports", PAIR), ("workloads", ALL), ("further placement", {"ppo_b", "resume_b"}),
    ],
)  # fmt: skip
def test_with_only_a_session_makes_the_runs_that_its_checks_need(evidence, only, runs):
    assert checks.runs_for(checks.suites.of_recorded(evidence["begin"]["suite"]), set(only.split())) == runs


CLAIMS = {check.name: check.claim for check in checks.CHECKS}


def test_missing_evidence_never_passes(evidence):
    del evidence["end"]
    assert [verdict for verdict in checks.judge(evidence, set()) if not verdict.passed] == [
        checks.Result(name, CLAIMS[name], "incomplete evidence", ["KeyError: 'end'"])
        for name in ("placement", "outputs")
    ]


@pytest.mark.parametrize("run", ["ppo_a", "resume_b"])
@pytest.mark.parametrize("is_missing", [True, False])
def test_a_run_that_did_not_come_to_its_end_is_no_pass(evidence, tmp_path, run, is_missing):
    """The check is skipped, and the verdict says what it means; with ONLY there is none, so the session fails."""
    if is_missing:
        del evidence[f"job-{run}"]
    else:
        evidence[f"job-{run}"]["state"]["ended"]["exit_code"] = 1
        evidence[f"job-{run}"]["ray"]["status"] = "FAILED"
    found = {check.name: check for check in checks.judge(evidence, set())}["workloads"]
    why = f"{run} did not train to the end"
    assert found == checks.Result("workloads", CLAIMS["workloads"], "nothing", [], why)
    assert (found.passed, found.failed, found.word) == (False, False, "skip")
    only = checks.judge(evidence, {"workloads", "placement"})
    outcome = SessionOutcome(Session(tmp_path), evidence, only)
    said, junit = report.as_json(outcome), ElementTree.fromstring(report.as_junit(outcome))
    assert (outcome.status, said["passed"]) == (9, False)
    assert [junit.get(name) for name in ("tests", "failures", "skipped")] == ["2", str(len(outcome.failed)), "0"]
    assert why in [each.get("message") for each in junit.iter("failure")]


def test_all_runs_that_a_check_lacks_are_named(evidence):
    del evidence["job-ppo_b"], evidence["job-sft_a"]
    evidence["job-grpo_a"]["state"]["ended"] = None
    found = {check.name: check for check in checks.judge(evidence, set())}
    assert found["workloads"].skipped == "ppo_b, grpo_a, sft_a did not train to the end"


def test_a_suite_in_which_nothing_continues_has_one_check_less(evidence):
    del evidence["begin"]["suite"]["content"]["cases"]["resume"]
    assert "further" not in {check.name for check in checks.judge(evidence, set())}


def test_only_some_checks(evidence):
    assert [verdict.name for verdict in checks.judge(evidence, {"outputs", "placement"})] == ["placement", "outputs"]


def test_the_reports_show_every_failed_check(evidence, tmp_path):
    evidence["job-grpo_a"]["ray"]["driver_info"]["node_ip_address"] = head_address(evidence)
    outcome = SessionOutcome(Session(tmp_path), evidence, checks.judge(evidence, set()))
    report.write(outcome)
    said = json.loads((tmp_path / "report.json").read_text())
    assert (said["passed"], said["status"], said["verdict"]) == (False, 9, None)
    assert [check for check in said["checks"] if not check["passed"]] == [
        {
            "name": "placement",
            "claim": "every driver ran on a worker, not on the head",
            "passed": False,
            "skipped": None,
            "checked": "10 jobs",
            "problems": ["the driver of grpo_a ran on 172.26.0.3; workers are 172.26.0.2, 172.26.0.4"],
        }
    ]
    page = (tmp_path / "report.md").read_text()
    assert "## Why jobs failed" not in page
    number = len(checks.CHECKS)
    assert page.startswith(f"# {number - 1} of {number} checks passed\n")
    assert f"the driver of grpo_a ran on {head_address(evidence)}" in page
    assert f'tests="{number}" failures="1"' in (tmp_path / "junit.xml").read_text()


def test_the_reports_say_why_a_job_failed(evidence, tmp_path):
    reason = "the trainer ended with exit status 1: ValueError: no (verl/x.py:3, at step 2)"
    cause = {"type": "ValueError", "message": "no", "where": "verl/x.py:3", "also": None, "step": 2, "hint": "do this"}
    evidence["job-grpo_b"]["state"]["ended"] = {"exit_code": 1, "reason": reason, "told_to_stop": False, "cause": cause}
    evidence["job-sft_a"]["state"]["ended"] = None
    report.write(SessionOutcome(Session(tmp_path), evidence, checks.judge(evidence, set())))
    said = json.loads((tmp_path / "report.json").read_text())["jobs"]
    assert (said["grpo_b"]["reason"], said["grpo_b"]["cause"]) == (reason, cause)
    assert {name for name, job in said.items() if job["reason"] is not None} == {"grpo_b", "sft_a"}
    page = (tmp_path / "report.md").read_text()
    assert "## Why jobs failed\n" in page
    assert f"- grpo_b: {reason}\n  - hint: do this\n" in page
    assert "- sft_a: it recorded no end\n" in page
    failure = '<failure message="grpo_b, sft_a did not train to the end">'
    assert failure in (tmp_path / "junit.xml").read_text()  # there are no verdicts, which would say what that means


def ran_with(evidence, **by_code):
    """PPO with A and with B ran on a worker with these versions of numpy."""
    for code, version in by_code.items():
        has = {"numpy": version, "torch": "2.13.0"}
        listed = {"nodes": ["head", "worker-0"], "python": "3.11.7", "sha256": packages.sha256_of(has), "packages": has}
        record = {"mismatch": [], "is_allowed": False, "head": "head", "lists": [listed]}
        record["sha256"] = listed["sha256"]
        evidence[f"job-ppo_{code}"]["packages"] = record


def test_the_reports_say_whether_a_and_b_ran_with_the_same_packages(evidence, tmp_path):
    for code in "ab":
        evidence[f"job-ppo_{code}"]["packages"] = None
    assert report.about_packages(evidence) == ["Which packages A and B ran with was not recorded."]
    ran_with(evidence, a="2.4.6", b="2.4.6")
    sha256 = packages.sha256_of({"numpy": "2.4.6", "torch": "2.13.0"})[:12]
    assert report.about_packages(evidence) == [f"A and B ran with the same 2 packages (sha256 {sha256})."]
    ran_with(evidence, b="1.26.4")
    evidence["job-ppo_b"]["packages"]["mismatch"] = ["verl wants it"]
    said = [
        "A and B ran with different packages: numpy 2.4.6 with A and 1.26.4 with B.",
        "B was submitted with ALLOW_MISMATCH=1: verl wants it.",
    ]
    assert report.about_packages(evidence) == said
    outcome = SessionOutcome(Session(tmp_path), evidence, checks.judge(evidence, set()))
    assert all(check.passed for check in outcome.checks)
    assert set(said) <= set(report.as_markdown(outcome).splitlines())
    assert report.as_json(outcome)["packages"] == said
    for case in ("ppo", "grpo", "sft", "resume"):
        del evidence[f"job-{case}_b"]
    assert report.about_packages(evidence) == []
