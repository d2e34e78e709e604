"""The root exception of a job by its processes' records and by its driver's log, the step, and the words for both."""

import json
import random

import pytest
from shared_fixtures import write

from verl_regress.jobs import failure

PLAN = {"code_path": "/private/common/code/verl/codeA", "shared_root": "/private"}
ROOTS = {"/private/common/code/verl/codeA/": "", "/private/user/code/": "user/code/"}
DRIVER = 'Traceback (most recent call last):\n  File "/private/common/code/verl/codeA/verl/trainer/main_ppo.py", line 45, in main\n    run_ppo(config)\n'
TASK = (
    "ray::TaskRunner.run() (pid=7, ip=10.0.0.3, actor_id=29bc, repr=<main_ppo.TaskRunner object at 0x7f>)\n"
    '  File "/private/common/code/verl/codeA/verl/trainer/ppo/ray_trainer.py", line 412, in fit\n'
    "    self.step()\n"
    "    ^^^^^^^^^^^\n"
)
THROUGH_RAY = DRIVER + "ray.exceptions.RayTaskError(ValueError): \x1b[36m" + TASK.replace("run()", "run()\x1b[39m")
RAISED = THROUGH_RAY + "ValueError: it is so\n"
CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def raised(kind, message, link=None, file="/usr/lib/x.py", came_from_ray=False):
    return {"type": kind, "message": message, "frames": [[file, 3]], "link": link, "came_from_ray": came_from_ray}


def recorded(job, *records):
    """Each record is (process, time, chain); process 1 is the driver."""
    for process, time, chain in records:
        file = job.reports / f"exceptions-w-{process}.json"
        before = json.loads(file.read_text())["exceptions"] if file.exists() else []
        record = {"time": time, "is_driver": process == 1, "chain": chain, "lines": [f"{process} said"]}
        write(file, json.dumps({"exceptions": [*before, record]}))
    found, _ = failure.recorded(job, ROOTS)
    return found and (found["type"], found["message"], found["also"])


KEY, VALUE = raised("KeyError", "'x'"), raised("ValueError", "it is so", "cause")


def test_a_malformed_record_is_a_note_and_the_log_is_shown(make_job, capsys):
    job = make_job()
    write(job.reports / "exceptions-w-1.json", '{"exceptions": [{"is_driver": true}]}')
    write(job.driver_log, RAISED)
    assert failure.shown(job)[-1] == "ValueError: it is so"
    assert failure.root_cause(job, PLAN, 1)["message"] == "it is so"
    note = f"the recorded exceptions of {job.ray_id} cannot be read: KeyError: 'time'\n"
    assert capsys.readouterr().err.count(note) == 2


@pytest.mark.parametrize(
    ("chain", "found"),
    [
        ([KEY], ("KeyError", "'x'", None)),
        ([KEY, VALUE], ("KeyError", "'x'", "which became ValueError: it is so")),
        # transformers looks in a table: the handler's own exception says more
        ([KEY, {**VALUE, "link": "context"}], ("ValueError", "it is so", "while it handled KeyError: 'x'")),
        ([KEY, raised("hydra.errors.InstantiationException", "Error in call", "cause")], ("KeyError", "'x'", None)),
        ([KEY, raised("SystemExit", "1", "context")], ("KeyError", "'x'", None)),
        ([raised("RuntimeError", "a\n\tb\x07")], ("RuntimeError", "a b\\x07", None)),
        ([raised("ValueError", "x" * 5000)], ("ValueError", "x" * 299 + "…", None)),
        (
            [raised("ray.exceptions.ActorDiedError", "The actor died unexpectedly.\n\tclass_name: a.WorkerDict\n\tpid: 12")],
            ("ray.exceptions.ActorDiedError", "The actor died unexpectedly (WorkerDict)", None),
        ),
    ],
)  # fmt: skip
def test_the_root_of_a_chain(make_job, chain, found):
    assert recorded(make_job(), (1, 100.0, chain)) == found


def test_an_exception_is_found_where_it_was_raised_however_many_processes_it_passed(make_job):
    passed = raised("a.ValueError", "it is so", came_from_ray=True)
    origin = [KEY, raised("a.ValueError", "it is so", "cause")]
    records = [(3, 10.0, origin), (2, 99.0, origin), (4, 99.5, [raised("OSError", "no")]), (1, 100.0, [passed])]
    assert recorded(make_job(), *records) == ("KeyError", "'x'", "which became ValueError: it is so")
    assert recorded(make_job("alone"), (1, 100.0, [passed])) == ("a.ValueError", "it is so", None)


@pytest.mark.parametrize("words", ["[gloo] Connection closed by peer [10.0.0.2]:3", "ActorDiedError: The actor died"])
def test_a_driver_that_only_saw_a_process_go_is_not_the_root(make_job, words):
    symptom = [raised("RuntimeError", words)]
    others = [(2, 39.0, [VALUE]), (3, 90.0, symptom), (4, 91.0, [KEY]), (5, 92.0, [VALUE])]
    assert recorded(make_job(), *others, (1, 100.0, symptom)) == ("KeyError", "'x'", None)
    assert recorded(make_job("alone"), others[0], (1, 100.0, symptom)) == ("RuntimeError", words, None)


def test_the_location_is_the_deepest_frame_in_verl_or_the_users_code(make_job):
    job, mine = make_job(), raised("KeyError", "'x'", file="/private/user/code/my fn.py")
    mine["frames"].append(["/usr/lib/python3.11/x.py", 9])
    recorded(job, (1, 100.0, [mine, VALUE]))
    assert failure.recorded(job, ROOTS)[0]["where"] == "user/code/my fn.py:3"


