"""What happens to a session when something breaks in the middle: the disk is full, a snapshot is gone, another session runs too."""

import errno
import io
import json
import shutil
import sys

import pytest
from shared_fixtures import node_row, write

from verl_regress.session import report, suites
from verl_regress.store.sessions import Session

NAME = "20261122T100000Z"
FULL = OSError(errno.ENOSPC, "No space left on device", "/x")


@pytest.fixture
def session(shared, ray):
    """A session of one case, with A and B."""
    session = Session(shared.sessions / NAME)
    (session.path / "evidence").mkdir(parents=True)
    trees = {
        side: json.loads((shared.snapshots / f"code{side}" / "snapshot.json").read_text())["tree_sha256"]
        for side in "AB"
    }
    session.write(
        "begin",
        {
            "suite": suites.parse("cases: {ppo: {workload: ppo}}", "my.yaml").recorded(), "trees": trees,
            "codes": {"A": "codeA", "B": "codeB"}, "sources": {"A": "pypi:0.7.1", "B": "path:/my/verl"}, "cluster": "mine",
            "profile": "cpu", "only": ["placement"],
        },
    )  # fmt: skip
    return session


def fails(*_args, **_words):
    raise FULL


@pytest.mark.parametrize(("driver", "status", "word"), [("10.0.0.2", 1, "ok"), ("10.0.0.1", 9, "FAIL")])
def test_a_full_disk_does_not_hide_the_answer_and_the_session_writes_it_later(
    session, run, ray, monkeypatch, driver, status, word
):
    ray.has_nodes(node_row("head", "10.0.0.1"), node_row("worker-0", "10.0.0.2"))
    state, seen = {"ended": {"exit_code": 0}}, {"driver_info": {"node_ip_address": driver}}
    job = {"submission_id": "job", "job_dir": "/jobs/job", "plan": {"code_id": "codeB"}, "steps": [], "state": state}
    session.write_job("ppo_b", {**job, "ray": seen})
    with monkeypatch.context() as full:
        full.setattr(report, "write_atomically", fails)
        full.setattr(Session, "write", fails)
        outcome = run("verify", "judge", "--session", session.path)
    assert outcome.status == status
    assert outcome.out.startswith(f"{word:<6}  placement  every driver ran on a worker")
    said = f"The reports of the session {NAME} are not written ([Errno 28] No space left on device: '/x'): fix that, then 'make verify SESSION={NAME}' writes them."
    assert outcome.err == f"error   {said}\n"
    assert not session.is_over
    assert run("verify", "judge", "--session", session.path).status == (9 if status == 9 else 0)
    assert session.is_over


def next_words(run, session):
    outcome = run("verify", "next", "--session", session.path)
    return outcome.status, outcome.out.split("\0")[:5], outcome.err


GONE = "The snapshot codeB was removed after the session began ({0} is not there): make it again with 'make snapshot CODE_ID=codeB VERL_SOURCE=path:/my/verl', and continue the session."


def test_a_run_whose_snapshot_is_gone_is_not_submitted(session, run, shared):
    job = f"ppo-b-{NAME}"
    assert next_words(run, session)[:2] == (0, ["ppo_b", "submit", "jobspecs/ppo.yaml", "B", job])
    aside = shared.path / "aside"
    shutil.move(shared.snapshots / "codeB", aside)
    gone = GONE.format(shared.snapshots / "codeB")
    assert next_words(run, session) == (1, [""], f"error   {gone}\n")
    shutil.move(aside, shared.snapshots / "codeB")
    write(shared.snapshots / "codeB" / "verl" / "__init__.py", "# other\n")
    status, _, said = next_words(run, session)
    assert status == 1
    assert said.startswith(
        f"error   The snapshot codeB was changed after the session began ({shared.snapshots}/codeB: tree "
    )
    assert said.endswith("and continue the session.\n")


def test_a_job_that_failed_because_its_snapshot_went_is_not_bs_failure(session, run, shared, ray, make_job):
    name = f"ppo-b-{NAME}"
    job = make_job(name, ended={"exit_code": 1, "reason": "ImportError"})
    plan = json.loads((job.config / "resolved.json").read_text())
    write(
        job.config / "resolved.json", json.dumps({**plan, "code_path": f"{shared.snapshots}/codeB", "code_id": "codeB"})
    )
    shutil.copy(shared.snapshots / "codeB" / "snapshot.json", job.config / "code.json")
    ray.knows({"submission_id": name, "status": "FAILED"})
    aside = shared.path / "aside"
    shutil.move(shared.snapshots / "codeB", aside)
    recorded = run("verify", "record", "--session", session.path, "--name=ppo_b", f"--job={name}", "--outcome=3")
    assert (recorded.status, recorded.err) == (1, f"error   {GONE.format(shared.snapshots / 'codeB')}\n")
    assert session.read("job-ppo_b") is None
    shutil.move(aside, shared.snapshots / "codeB")
    assert next_words(run, session)[1] == ["ppo_b", "submit", "jobspecs/ppo.yaml", "B", f"{name}-2"]


def test_a_submission_that_b_refuses_because_its_snapshot_went_is_no_verdict(session, run, shared, monkeypatch):
    shutil.rmtree(shared.snapshots / "codeB")
    monkeypatch.setattr(sys, "stdin", io.StringIO("no such snapshot"))
    refused = run("verify", "refused", "--session", session.path, "--name=ppo_b")
    assert (refused.status, refused.err) == (1, f"error   {GONE.format(shared.snapshots / 'codeB')}\n")
    assert session.read("refused-ppo_b") is None
