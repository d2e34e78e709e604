"""Following a job: a Ray that answers by script, and a clock that only moves when the follower sleeps."""

import json
import os

import pytest

from verl_regress.base.errors import Exit
from verl_regress.cluster.ray_api import Node, Unreachable
from verl_regress.jobs import debug, watch
from verl_regress.jobs.status import Status, hold_launcher_lock, submission_of
from verl_regress.jobs.watch import Deadlines

GONE = object()
DEADLINES = Deadlines(pending=10, start=30, stall=20, unreachable=5)


class Clock:
    """A clock, and what happens at which second."""

    def __init__(self):
        self.now, self.then = 0.0, {}

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        assert self.now < 200, "it follows for ever"
        self.now += seconds
        self.then.pop(round(self.now), lambda: None)()


class ScriptedRay:
    """Answers from `script` for each second; after its end it repeats the last answer."""

    address = "http://ray:1"

    def __init__(self, script, clock):
        self.script, self.clock = script, clock

    def job(self, _submission_id):
        said = self.script[min(int(self.clock.now), len(self.script) - 1)]
        if said is GONE:
            raise Unreachable("http://ray:1", "no route")
        driver = None if said == "PENDING" else {"node_ip_address": "10.0.0.2"}
        return said and {"status": said, "message": "bad news", "driver_info": driver}

    def nodes(self):
        return [
            Node("head", "", "10.0.0.1", True, True, {}),
            Node("worker-0", "", "10.0.0.2", False, True, {"CPU": 64.0, "worker_node": 0.0}),
            Node("worker-1", "", "10.0.0.3", False, False, {"CPU": 64.0}),
        ]


@pytest.fixture
def follow(make_job, monkeypatch, capsys):
    clock = Clock()
    monkeypatch.setattr(watch, "time", clock)
    bundles = []
    monkeypatch.setattr(debug, "attempt", lambda _job, _address, phase, *, logs=False: bundles.append((phase, logs)))

    def follow(script, job=None, then=None):
        job = job or make_job()
        clock.then = {second: lambda act=act: act(job) for second, act in (then or {}).items()}
        ended = watch.follow(job, ScriptedRay(script, clock), DEADLINES)
        captured = capsys.readouterr()
        assert captured.out == ""
        lines = [line.strip() for line in captured.err.splitlines()]
        follow.phases = [line for line in lines if line.startswith("…")]
        return ended, [line for line in lines if not line.startswith("…")]

    follow.clock, follow.bundles = clock, bundles
    return follow


def started(job):
    job.write_state("started", {"node_ip": "10.0.0.2"})


def ends(code, reason="the trainer ended"):
    return lambda job: job.write_state("ended", {"exit_code": code, "reason": reason})


def step(number, **data):
    def act(job):
        with job.metrics.open("a") as metrics:
            metrics.write(json.dumps({"step": number, "data": {"timing_s/step": 4.21, **data}}) + "\n")

    return act


def test_a_job_that_succeeds_has_a_line_a_step_and_its_facts_at_the_end(follow, make_job):
    job = make_job()
    job.driver_log.write_text(
        "MVP_PRECHECK_VERL_FILE: /snapshot/verl/__init__.py\nMVP_PRECHECK_MARKER: codeA\n"
        "(TaskRunner pid=7) Total training steps: 2\n"
    )
    read = {"/own/train.parquet": "1" * 64, "/outside/test.parquet": None}
    job.write_state("inputs", {"inputs": [{"path": path, "sha256": sha256} for path, sha256 in read.items()]})
    for name in ("global_step_2", "global_step_10", "global_step_2.tmp"):
        (job.checkpoints / name).mkdir()
    ended, lines = follow(
        ["PENDING", "RUNNING", "RUNNING", "RUNNING", "SUCCEEDED"],
        job,
        {1: started, 2: step(1, **{"critic/score/mean": 0.25}), 3: step(2, **{"critic/score/mean": 0.5}), 4: ends(0)},
    )
    assert ended is Exit.SUCCEEDED
    assert lines == [
        "job is PENDING",
        "job is RUNNING",
        "step 1 of 2, 4.2 s a step, critic/score/mean 0.250",
        "step 2 of 2, 4.2 s a step, critic/score/mean 0.500",
        "job is SUCCEEDED",
        "MVP_PRECHECK_VERL_FILE: /snapshot/verl/__init__.py",
        "MVP_PRECHECK_MARKER: codeA",
        "driver_info.node_ip_address: 10.0.0.2",
        "2 of 2 training steps, checkpoints/global_step_2, checkpoints/global_step_10",
        "read /own/train.parquet (sha256 1111111111111111)",
        "read /outside/test.parquet (sha256 -)",
        f"outputs: {job.path}",
        "ok      job SUCCEEDED (the trainer ended)",
    ]


