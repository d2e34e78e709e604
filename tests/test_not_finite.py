"""A metric that is not a finite number, or is missing, in every place that reads one: no traceback, and it is said once."""

import json
import re

import pytest
from shared_fixtures import write
from tests.jobs.test_watch import DEADLINES, ScriptedRay
from tests.session import test_verdict as sessions
from verdict_runs import rows_of, unpack

from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.jobs import conditions, progress, watch
from verl_regress.session import checks, recorded_points, report, verdict
from verl_verdict.decide import speed
from verl_verdict.history import history, history_page
from verl_verdict.read import metrics

BAD = {"null": "null", "nan": "NaN", "inf": "Infinity", "-inf": "-Infinity", "text": '"oops"'}
MISSING = "missing"
RECORDED = {"ppo": "ppo-0.9.1-v1-1", "grpo": "grpo-0.9.1-v1-1", "sft": "sft-0.9.1-1"}
# Each workload has metrics of its own; how a value is read does not depend on it.
CASES = [
    *((workload, value) for workload in RECORDED for value in (BAD["null"], MISSING)),
    *(("sft", value) for name, value in BAD.items() if name != "null"),
]
READ = {*progress._SECONDS, *progress._SCORES, speed.STEP}


def read_of(workload, names):
    """The metrics of a workload that any command reads by name."""
    decisive = [name for name, _ in metrics.decisive_of(workload, sorted(names), ())]
    return READ & names | set(decisive)


def spoil(job, names, value, since=2):
    """Give these metrics that value (JSON) from a step on, or take them out."""
    lines = []
    for row in rows_of(job):
        for name in names & row["data"].keys() if row["step"] >= since else ():
            row["data"][name] = "@"
            if value == MISSING:
                del row["data"][name]
        lines.append(json.dumps(row).replace('"@"', value))
    write(job / "logs" / "metrics.jsonl", "\n".join(lines) + "\n")


def names_in(job):
    return {name for row in rows_of(job) for name in row["data"]}


def strictly(text):
    """JSON as other programs read it: it has neither NaN nor Infinity."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "value"), CASES)
def test_commands_on_a_job(run, make_job, tmp_path, capsys, workload, value):
    job = make_job("job", ended={"exit_code": 0, "reason": "the trainer ended"})
    recorded = unpack(tmp_path, RECORDED[workload])
    names = read_of(workload, names_in(recorded))
    text = (recorded / "logs" / "metrics.jsonl").read_text()
    for name in names:
        write(recorded / "logs" / "metrics.jsonl", text)
        spoil(recorded, {name}, value)
        write(job.metrics, (recorded / "logs" / "metrics.jsonl").read_text())
        ended = watch.follow(job, ScriptedRay(["SUCCEEDED"], type("Clock", (), {"now": 0})()), DEADLINES)
        said = {"wait": capsys.readouterr().err, "jobs": run("--no-ray", "jobs").out}
        said["status"] = run("--no-ray", "status", "--profile=cpu", "CLUSTER_NAME=c").out
        asked = [
            strictly(run("--no-ray", *command, "JSON=1").out)
            for command in (["jobs"], ["status", "--profile=cpu", "CLUSTER_NAME=c"])
        ]
        logs = run("logs", "job", "--metrics").out
        assert (ended, logs) == (0, job.metrics.read_text())
        expected = value != MISSING and name != "val/loss"  # SFT records a validation apart from its step
        for where, lines in said.items():
            count = len(re.findall("1 metric is not finite since step [24]", lines))
            # wait warns when it sees it, has it among the facts at the end, and warns last of a run that learned nothing from then on
            often = 1 if where != "wait" else 3 if name.startswith(conditions._LEARNING) else 2
            assert count == (often if expected else 0), (name, where, lines)
        for each in asked:
            found = next(row for row in each["jobs"] if row["submission_id"] == "job")["not_finite"]
            assert (found is not None) == expected, (name, found)


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "value"), CASES)
def test_verify_and_history(tmp_path, workload, value):
    root = SharedRoot(tmp_path)
    session = sessions.make(root, suite=f"cases: {{{workload}: {{workload: {workload}, deterministic: true}}}}")
    jobs = {side: sessions.job(root, RECORDED[workload], side, sessions.TREES[side.upper()]) for side in "ab"}
    job_b = JobDir(root.jobs / "b")
    text = job_b.metrics.read_text()
    names = read_of(workload, names_in(job_b.path))
    for name in names:
        write(job_b.metrics, text)
        spoil(job_b.path, {name}, value)
        for side in "ab":
            session.write_job(f"{workload}_{side}", jobs[side])
        strictly((session.path / "evidence" / f"job-{workload}_b.json").read_text())
        known = session.evidence()
        found = verdict.of_session(known)
        outcome = report.SessionOutcome(session, known, checks.judge(known, set()), found)
        case = strictly(json.dumps(report.as_json(outcome)))["cases"][0]
        if not metrics.is_time(name) and value not in (MISSING, BAD["text"]):
            assert (case["word"], f"{name} is" in case["reason"]) == ("regressed", True), (name, case)
        assert all(map(len, (report.text(outcome), report.as_markdown(outcome), report.as_junit(outcome))))
    spoil(job_b.path, names, value)
    points, left = recorded_points.collect(root)
    page = history_page.HistoryPage(history.groups_of(points), left, {})
    assert history_page.text(page)
    if value == BAD["null"]:  # drawing takes seconds; the judge reads all of these as one value
        assert report.as_html(outcome)
        assert history_page.html(page)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({}, None),
        ({2: 2, 3: 1}, "1 metric is not finite since step 2"),
        ({1: 2, 2: 2, 3: 2}, "2 metrics are not finite since step 1"),
        ({1: 1, 3: 2}, "2 metrics are not finite since step 3"),
        ({2: 2}, "2 metrics were not finite at step 2"),
        ({1: 1, 2: 2}, "1 metric was not finite at step 1"),
    ],
)
def test_the_sentence_about_all_steps(bad, said):
    steps = [
        progress.Step(n, {"a": 1.0, "b": 1.0} | dict(zip("ab", [None] * bad.get(n, 0), strict=False)))
        for n in (1, 2, 3)
    ]
    assert progress.not_finite(steps) == said
