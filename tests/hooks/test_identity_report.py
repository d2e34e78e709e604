"""When a process reports the verl that it has loaded, and what the report says, in the test's own process."""

import hashlib
import json
import os
import socket
import sys
import types

import pytest

import identity
import job_report


class Ray:
    """A Ray with the ids that the test sets."""

    def __init__(self, job_id=None, actor_id=None):
        self.job_id, self.actor_id, self.is_up = job_id, actor_id, True

    def is_initialized(self):
        return self.is_up

    def get_runtime_context(self):
        return types.SimpleNamespace(get_job_id=lambda: self.job_id, get_actor_id=lambda: self.actor_id)


@pytest.fixture(autouse=True)
def job(tmp_path, monkeypatch):
    monkeypatch.setenv(job_report.JOB_DIR_VARIABLE, str(tmp_path))
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    return tmp_path


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads a module of that name from a file with that text; returns the file."""

    def loaded(name, text="one = 1\n"):
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        module = types.ModuleType(name)
        module.__spec__ = types.SimpleNamespace(name=name, origin=str(file))
        monkeypatch.setitem(sys.modules, name, module)
        return file

    return loaded


@pytest.fixture
def ray(monkeypatch):
    """Puts a Ray with these ids where the process has imported it."""

    def imported(**ids):
        monkeypatch.setitem(sys.modules, "ray", Ray(**ids))
        return sys.modules["ray"]

    return imported


@pytest.fixture
def reported(job):
    """The report; None without one. It is read once."""

    def read():
        for path in job.glob("state/reports/*"):
            text = path.read_text()
            path.unlink()
            return json.loads(text)
        return None

    return read


def of(file):
    return {"file": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


# --- what a report says


def test_a_report_names_the_process_its_command_and_each_module_of_verl(load, ray, reported, monkeypatch):
    ray(job_id="02", actor_id="ab12")
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "x" * 300])
    late, first = load("verl.late"), load("verl")
    identity.Reporter().report()
    report = reported()
    assert report == {
        "node": socket.gethostname(),
        "pid": os.getpid(),
        "boot": report["boot"],
        "started": report["started"],
        "job_id": "02",
        "actor_id": "ab12",
        "command": "python -m " + "x" * 190,
        "modules": {"verl": of(first), "verl.late": of(late)},
    }
    assert list(report["modules"]) == ["verl", "verl.late"]


@pytest.mark.parametrize("name", ["x.verl", "verl_regress_test"])
def test_a_module_of_another_package_is_not_reported(load, reported, name):
    load("verl")
    load(name)
    identity.Reporter().report()
    assert set(reported()["modules"]) == {"verl"}


def test_a_module_whose_file_changes_later_keeps_the_sum_of_what_was_loaded(load, reported):
    reporter = identity.Reporter()
    before = of(load("verl"))
    reporter.report()
    load("verl", "two = 2\n")
    load("verl.late")
    reporter.report()
    assert reported()["modules"]["verl"] == before


# --- when one is written


def test_a_process_without_verl_reports_only_if_it_is_an_actor(ray, reported):
    reporter = identity.Reporter()
    reporter.report()
    assert reported() is None
    imported = ray(job_id="02")
    reporter.report()
    assert reported() is None
    imported.actor_id = "ab12"
    reporter.report()
    report = reported()
    assert (report["job_id"], report["actor_id"], report["modules"]) == ("02", "ab12", {})


def test_a_report_is_written_only_if_it_says_something_new(load, ray, reported):
    reporter = identity.Reporter()
    load("verl")
    reporter.report()
    assert reported() is not None
    reporter.report()
    assert reported() is None
    load("verl.late")
    reporter.report()
    assert set(reported()["modules"]) == {"verl", "verl.late"}
    ray(job_id="02", actor_id="ab12")
    reporter.report()
    assert reported()["actor_id"] == "ab12"
    reporter.report()
    assert reported() is None


class Churning(dict):
    """Modules of which another thread imports more while one looks: a loop over them fails, and so does the first copy."""

    copies = 0

    def items(self):
        raise RuntimeError("dictionary changed size during iteration")

    def copy(self):
        self.copies += 1
        if self.copies == 1:
            raise RuntimeError("dictionary changed size during iteration")
        return dict(super().items())


def test_an_import_in_another_thread_ends_no_report(load, monkeypatch, job):
    load("verl")
    monkeypatch.setattr(identity, "sys", types.SimpleNamespace(modules=Churning(sys.modules), orig_argv=["python3"]))
    identity.Reporter().report()
    [file] = job.glob("state/reports/identity-*.json")
    assert "verl" in json.loads(file.read_text())["modules"]