@pytest.mark.parametrize(("steps", "announced"), [([1], 2), ([], 2), ([1, 2], 2), ([1, 2, 3], 2), ([1], None)])
def test_steps_that_are_missing_at_the_end_of_a_job_that_succeeds_are_a_warning(follow, make_job, steps, announced):
    job = make_job()
    job.driver_log.write_text(f"Total training steps: {announced}\n" if announced else "the trainer says nothing\n")
    for number in steps:
        step(number)(job)
    ended, lines = follow(["RUNNING", "SUCCEEDED"], job, then={1: ends(0)})
    assert (ended, lines[-1]) == (Exit.SUCCEEDED, "ok      job SUCCEEDED (the trainer ended)")
    trained = "1 of 2 steps" if steps else "none of the 2 steps"
    assert [line for line in lines if line.startswith("warning")] == [
        f"warning job trained {trained} (1 to 2): its data ended before (raise trainer.total_epochs), or its metrics could not be written "
        "(is the disk full?)."
    ] * (announced is not None and len(steps) < announced)


def test_a_run_that_is_worth_nothing_says_so_in_its_last_lines(follow, make_job):
    job = make_job()
    for number in (1, 2):
        step(number, **{"critic/score/min": 0.0, "critic/score/max": 0.0})(job)
    ended, lines = follow(["RUNNING", "SUCCEEDED"], job, then={1: ends(0)})
    assert (ended, lines[-2]) == (Exit.SUCCEEDED, "warning job: every reward is 0 at all 2 steps")


def last(sentence):
    return f"error   {sentence}"


@pytest.mark.parametrize(
    ("script", "then", "ended", "sentence"),
    [
        (
            ["RUNNING", "RUNNING", "FAILED"],
            {1: started, 2: ends(7, "the trainer ended with exit status 7")},
            Exit.JOB_FAILED,
            "job FAILED (the trainer ended with exit status 7): read 'make logs JOB=job'.",
        ),
        (
            ["RUNNING", "RUNNING", "STOPPED"],
            {1: ends(-15, "the trainer was ended by SIGTERM")},  # a second before Ray says why
            Exit.STOPPED,
            "job STOPPED (bad news): read 'make logs JOB=job'.",
        ),
        (
            ["RUNNING", "RUNNING", "FAILED", "FAILED"],
            {1: started},
            Exit.LOST,
            "job LOST (the launcher recorded no end, Ray says FAILED: bad news): read 'make logs JOB=job'.",
        ),
        (
            ["RUNNING", None, None],
            {1: started},
            Exit.LOST,
            "job LOST (the job recorded no end, and Ray has forgotten it: its head was restarted, or it was "
            "deleted there): read 'make logs JOB=job'.",
        ),
    ],
)
def test_a_job_that_ends_otherwise_and_rays_answer_is_recorded(follow, make_job, script, then, ended, sentence):
    job = make_job()
    found, lines = follow(script, job, then)
    assert (found, lines[-1]) == (ended, last(sentence))
    assert job.read_state("observed")["status"] == (script[-1] or "RUNNING")
    assert follow.clock.now == len(script) - 1


CAUSE = {
    "type": "ValueError", "message": "it is so", "where": "verl/x.py:3", "also": None, "step": 2, "hint": "do this, or that",
}  # fmt: skip
REASON = "the trainer ended with exit status 1: ValueError: it is so (verl/x.py:3, at step 2)"
LOG = 'MVP_PRECHECK_MARKER: codeA\nTraceback (most recent call last):\n  File "/x.py", line 3, in f\n    f()\nValueError: it is so\n'


def fails(cause, log=LOG):
    def act(job):
        job.driver_log.write_text(log)
        job.write_state("ended", {"exit_code": 1, "reason": REASON, "told_to_stop": False, "cause": cause})

    return act


def test_a_job_that_failed_says_why_then_what_to_do_then_its_log(follow):
    ended, lines = follow(["RUNNING", "FAILED"], then={0: started, 1: fails(CAUSE, LOG[LOG.index("Traceback") :])})
    assert ended is Exit.JOB_FAILED
    assert lines[-6:] == [
        f"error   job FAILED ({REASON}): read 'make logs JOB=job'.",
        "hint: do this, or that",
        "| Traceback (most recent call last):",
        '|   File "/x.py", line 3, in f',
        "|     f()",
        "| ValueError: it is so",
    ]


@pytest.mark.parametrize(
    ("script", "then", "bundles"),
    [
        (["RUNNING", "FAILED"], {0: started, 1: ends(7)}, []),  # the launcher took it
        (["RUNNING", "STOPPED"], {}, []),
        (["RUNNING", "FAILED"], {1: started}, [("lost", True)]),
        (["PENDING", "FAILED"], {}, [("failed", True)]),
        (["PENDING"], {}, [("not-schedulable", False)]),
        (["RUNNING"], {}, [("stalled", True)]),
    ],
)
def test_wait_takes_the_bundle_that_no_launcher_took(follow, script, then, bundles):
    follow(script, then=then)
    assert follow.bundles == bundles


