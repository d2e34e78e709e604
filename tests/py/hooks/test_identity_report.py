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


class LoopEndedError(Exception):
    """Ends the thread's loop in a test."""


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
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "job_id": "02",
        "actor_id": "ab12",
        "command": "python -m " + "x" * 190,
        "modules": {"verl": of(first), "verl.late": of(late)},
    }
    assert list(report["modules"]) == ["verl", "verl.late"]


def test_a_report_is_named_identity(load, job):
    load("verl")
    identity.Reporter().report()
    assert [path.name.partition("-")[0] for path in job.glob("state/reports/*")] == ["identity"]


def test_a_process_outside_ray_reports_no_ids(load, reported):
    load("verl")
    identity.Reporter().report()
    report = reported()
    assert (report["job_id"], report["actor_id"]) == (None, None)


@pytest.mark.parametrize("name", ["verlx", "x.verl", "xverl.late", "verl_regress_test"])
def test_a_module_of_another_package_is_not_reported(load, reported, name):
    load("verl")
    load(name)
    identity.Reporter().report()
    assert set(reported()["modules"]) == {"verl"}


def test_the_main_module_is_reported_by_the_name_in_its_spec(load, reported, monkeypatch):
    file = load("__main__")
    monkeypatch.setattr(sys.modules["__main__"].__spec__, "name", "verl.trainer.main_ppo")
    identity.Reporter().report()
    assert reported()["modules"] == {"verl.trainer.main_ppo": of(file)}


def test_another_module_is_reported_by_the_name_that_it_has_in_the_process(load, reported, monkeypatch):
    file = load("verl.alias")
    monkeypatch.setattr(sys.modules["verl.alias"].__spec__, "name", "other")
    identity.Reporter().report()
    assert reported()["modules"] == {"verl.alias": of(file)}


@pytest.mark.parametrize("name", ["__main__", "verl_of_nothing"])
def test_what_has_no_spec_and_no_name_of_verl_is_passed_over(load, reported, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace())
    load("verl")
    identity.Reporter().report()
    assert set(reported()["modules"]) == {"verl"}


@pytest.mark.parametrize("spec", [{}, {"__spec__": None}, {"__spec__": types.SimpleNamespace(origin=None)}])
def test_a_module_without_an_origin_is_reported_by_its_file(load, reported, monkeypatch, spec):
    file = load("verl")
    monkeypatch.setitem(sys.modules, "verl", types.SimpleNamespace(__file__=str(file), **spec))
    identity.Reporter().report()
    assert reported()["modules"] == {"verl": of(file)}


def test_the_origin_counts_where_a_module_names_another_file(load, reported):
    file, other = load("verl"), load("other")
    sys.modules["verl"].__file__ = str(other)
    identity.Reporter().report()
    assert reported()["modules"] == {"verl": of(file)}


def test_a_module_without_a_file_is_reported_without_one(reported, monkeypatch):
    monkeypatch.setitem(sys.modules, "verl", types.SimpleNamespace())
    identity.Reporter().report()
    assert reported()["modules"] == {"verl": {"file": None, "sha256": None}}


def test_a_file_that_cannot_be_read_is_reported_without_a_sum(load, reported):
    file = load("verl")
    file.unlink()
    identity.Reporter().report()
    assert reported()["modules"] == {"verl": {"file": str(file), "sha256": None}}


def test_a_module_whose_file_changes_later_keeps_the_sum_of_the_bytes_that_it_was_loaded_from(load, reported):
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


def test_the_ids_are_kept_after_ray_shut_down(load, ray, reported):
    reporter = identity.Reporter()
    imported = ray(job_id="02", actor_id="ab12")
    reporter.report()
    imported.is_up = False
    load("verl")
    reporter.report()
    report = reported()
    assert (report["job_id"], report["actor_id"]) == ("02", "ab12")


def test_a_ray_that_is_still_being_imported_has_no_ids(load, reported, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace())
    load("verl")
    identity.Reporter().report()
    assert reported()["job_id"] is None


def test_a_fork_of_the_process_reports_nothing(load, reported, monkeypatch):
    load("verl")
    reporter, pid = identity.Reporter(), os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    reporter.report()
    assert reported() is None


def test_the_thread_reports_at_once_and_then_when_no_more_modules_come_in(monkeypatch):
    reports, waited = [], []
    # Before the checks: nothing; a module; a module; nothing; nothing.
    new = iter(["", "verl.a", "verl.b", "", ""])

    def sleep(seconds):
        waited.append((seconds, len(reports)))
        name = next(new, None)
        if name is None:
            raise LoopEndedError
        if name:
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))

    reporter = identity.Reporter()

    def report():
        reports.append(None)
        reporter._reported = ()

    monkeypatch.setattr(reporter, "report", report)
    monkeypatch.setattr(identity.time, "sleep", sleep)
    with pytest.raises(LoopEndedError):
        reporter.run()
    assert waited == [(0.2, 1), (0.2, 2), (0.2, 2), (0.2, 2), (0.2, 3), (0.2, 4)]


def test_the_thread_tries_each_time_until_there_is_something_to_report(monkeypatch):
    reports, new = [], iter(["other.a", "other.b"])

    def sleep(_):
        name = next(new, None)
        if name is None:
            raise LoopEndedError
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))

    reporter = identity.Reporter()
    monkeypatch.setattr(reporter, "report", lambda: reports.append(None))
    monkeypatch.setattr(identity.time, "sleep", sleep)
    with pytest.raises(LoopEndedError):
        reporter.run()
    assert len(reports) == 3


# --- how it starts


@pytest.mark.parametrize("variable", ["", None])
def test_outside_a_job_nothing_waits_for_an_import(monkeypatch, variable):
    monkeypatch.delenv(job_report.JOB_DIR_VARIABLE)
    if variable is not None:
        monkeypatch.setenv(job_report.JOB_DIR_VARIABLE, variable)
    calls = []
    monkeypatch.setattr(identity, "before_import", lambda *call: calls.append(call))
    identity.install()
    assert calls == []


def test_in_a_job_one_thread_and_the_end_of_the_process_report(load, reported, monkeypatch):
    at_the_end, threads, calls = [], [], []
    monkeypatch.setattr(identity, "before_import", lambda names, then: calls.append((names, then)))
    monkeypatch.setattr(identity.atexit, "register", at_the_end.append)
    monkeypatch.setattr(
        identity.threading,
        "Thread",
        lambda **words: types.SimpleNamespace(start=lambda: threads.append(words)),
    )
    identity.install()
    ((names, start),) = calls
    assert names == ("ray", "verl")
    assert threads == []
    start()
    ((thread,), (report,)) = threads, at_the_end
    assert thread == {"target": report.__self__.run, "name": "verl-regress-identity", "daemon": True}
    load("verl")
    report()
    assert set(reported()["modules"]) == {"verl"}