def found_in(log):
    """Type and message of the result."""
    one = failure.in_log(log)
    return one and (one["type"], one["message"])


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (RAISED, ("ValueError", "it is so")),
        (
            DRIVER + "ValueError: first\n" + CONTEXT + DRIVER + "KeyError: last\n\x1b[36m(WorkerDict pid=1, ip=10.0.0.2)\x1b[0m OSError: not this\n",
            ("KeyError", "last"),
        ),
        (RAISED[60:], ("ValueError", "it is so")),
        ("MVP_PRECHECK_MARKER: codeA\nx: error: unrecognized arguments: --z\nverl-regress: later\n", ("", "x: error: unrecognized arguments: --z")),
        ("starts\nhydra.errors.MissingConfigException: Cannot find primary config 'x'\n", ("hydra.errors.MissingConfigException", "Cannot find primary config 'x'")),
        ("MVP_PRECHECK_MARKER: codeA\n(WorkerDict pid=3) fine\n", None),
        ("", None),
    ],
)  # fmt: skip
def test_without_a_record_the_logs_last_exception_is_found(log, expected):
    assert found_in(log) == expected


def test_no_bytes_make_it_raise(make_job):
    """Random bytes, and real lines in any order, cut at any byte."""
    chance, job = random.Random(9), make_job()
    pieces = [line.encode() + b"\n" for line in (RAISED + CONTEXT).splitlines()]
    pieces += [b"\xff\xfe\x00\r", b"\x1b[", b"ValueError", b"ValueError:\n", b'  File "', b"(a pid=1) "]
    for _ in range(300):
        log = b"".join(chance.choices(pieces, k=chance.randrange(12))) + chance.randbytes(chance.randrange(40))
        job.driver_log.write_bytes(log[chance.randrange(len(log) + 1) :])
        one = failure.root_cause(job, PLAN, 1)
        assert one is None or (len(one["message"]) <= 300 and (one["message"] + one["type"]).isprintable())


def failed(job, log=RAISED, code=1):
    write(job.driver_log, log)
    return failure.root_cause(job, PLAN, code)


def test_the_fields_that_are_recorded(make_job):
    assert failed(make_job(), THROUGH_RAY + "RuntimeError: CUDA out of memory. Tried\n") == {
        "type": "RuntimeError",
        "message": "CUDA out of memory. Tried",
        "where": None,
        "also": None,
        "step": None,
        "hint": "a GPU has too little memory: lower the micro batch sizes per GPU, the lengths, or rollout.gpu_memory_utilization",
    }


@pytest.mark.parametrize("code", [-9, -15])
def test_a_trainer_that_was_killed_raised_nothing(make_job, code):
    assert failed(make_job(), code=code) is None


BAR = "\x1b[36m(TaskRunner pid=7)\x1b[0m Training Progress:   0%|          | 0/2 [00:00<?, ?it/s]\n"


@pytest.mark.parametrize(
    ("log", "steps", "parent", "step"),
    [
        ("", [], 0, None),  # it had not started
        (BAR, [], 0, 1),
        ("Epoch 1/1:   0%|   | 0/32 [00:00<?, ?it/s]\r", [], 0, 1),
        (BAR, [1, 2, 3], 0, 4),
        ("", [], 10, None),  # resumed, and not started again
        (BAR, [], 10, 11),
        (BAR, [11], 10, 12),
        (BAR + "Total training steps: 3\n", [1, 2, 3], 0, 3),  # after the last step
    ],
)
def test_the_step_that_was_running(make_job, log, steps, parent, step):
    job = make_job()
    if steps:
        write(job.metrics, "".join(f'{{"step": {number}, "data": {{"actor/lr": 1}}}}\n' for number in steps))
    resolved = json.loads((job.config / "resolved.json").read_text()) | {
        "parent": {"attempt": 1, "checkpoint": "c", "step": parent},
    }
    write(job.config / "resolved.json", json.dumps(resolved))
    assert failed(job, log + THROUGH_RAY + "ValueError: it is so\n")["step"] == step


def cause(**but):
    return {
        "type": "a.b.ValueError",
        "message": "it is so",
        "where": "verl/x.py:3",
        "also": None,
        "step": 2,
        "hint": None,
        **but,
    }


@pytest.mark.parametrize(
    ("one", "sentence"),
    [
        (cause(), "ValueError: it is so (verl/x.py:3, at step 2)"),
        (cause(step=None), "ValueError: it is so (verl/x.py:3, before the first step)"),
        (cause(where=None), "ValueError: it is so (at step 2)"),
        (cause(message=""), "ValueError (verl/x.py:3, at step 2)"),
        (cause(type="", where=None, step=None), "it is so (before the first step)"),
        (
            cause(also="which became OSError: no"),
            "ValueError: it is so, which became OSError: no (verl/x.py:3, at step 2)",
        ),
    ],
)
def test_the_sentence(one, sentence):
    assert failure.sentence(one) == sentence


def test_a_table_shows_location_and_step_in_full():
    short = failure.sentence(cause(message="x" * 300), 90)
    assert short == f"ValueError: {'x' * 89}… (verl/x.py:3, at step 2)"


def test_the_lines_that_are_shown_are_those_of_the_record_or_the_logs_last_ones(make_job):
    job = make_job()
    assert failure.shown(job) == []
    write(job.driver_log, "".join(f"\x1b[36mline\t{number}\x1b[0m\x07\n" for number in range(100)))
    assert failure.shown(job) == [f"line    {number}\\x07" for number in range(60, 100)]
    recorded(job, (1, 100.0, [KEY]))
    assert failure.shown(job) == ["1 said"]