def test_a_job_that_stays_pending(follow):
    ended, lines = follow(["PENDING"])
    assert ended is Exit.NOT_SCHEDULABLE
    assert lines == [
        "job is PENDING",
        last(
            "job got no resources in 10 s (PENDING_TIMEOUT): it asked for {'CPU': 1, 'worker_node': 1}, the nodes have "
            "{'head': {'CPU': 0, 'worker_node': 0}, 'worker-0': {'CPU': 64.0, 'worker_node': 0.0}}; wait for room, or ask "
            "for less (resources)."
        ),
    ]
    assert 10 < follow.clock.now <= 12


@pytest.mark.parametrize(
    ("then", "said", "after"),
    [
        ({15: step(1)}, "no new step for 20 s (STALL_TIMEOUT), after step 1, while working on step 2", 35),
        ({}, "no first step in 30 s (START_TIMEOUT), while starting the trainer, or in its first step", 30),
    ],
)
def test_a_job_without_a_further_step(follow, make_job, then, said, after):
    job = make_job()
    ended, lines = follow(["RUNNING"], job, then={5: started, **then})
    assert ended is Exit.STALLED
    assert lines[-1] == last(
        f"job has made {said}: it still runs and holds its slot: read 'make logs JOB=job' and {job.debug}, or end it with "
        "'make stop JOB=job'."
    )
    assert after < follow.clock.now <= after + 2


def test_a_ray_that_does_not_answer(follow):
    ended, lines = follow(["RUNNING", GONE])
    assert ended is Exit.UNREACHABLE
    assert lines == [
        "job is RUNNING",
        "job is UNKNOWN",
        last("Ray has not answered for 5 s (UNREACHABLE_TIMEOUT): the job may run on; see 'make status'."),
    ]
    assert 5 < follow.clock.now <= 7


def test_outages_do_not_hide_a_stall(follow):
    assert follow(["RUNNING", "RUNNING", "RUNNING", GONE] * 20)[0] is Exit.STALLED
    assert 30 < follow.clock.now <= 35


def test_a_job_that_recorded_its_end_needs_no_ray(follow):
    assert follow(["RUNNING", GONE], then={1: ends(0)})[0] is Exit.SUCCEEDED


def test_a_job_that_was_never_submitted(follow, make_job):
    job = make_job(submitted={"accepted": False, "error": "Ray refused the job: no"})
    ended, lines = follow([None], job)
    assert ended is Exit.BAD_INPUT
    assert lines[-1] == last("job NOT_SUBMITTED (never submitted: Ray refused the job: no): read 'make logs JOB=job'.")


@pytest.mark.parametrize(("words", "said"), [([], ""), (["--attached"], "job job\n")])
def test_wait_follows_a_job_by_its_name(run, make_job, ray, monkeypatch, words, said):
    monkeypatch.setattr(watch, "leave_with_the_listener", lambda busy: None)
    job = make_job()
    plans(job, address=ray.address)
    ray.knows({"submission_id": "job", "status": "STOPPED", "message": "by hand"})
    outcome = run("wait", "latest", "--deadlines=1,2,2,3", *words)
    assert (outcome.status, outcome.out) == (4, f"{said}4\n")
    assert outcome.err.endswith("error   job STOPPED (by hand): read 'make logs JOB=job'.\n")


def test_a_submission_that_is_under_way_is_waited_for(follow, make_job):
    job = make_job(submitted=None)
    lock = submission_of(job)
    lock.__enter__()

    def accepted(job):
        job.write_state("submitted", {"accepted": True})
        lock.__exit__(None, None, None)

    # Ray was asked just before it accepted the job, the files were read just after.
    ended, lines = follow([None, None, None, "PENDING", "STOPPED"], job, then={2: accepted})
    assert ended is Exit.STOPPED
    assert lines[:4] == ["job is SUBMITTING", "job is LOST", "job is PENDING", "job is STOPPED"]


def test_a_submitter_that_died_is_not_waited_for(follow, make_job):
    ended, _ = follow([None], make_job(submitted=None))
    assert (ended, follow.clock.now) == (Exit.BAD_INPUT, 1)


def plans(job, **more):
    plan = json.loads((job.config / "resolved.json").read_text())
    (job.config / "resolved.json").write_text(json.dumps(plan | more))


