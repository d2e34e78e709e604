"""Reports in the job directory: one file per kind and process, replaced whole."""

import json
import os

import job_report
from verl_regress.base import processes


def test_without_a_job_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv("VERL_REGRESS_JOB_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    job_report.write("training_actor", {"rank": 0})
    assert list(tmp_path.iterdir()) == []


def test_a_report_is_replaced_whole_and_leaves_nothing_unfinished(tmp_path, monkeypatch):
    monkeypatch.setenv("VERL_REGRESS_JOB_DIR", str(tmp_path))
    monkeypatch.setenv("VERL_REGRESS_NODE", "worker-7")
    job_report.write("rollout_weights", {"updates": [1, 2]})
    job_report.write("rollout_weights", {"updates": [3]})
    reports = list((tmp_path / "state" / "reports").iterdir())
    assert [report.name for report in reports] == [f"rollout_weights-worker-7-{os.getpid()}.json"]
    own = {
        "node": "worker-7",
        "pid": os.getpid(),
        "boot": job_report.boot(),
        "started": processes.table()[os.getpid()].started,
    }
    assert json.loads(reports[0].read_text()) == {**own, "updates": [3]}
