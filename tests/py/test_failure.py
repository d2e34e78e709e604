"""The root exception in a driver's log, for each way in which Ray, Hydra and Python wrap one, and for random bytes."""

import json
import random
import tracemalloc

import pytest
from conftest import write

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
DIED = (
    DRIVER + "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    "\tclass_name: WorkerDict\n\tpid: 12\n"
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR\n"
)
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def found(log):
    return failure.in_log(log.encode() if isinstance(log, str) else log, ROOTS)


def found_in(log):
    """Type, message and location of the result."""
    one = found(log)
    return one and (one.type, one.message, one.where)


VALUE_ERROR = ("ValueError", "it is so", "verl/trainer/ppo/ray_trainer.py:412")


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (THROUGH_RAY + "ValueError: it is so\n", VALUE_ERROR),
        # the driver's own, after Hydra's words and before more output of Ray's workers
        (
            "Error executing job with overrides: ['a=1']\n"
            + DRIVER
            + "ValueError: it is so\n\x1b[36m(WorkerDict pid=1, ip=10.0.0.2)\x1b[0m ValueError: not this\n",
            ("ValueError", "it is so", "verl/trainer/main_ppo.py:45"),
        ),
        # a frame of the user's is deeper than verl's
        (
            THROUGH_RAY
            + '  File "/private/user/code/my fn.py", line 3, in compute_score\n    return 1 / 0\n'
            + '  File "/usr/lib/python3.11/x.py", line 9, in x\n    y\n'
            + "ZeroDivisionError: division by zero\n",
            ("ZeroDivisionError", "division by zero", "user/code/my fn.py:3"),
        ),
        # an actor that failed outside verl: the location is verl's call
        (
            THROUGH_RAY + 'torch.AcceleratorError: ray::W.f() (pid=9)\n  File "/opt/torch/x.py", line 1, in f\n    x\nRuntimeError: no\n',
            ("RuntimeError", "no", "verl/trainer/ppo/ray_trainer.py:412"),
        ),
        # a message of several lines; an exception without a message
        (
            THROUGH_RAY + "RuntimeError: Error(s) in loading state_dict for X:\n\tsize mismatch for a.weight: copying\n",
            ("RuntimeError", "Error(s) in loading state_dict for X: size mismatch for a.weight: copying", VALUE_ERROR[2]),
        ),
        (THROUGH_RAY + "AssertionError\nlast words\n", ("AssertionError", "self.step()", VALUE_ERROR[2])),
        (THROUGH_RAY + "ValueError: " + "x" * 5000 + "\n", ("ValueError", "x" * 299 + "…", VALUE_ERROR[2])),
        (THROUGH_RAY + "ValueError: a\tb\x07\x00c\n", ("ValueError", "a b\\x07\\x00c", VALUE_ERROR[2])),
        # the log starts in the middle of a traceback
        (THROUGH_RAY[60:] + "ValueError: it is so\n", VALUE_ERROR),
        (THROUGH_RAY.partition("(pid")[2] + "ValueError: it is so\n", VALUE_ERROR),
        # syntax errors name the file without a function
        (
            THROUGH_RAY + '  File "/private/common/code/verl/codeA/verl/x.py", line 5\n    def f(:\n          ^\nSyntaxError: invalid syntax\n',
            ("SyntaxError", "invalid syntax", "verl/x.py:5"),
        ),
        # a creation task
        (
            DRIVER + "ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, " + TASK + "KeyError: 'x'\n",
            ("KeyError", "'x'", VALUE_ERROR[2]),
        ),
        # an interrupt or an exit counts for nothing; its cause does
        (DRIVER + "KeyError: 'x'\n" + CONTEXT + DRIVER + "SystemExit: 1\n", ("KeyError", "'x'", "verl/trainer/main_ppo.py:45")),
        # a pool's child: the text between quotes
        (
            'multiprocess.pool.RemoteTraceback: \n"""\n' + THROUGH_RAY[len(DRIVER) :].partition(": ")[2] + 'KeyError: 1\n"""\n' + CAUSE + DRIVER + "KeyError: 1\n",
            ("KeyError", "1", VALUE_ERROR[2]),
        ),
        # tracebacks of a thread and of a destructor end no process, wherever they are
        (
            THROUGH_RAY + "ValueError: it is so\nException ignored in: <function f>\n" + DRIVER + "TypeError: late\n"
            "Exception in thread Thread-1:\n" + DRIVER + "OSError: late\n",
            VALUE_ERROR,
        ),
    ],
)  # fmt: skip
def test_the_root_exception(log, expected):
    assert found_in(log) == expected


