"""`report`: where a session's report is, and its verdict."""

import json

import pytest
from shared_fixtures import HOOKS, python, write


def session(shared, name, headline="same: B trains as A does (ppo of 1 cases)", is_over=True):
    directory = shared.sessions / name
    (directory / "evidence").mkdir(parents=True)
    if is_over:
        write(directory / "report.json", json.dumps({"status": 0, "headline": headline}))
    return directory


@pytest.fixture
def report(shared):
    """Runs it with nothing but the standard library, as on a host without the cluster."""

    def report(*words):
        argv = ["-S", HOOKS.parent / "run.py", "--shared-root", shared.path, "--shown-root=/mine", "--no-ray"]
        ended = python(*argv, "report", *words)
        return ended.returncode, ended.stdout, ended.stderr

    return report


@pytest.mark.parametrize("words", [(), ("--name=",), ("--name=latest",)])
def test_the_newest_session_that_has_one(shared, report, words):
    session(shared, "20261122T100000Z", "regressed: no")
    session(shared, "20261122T110000Z")
    session(shared, "20261122T120000Z", is_over=False)
    said = "        20261122T120000Z is not over, so it has no report: 'make verify SESSION=20261122T120000Z' continues it\n"
    said += "        20261122T110000Z: same: B trains as A does (ppo of 1 cases)\n"
    assert report(*words) == (0, "/mine/verify/20261122T110000Z/report.html\n", said)


def test_what_has_no_report_is_said(shared, report):
    none = "error   No session in /mine/verify has a report: 'make verify' makes one.\n"
    assert report() == (2, "", none)
    session(shared, "20261122T100000Z", is_over=False)
    going = "20261122T100000Z is not over, so it has no report: 'make verify SESSION=20261122T100000Z' continues it"
    assert report("--name=20261122T100000Z") == (2, "", f"error   {going}.\n")
    assert report() == (2, "", f"        {going}\n{none}")
    unknown = "error   SESSION=x is not a session (20261122T100000Z): name one, or leave it empty for the newest.\n"
    assert report("--name=x") == (2, "", unknown)
