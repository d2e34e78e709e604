import json
import subprocess

import pytest

from verl_regress.doctor import allreduce


def ran(monkeypatch, status, out="", err=""):
    calls = []

    def run(words, **_options):
        calls.append(words)
        return subprocess.CompletedProcess(words, status, out, err)

    monkeypatch.setattr(subprocess, "run", run)
    return allreduce.run(1, ["10.0.0.2", "10.0.0.3"], "gloo"), calls[0]


def test_it_is_a_process_of_its_own_with_its_rank_and_the_first_workers_address(monkeypatch):
    out = "ready\nNCCL version 2.28.3\n" + json.dumps({"all": 500.0, "pairs": {"0": 400.0}})
    measured, words = ran(monkeypatch, 0, out)
    assert measured == {"all": 500.0, "pairs": {"0": 400.0}}
    assert words[3:] == ["1", "2", "10.0.0.2", "gloo"]
    compile(words[2], "sent", "exec")


def test_failure_is_torchs_last_line(monkeypatch):
    assert ran(monkeypatch, 1, err="Traceback:\nConnection refused\n")[0] == {"error": "Connection refused"}
    assert ran(monkeypatch, -11)[0] == {"error": "exit status -11"}


@pytest.mark.parametrize(("out", "what"), [(b"ready\n", "error"), (None, "late")])
def test_process_that_hangs_is_a_failure_unless_torch_was_still_imported(monkeypatch, out, what):
    def run(words, timeout, **_options):
        raise subprocess.TimeoutExpired(words, timeout, output=out)

    monkeypatch.setattr(subprocess, "run", run)
    assert set(allreduce.run(0, ["10.0.0.2"], "gloo")) == {what}