def test_a_job_whose_logger_writes_no_steps_is_judged_by_its_log(follow, make_job):
    job = make_job()
    plans(job, overrides=[{"text": "++trainer.logger=[wandb]", "origin": "OVERRIDES"}])
    grows = {second: lambda job: job.driver_log.open("a").write("a line\n") for second in range(5, 60, 15)}
    ended, lines = follow(["RUNNING"], job, then=grows)
    assert (ended, follow.clock.now) == (Exit.STALLED, 50 + DEADLINES.stall + 1)
    assert lines[-1].startswith(
        "error   job has written nothing (its trainer.logger=[wandb] writes no steps here) for 20 s (STALL_TIMEOUT), after step 0, "
    )


def test_waiting_in_the_queue_is_no_error_however_long_it_takes(follow, make_job):
    """Each new position is printed once; neither the PENDING nor the step deadline runs meanwhile."""
    job = make_job(queued={"reason": "position 2 of 2: behind b"})
    lock = hold_launcher_lock(job)

    def moves_up(job):
        job.write_state("queued", {"reason": "position 1 of 1: behind a (MAX_RUNNING=1)"})

    ended, lines = follow(
        ["PENDING"] * 5 + ["RUNNING"] * 85 + ["SUCCEEDED"],
        job,
        {40: moves_up, 70: lambda job: job.write_state("turn", {}), 90: ends(0)},
    )
    os.close(lock)
    assert ended is Exit.SUCCEEDED
    assert lines[:4] == [
        "job is QUEUED (position 2 of 2: behind b)",
        "job is QUEUED (position 1 of 1: behind a (MAX_RUNNING=1))",
        "job is RUNNING",
        "job is SUCCEEDED",
    ]


def test_between_running_and_the_first_step_no_ten_seconds_are_silent(follow, make_job):
    """Prints changes in state files and log at once; without changes, that the job is still going."""
    job = make_job()
    lock = hold_launcher_lock(job)

    def says(text):
        return lambda job: job.driver_log.open("a").write(f"{text}\n")

    then = {
        4: started,
        7: says("(TaskRunner pid=1) Total training steps: 2"),
        18: step(1),
        20: lambda job: (step(2)(job), ends(0)(job)),
    }
    ended, lines = follow(["RUNNING"] * 20 + ["SUCCEEDED"], job, then)
    os.close(lock)
    assert ended is Exit.SUCCEEDED
    assert follow.phases == [
        "… proving the code that it imports",
        "… starting the trainer, or in its first step",
        "… starting the trainer, or in its first step, 9 s",
    ]
    assert lines[1] == "step 1 of 2, 4.2 s a step"


def test_a_job_that_waits_in_a_breakpoint_is_reported_once_and_never_stalled(follow, make_job, monkeypatch):
    job, where = make_job(), {"now": None}
    monkeypatch.setattr("verl_regress.jobs.status.breakpoint_of", lambda _job: where["now"])
    waits = "waits in a breakpoint (user/code/reward.py:12)"
    then = {1: started, 2: lambda _job: where.update(now=waits), 50: lambda _job: where.update(now=None), 60: ends(0)}
    ended, lines = follow(["RUNNING"] * 60 + ["SUCCEEDED"], job, then)
    assert ended is Exit.SUCCEEDED  # the limit for a stall is 20 s
    assert lines[:3] == [
        "job is RUNNING",
        f"job {waits} and keeps its slot: 'make debugger JOB=job' says how to attach",
        "job has left the breakpoint and continues",
    ]


# --- what a job is doing, from its state files and its steps


@pytest.mark.parametrize(
    ("state", "status", "step", "total", "words"),
    [
        ({}, Status.SUBMITTING, 0, None, "submitting it to Ray"),
        ({}, Status.PENDING, 0, None, "waiting for Ray to start its launcher"),
        ({}, Status.QUEUED, 0, None, "waiting in the queue"),
        ({}, Status.UNKNOWN, 0, None, "waiting for Ray to answer"),
        ({}, Status.RUNNING, 0, None, "starting its launcher"),
        ({}, Status.SUCCEEDED, 0, None, None),
        ({"started": {}}, Status.RUNNING, None, 2, "training"),
        ({"started": {}}, Status.RUNNING, 0, None, "starting the trainer, or in its first step"),
        ({"started": {}}, Status.RUNNING, 0, 2, "starting the trainer, or in its first step"),
        ({"started": {}}, Status.RUNNING, 1, None, "working on step 2"),
        ({"started": {}}, Status.RUNNING, 2, 2, "finishing after the last step"),
    ],
)
def test_what_a_job_is_doing(make_job, state, status, step, total, words):
    assert watch.doing(make_job(**state), status, step, total) == words


def test_the_launchers_own_work(make_job):
    job = make_job()
    lock = hold_launcher_lock(job)
    assert watch.doing(job, Status.RUNNING, 0, None) == "proving the code that it imports"
    job.write_state("ended", {"exit_code": 0, "reason": "the trainer ended"})
    assert watch.doing(job, Status.RUNNING, 0, None) == "taking a debug bundle of its end"
    os.close(lock)
