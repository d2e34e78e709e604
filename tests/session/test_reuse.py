"""Runs of A that an earlier session made, and which of them a later one takes over."""

import json
import shutil
from pathlib import Path

import pytest
from tests.session.test_verdict import MEMORY, SUITE, TREES, job, make, remember, timed
from verdict_runs import rewrite

from verl_regress.base.layout import SharedRoot
from verl_regress.session import reuse, suites
from verl_regress.session.schedule import ScheduledRun
from verl_regress.store.hashes import digest
from verl_regress.store.sessions import jobs_of

pytestmark = pytest.mark.slow


@pytest.fixture
def root(tmp_path):
    return SharedRoot(tmp_path)


@pytest.fixture
def earlier(root):
    session = make(root, "20261121T100000Z", "cases: {ppo: {workload: ppo}}")
    session.write_job("ppo_a", job(root, "ppo-0.9.1-v1-1", "known", TREES["A"]))
    return session


def found_by(root, suite=SUITE, name="20261122T100000Z"):
    session = make(root, name, suite)
    session.write_job("ppo_b", job(root, "ppo-0.9.1-v1-1", f"b-{name}", TREES["B"]))
    case = suites.of_recorded(session.evidence()["begin"]["suite"]).case("ppo")
    return reuse.earlier_run_of_a(root, session, case, ScheduledRun("ppo", "A", 100, 1))


@pytest.mark.quick
def test_an_equal_run_is_taken_over(root, earlier):
    before, taken = found_by(root)
    assert (before, taken["submission_id"]) == (earlier, "known")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("code", {"tree_sha256": "c" * 64}),
        ("artefacts", {"model sha256": "other", "data sha256": "d"}),
        ("image", "sha256:2"),
        ("artefacts", {"data sha256": "d"}),
        (
            "packages",
            {
                "head": "h",
                "lists": [{"nodes": ["w"], "python": "3.12", "packages": {"torch": "2"}, "sha256": "0" * 64}],
            },
        ),
        ("state", {"ended": {"exit_code": 1}}),
        ("state", {"ended": None}),
        ("reused_from", "20261120T100000Z"),
        ("digest", "changed since"),
    ],
)
def test_a_run_that_differs_in_anything_else_is_not(root, earlier, key, value):
    earlier.write_job("ppo_a", {**jobs_of(earlier.evidence())["ppo_a"], key: value})
    assert found_by(root) is None


@pytest.mark.parametrize(
    ("written", "is_taken"),
    [
        ('{"checks": [{"name": "imports", "problems": []}]}', True),
        ('{"checks": [{"name": "imports", "problems": []}, {"name": "head", "problems": ["CPU 2"]}]}', False),
    ],
)
def test_a_run_of_a_session_whose_checks_failed_is_not(root, earlier, written, is_taken):
    (earlier.path / "report.json").write_text(written)
    assert (found_by(root) is not None) == is_taken


def test_other_overrides_are_another_run(root, earlier):
    directory = root.jobs / "known"
    asked = json.loads((directory / "config/asked.json").read_text())
    asked["said"]["overrides"] = [{"text": "actor_rollout_ref.actor.clip_ratio=0.3", "origin": "OVERRIDES"}]
    (directory / "config/asked.json").write_text(json.dumps(asked))
    earlier.write_job("ppo_a", {**jobs_of(earlier.evidence())["ppo_a"], "digest": digest(directory)})
    assert found_by(root) is None


def test_own_data_is_taken_over_while_unchanged_else_the_session_says_what_changed(root, earlier):
    known = jobs_of(earlier.evidence())["ppo_a"]
    earlier.write_job("ppo_a", {**known, "inputs": {"/own/train": "1", "/own/score.py": "2"}})
    session = make(root, "20261122T100000Z")
    case = suites.of_recorded(session.evidence()["begin"]["suite"]).case("ppo")
    run = ScheduledRun("ppo", "A", 100, 1)
    b = job(root, "ppo-0.9.1-v1-1", "b", TREES["B"])

    def taken(facts, **inputs):
        session.write_job("ppo_b", {**b, "artefacts": facts, "inputs": {"/own/train": "1", **inputs}})
        found = reuse.earlier_run_of_a(root, session, case, run)
        return found is not None, reuse.changed_inputs(root, session, case, run)

    same = {"model sha256": "m", "data sha256": "d"}
    assert taken(same, **{"/own/score.py": "2"}) == (True, None)
    other = {**same, "reward_fn sha256": "r"}
    assert taken(other, **{"/own/score.py": "3"}) == (False, ("known", ["/own/score.py"]))
    earlier.write_job("ppo_a", {**known, "inputs": {"/own/train": None}})
    assert taken(same) == (False, ("known", ["/own/train"]))
    earlier.write_job("ppo_a", {**known, "image": "sha256:2", "inputs": {"/own/train": "0"}})
    assert taken(same) == (False, None)


def test_a_directory_that_is_gone_is_not(root, earlier):
    shutil.rmtree(root.jobs / "known")
    assert found_by(root) is None


def test_a_case_whose_speed_is_judged_runs_a_itself(root, earlier):
    assert found_by(root, "cases: {ppo: {workload: ppo, speed: true}}") is None


def test_where_memory_is_judged_a_run_of_a_must_have_recorded_its_own(root, earlier):
    assert found_by(root, MEMORY) is None
    known = remember(jobs_of(earlier.evidence())["ppo_a"])
    rewrite(Path(known["job_dir"]), timed)
    earlier.write_job("ppo_a", {**known, "digest": digest(Path(known["job_dir"]))})
    assert found_by(root, MEMORY, "20261122T110000Z")[1]["submission_id"] == "known"


def test_a_run_whose_evidence_lacks_something_is_not_taken_over(root, earlier):
    known = jobs_of(earlier.evidence())["ppo_a"]
    earlier.write_job("ppo_a", {key: value for key, value in known.items() if key != "artefacts"})
    assert found_by(root) is None


def test_the_same_run_is_not_taken_twice(root, earlier):
    session = make(root)
    session.write_job("ppo_b", job(root, "ppo-0.9.1-v1-1", "b", TREES["B"]))
    session.write_job("ppo_a", {**jobs_of(earlier.evidence())["ppo_a"], "reused_from": earlier.path.name})
    case = suites.of_recorded(session.evidence()["begin"]["suite"]).case("ppo")
    assert reuse.earlier_run_of_a(root, session, case, ScheduledRun("ppo", "A", 100, 1, kind="again")) is None
