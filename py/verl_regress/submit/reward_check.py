"""`reward-check`, for REWARD_CHECK=1: on a worker, calls the job's reward function for three rows of its data before the job is submitted."""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redaction import Redactor
from verl_regress.base import say
from verl_regress.base.errors import BadInput, shown
from verl_regress.base.layout import SharedRoot
from verl_regress.plan import plan, reward_fn
from verl_regress.secrets import secret_files
from verl_regress.submit import submit

_KNOB = "REWARD_CHECK=1"
# Its text is run, not the file: what lies beside that would come before the standard library, such as our queue.
_TRIAL = Path(__file__).parents[1] / "worker" / "reward_trial.py"
_ROWS, SECONDS = 3, 60.0
_LONGER = 10.0  # seconds for a function that no signal interrupts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `submit`."""
    submit.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Try it; raises BadInput if it raises, gives no number, or takes too long. The request comes on stdin, as for `submit`."""
    values = secret_files.read_values(sys.stdin.buffer) if args.secrets else {}
    planned = plan.make(SharedRoot(args.shared_root), submit.read_request(args))
    secret_files.check(values, planned.environment.secrets, planned.request.spec.origin)
    try_function(planned, values, SECONDS)
    return 0


def try_function(planned: plan.Plan, secrets: Mapping[str, str], seconds: float) -> None:
    """The same for a plan; `secrets` are values by name."""
    key, path, name = reward_fn.named_in(planned.composed)
    if not path:
        raise BadInput(
            f"{_KNOB} has nothing to try, because the job names no reward function of yours: name one with reward_fn_path in "
            "the JobSpec, or leave REWARD_CHECK out."
        )
    if not reward_fn.keywords_of_call(planned.composed, planned.code.path):
        say.warn(f"{_KNOB}: {name} in {path} is not tried, because the job's reward manager is not one of verl's own")
        return
    files = planned.composed.value("data.train_files")
    file = str(files[0] if isinstance(files, list) else files)
    asked = {"path": path, "name": name, "kwargs": planned.composed.value(f"{key}.reward_kwargs") or {}, "file": file}
    found = _answer(planned, {**asked, "rows": _ROWS, "seconds": seconds, "secrets": dict(secrets)})
    if found["problem"] is not None:
        where = f" ({found['where']})" if found["where"] else ""
        row = f" on row {found['row']} of {file}" if found["row"] else ""
        raise BadInput(
            f"{_KNOB}: {name} in {path} {shown(Redactor(secrets).text(found['problem']), 300)}{row}{where}: correct it, or leave "
            "REWARD_CHECK out; nothing was submitted."
        )
    say.ok(f"{_KNOB}: {name} in {path} gave a number for each of {found['row']} rows of {file}")


def _answer(planned: plan.Plan, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What the trial says, in a process group of its own; one that does not end in time is killed."""
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen(
            [sys.executable, "-c", _TRIAL.read_text(encoding="utf-8")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(planned, home),
            cwd=home,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(json.dumps(asked).encode(), timeout=asked["seconds"] + _LONGER)
        except subprocess.TimeoutExpired:
            return {"problem": f"took more than {asked['seconds']:g} s", "row": 0, "where": None}
        finally:
            _end(process)
    if not said:
        return {"problem": f"ended its process (exit status {process.returncode})", "row": 0, "where": None}
    found: dict[str, Any] = json.loads(said)
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it with what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment(planned: plan.Plan, home: str) -> dict[str, str]:
    """The job's variables over the node's, without ours; there is no job directory yet, so `home` stands for it."""
    variables = {
        name: value.replace(str(planned.job.path), home)
        for name, value in planned.environment.variables.items()
        if not name.startswith("VERL_REGRESS_")
    }
    return {**os.environ, **variables}
