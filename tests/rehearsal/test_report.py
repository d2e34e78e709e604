"""Reports in the directory that a variable names: one file per kind and process, replaced whole."""

import json
import os

from verl_rehearsal import report


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv("VERL_REHEARSAL_REPORTS", raising=False)
    monkeypatch.chdir(tmp_path)
    report.write("training_actor", {"rank": 0})
    assert list(tmp_path.iterdir()) == []


def test_a_report_is_replaced_whole_and_leaves_nothing_unfinished(tmp_path, monkeypatch):
    monkeypatch.setenv("VERL_REHEARSAL_REPORTS", str(tmp_path / "run" / "reports"))
    monkeypatch.setattr(report.socket, "gethostname", lambda: "worker-7")
    report.write("rollout_weights", {"updates": [1, 2]})
    report.write("rollout_weights", {"updates": [3]})
    (written,) = (tmp_path / "run" / "reports").iterdir()
    assert written.name == f"rollout_weights-worker-7-{os.getpid()}.json"
    assert json.loads(written.read_text()) == {"updates": [3]}