def test_the_first_of_a_chain_is_the_root_and_the_last_is_named_too():
    one = found(THROUGH_RAY + "KeyError: 2\n" + CAUSE + TASK.replace("412", "415") + "RuntimeError: no phase\n")
    assert (one.type, one.message, one.where) == ("KeyError", "2", "verl/trainer/ppo/ray_trainer.py:412")
    assert one.also == "which became RuntimeError: no phase"


def test_a_chain_whose_beginning_was_cut_off_gives_what_is_left():
    assert found_in(THROUGH_RAY + CAUSE + TASK.replace("412", "415") + "RuntimeError: no phase\n") == (
        "RuntimeError",
        "no phase",
        "verl/trainer/ppo/ray_trainer.py:415",
    )


def test_an_exception_raised_in_a_handler_is_the_root():
    """A handler's own exception is the root: transformers looks in a table, and its error says more than KeyError does."""
    one = found(THROUGH_RAY + "KeyError: 'qwen9'\n" + CONTEXT + TASK + "ValueError: unknown model type `qwen9`\n")
    assert (one.type, one.message) == ("ValueError", "unknown model type `qwen9`")
    assert one.also == "while it handled KeyError: 'qwen9'"


def prefixed(text, prefix="\x1b[36m(WorkerDict pid=12, ip=10.0.0.2)\x1b[0m "):
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize("symptom", [DIED, DRIVER + "RuntimeError: [gloo] Connection closed by peer [10.0.0.2]:3\n"])
def test_the_actors_own_exception_wins_over_the_drivers_actor_died_error(symptom):
    """Several actors fail alike; Ray prints the line only once, and says that it was repeated."""
    unhandled = (
        "Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): "
        + TASK
        + "MemoryError: no room [repeated 3x across cluster]\n"
    )
    log = prefixed(unhandled) + prefixed(unhandled, "(WorkerDict pid=13) ") + symptom
    assert found_in(log) == ("MemoryError", "no room", VALUE_ERROR[2])
    far = log.replace(symptom, "a line\n" * failure._NEAR + symptom)
    assert found(far).message != "no room"


def test_an_actor_that_died_without_output_is_reported_as_such():
    assert found_in(DIED) == (
        "ray.exceptions.ActorDiedError",
        "The actor died unexpectedly before finishing this task (WorkerDict)",
        "verl/trainer/main_ppo.py:45",
    )


def test_an_actors_traceback_is_used_if_the_driver_has_none():
    assert (
        found_in(
            prefixed(THROUGH_RAY + "ValueError: it is so") + "2026-11-21 23:16:43,888\tINFO worker.py:1691 -- bye\n"
        )
        == VALUE_ERROR
    )


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("MVP_PRECHECK_MARKER: codeA\nusage: x [-h]\nx: error: unrecognized arguments: --z\n", ("", "x: error: unrecognized arguments: --z", None)),
        ("/usr/bin/python3: No module named verl.nothing\n", ("", "/usr/bin/python3: No module named verl.nothing", None)),
        ("Could not override 'a.b'.\nTo append to your config use +a.b=1\n", ("", "Could not override 'a.b'.", None)),
        ("we stop here\n(WorkerDict pid=3) fine\nverl-regress: later\n", ("", "we stop here", None)),
        ("starts\nhydra.errors.MissingConfigException: Cannot find primary config 'x'\n", ("hydra.errors.MissingConfigException", "Cannot find primary config 'x'", None)),
        ("Killed\n", ("", "Killed", None)),
        ("ray init kwargs: {}\n" + prefixed("trains\n" * 20), None),
        ("MVP_PRECHECK_MARKER: codeA\n", None),
        ("", None),
    ],
)  # fmt: skip
def test_a_trainer_without_a_traceback_gives_its_last_lines(log, expected):
    assert found_in(log) == expected


def test_no_bytes_make_it_raise():
    """Random bytes, and real lines in any order, cut at any byte."""
    chance, tried = random.Random(9), 0
    pieces = [line.encode() + b"\n" for line in (THROUGH_RAY + CAUSE + CONTEXT + DIED).splitlines()]
    pieces += [
        b"\xff\xfe\x00\r",
        b"\x1b[",
        b"ValueError",
        b"ValueError:\n",
        b'  File "',
        b"(a pid=1) ",
        prefixed(DIED).encode(),
    ]
    for _ in range(2000):
        log = b"".join(chance.choices(pieces, k=chance.randrange(12))) + chance.randbytes(chance.randrange(40))
        one = found(log[chance.randrange(len(log) + 1) :])
        assert one is None or len(one.message) <= failure._LONGEST_MESSAGE
        assert one is None or (one.message + one.type).isprintable()
        tried += 1
    assert tried == 2000


