"""A submitter that is killed at each of its steps: nothing half-made looks complete, and the user can submit again."""

import os
import signal
import sys
import urllib.request

import pytest

from verl_regress.base.layout import JobDir
from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs.status import Status, status_of

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Killer:
    """An audit hook that sends SIGKILL to its own process right before step N: a change under jobs/, or a request to
    Ray.

    After `state/submitted` is written only the first step counts: Ray's answer is recorded.
    """

    def __init__(self, jobs, number):
        self.jobs, self.left, self.is_recorded = str(jobs), number, False

    def __call__(self, event, args):
        if not self._is_step(event, args) or self.left < 0:
            return
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left = -1 if self.is_recorded else self.left - 1
        self.is_recorded = event == "os.rename" and str(args[1]).endswith("/state/submitted")

    def _is_step(self, event, args):
        if event == "socket.connect":
            return True
        if event == "open" and not args[2] & WRITING:
            return False
        return event in ("open", "os.mkdir", "os.rename") and str(args[0]).startswith(self.jobs)


@pytest.fixture
def killed(submit, ray, sdk, shared):
    """Submits as `name` in a separate process, which is killed right before step `number`; False if it has fewer steps."""

    def on_submit(submission_id, **_):
        urllib.request.urlopen(urllib.request.Request(f"{ray.address}/submit/{submission_id}", method="POST")).close()

    sdk.on_submit = on_submit

    def killed(name, number):
        ray.answers[f"/submit/{name}"] = (200, lambda: ray.knows({"submission_id": name, "status": "PENDING"}) or {})
        pid = os.fork()
        if pid == 0:
            try:
                sys.addaudithook(Killer(shared.jobs, number))
                os._exit(submit(f"SUBMISSION_ID={name}").status)
            finally:
                os._exit(99)
        _, status = os.waitpid(pid, 0)
        assert status in (0, signal.SIGKILL)
        return status == signal.SIGKILL

    return killed


@pytest.mark.slow
@pytest.mark.longest
def test_a_submitter_that_is_killed_at_every_step(killed, submit, run, ray, shared):
    assert not killed("whole", 10_000)
    whole = {path.name for path in (shared.jobs / "whole" / "config").iterdir()}
    seen, number = set(), 0
    while killed(f"job-{number}", number):
        seen.add(_state_after(f"job-{number}", whole, submit, run, ray, shared))
        number += 1
    assert seen == {"nothing", "half-made", "not in Ray", "accepted", "recorded"}
    assert number > 20
    assert not killed("a-new-one", 10_000)


def _state_after(name, whole, submit, run, ray, shared):
    """Check what the killed submission of `name` left; returns how far it came."""
    job, details = JobDir(shared.jobs / name), RayApi(ray.address).job(name)
    if not job.path.exists():
        assert details is None
        assert submit(f"SUBMISSION_ID={name}").status == 0
        return "nothing"
    is_whole = job.config.is_dir() and {path.name for path in job.config.iterdir()} >= whole
    judgement = status_of(job, details)
    _is_refused(submit, name, job)
    if details is not None:
        assert (judgement.status, is_whole) == (Status.PENDING, True)
        return "accepted" if job.read_state("submitted") is None else "recorded"
    assert judgement.status is Status.NOT_SUBMITTED
    assert judgement.reason == "the submitter has not reached Ray, or ended before it did"
    assert job.read_state("submitted") is None
    assert run("wait", name, "--deadlines=1,1,1,1").status == 2
    return "not in Ray" if is_whole else "half-made"


def _is_refused(submit, name, job):
    """The same id again: refused, with the cure, and nothing is changed."""
    assert submit(f"SUBMISSION_ID={name}").is_refusal(
        f"submission_id '{name}' is taken: {job.path} exists and is never reused; give another one, or leave it out to get a generated one."
    )