def failed(job, log=THROUGH_RAY + "ValueError: it is so\n", code=1):
    write(job.driver_log, log)
    return failure.of_job(job, PLAN, code)


def test_a_log_of_100_mb_is_read_at_its_end(make_job):
    job = make_job()
    with job.driver_log.open("wb") as log:
        log.truncate(100 << 20)
        log.seek(0, 2)
        log.write(b"\n" + (THROUGH_RAY + "ValueError: it is so\n").encode())
    tracemalloc.start()
    assert failure.of_job(job, PLAN, 1)["message"] == "it is so"
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 << 20


def test_a_full_tail_of_lines_is_read(make_job):
    job = make_job()
    write(job.driver_log, prefixed(THROUGH_RAY + "ValueError: no\n") * (failure.TAIL_BYTES // 500))
    assert failure.of_job(job, PLAN, 1)["message"] == "no"


def test_the_fields_that_are_recorded(make_job):
    assert failed(make_job(), THROUGH_RAY + "RuntimeError: CUDA out of memory. Tried\n") == {
        "type": "RuntimeError",
        "message": "CUDA out of memory. Tried",
        "where": "verl/trainer/ppo/ray_trainer.py:412",
        "also": None,
        "step": None,
        "hint": "a GPU has too little memory: lower the micro batch sizes per GPU, the lengths, or rollout.gpu_memory_utilization",
    }


@pytest.mark.parametrize("code", [-9, -15])
def test_a_trainer_that_was_killed_raised_nothing(make_job, code):
    assert failed(make_job(), code=code) is None


def test_a_missing_log_gives_no_failure(make_job):
    assert failure.of_job(make_job(), PLAN, 1) is None


def test_the_end_is_recorded_even_if_the_log_parser_fails(make_job, monkeypatch, capsys):
    monkeypatch.setattr(failure, "in_log", lambda *_: 1 / 0)
    assert failed(make_job()) is None
    assert capsys.readouterr().err.strip() == "the root exception was not found: ZeroDivisionError: division by zero"


BAR = "\x1b[36m(TaskRunner pid=7)\x1b[0m Training Progress:   0%|          | 0/2 [00:00<?, ?it/s]\n"


@pytest.mark.parametrize(
    ("log", "steps", "parent", "step"),
    [
        ("", [], 0, None),  # it had not started
        (BAR, [], 0, 1),
        ("Epoch 1/1:   0%|   | 0/32 [00:00<?, ?it/s]\r", [], 0, 1),
        (BAR, [1, 2, 3], 0, 4),
        (BAR + "(TaskRunner pid=7) step:1 - a:0.5\nstep:2 - a:0.5\n", [], 0, 3),  # a trainer.logger without 'file'
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
        "parent": {"attempt": 1, "checkpoint": "c", "step": parent}
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
    short = failure.short(cause(message="x" * 300, also="which became OSError: no"))
    assert short == f"ValueError: {'x' * 89}… (verl/x.py:3, at step 2)"


def test_the_lines_that_are_shown_are_the_root_traceback_without_colours_and_prefixes(make_job):
    job = make_job()
    write(job.driver_log, "before\n" + prefixed(TASK + "MemoryError: no room") + DIED)
    assert failure.shown(job) == [*TASK.splitlines(), "MemoryError: no room"]


def test_a_long_traceback_is_shown_with_its_end(make_job):
    job = make_job()
    frames = "".join(f'  File "/x.py", line {number}, in f\n    f({number})\n' for number in range(50))
    write(job.driver_log, DRIVER + frames + "RecursionError: deep\n")
    lines = failure.shown(job)
    assert (len(lines), lines[0], lines[1], lines[-1]) == (
        40,
        "Traceback (most recent call last):",
        "… 66 lines",
        "RecursionError: deep",
    )


def test_a_log_without_a_traceback_is_shown_by_its_last_lines(make_job):
    job = make_job()
    assert failure.shown(job) == []
    write(job.driver_log, "".join(f"\x1b[36mline\t{number}\x1b[0m\x07\n" for number in range(100)))
    assert failure.shown(job) == [f"line    {number}\\x07" for number in range(60, 100)]
