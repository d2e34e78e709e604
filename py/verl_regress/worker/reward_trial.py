"""Calls a reward function for rows of a job's data, as verl's reward managers do (0.7.1 to 0.9.1), in a process with the job's environment.

A script of its own, because that environment has none of ours. On stdin comes a JSON object: `path` and `name` of the function, its
`kwargs`, the data's `file`, `rows` to try, `secrets`, and `seconds` for all of it. On stdout goes another: `problem` (null: none), and with
one `row`, the number of the row, and `where`, the file and line. Each row's ground truth is its answer.
"""

import asyncio
import importlib
import importlib.util
import inspect
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


class _TooSlow(BaseException):
    """The time is over; no `except Exception` of the user's takes it."""


def main() -> None:
    """Answer the request on stdin."""
    asked = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the function prints is no answer
    os.environ.update(asked["secrets"])
    signal.signal(signal.SIGALRM, _expire)
    signal.setitimer(signal.ITIMER_REAL, asked["seconds"])
    row = 0
    try:
        function = _loaded(asked["path"], asked["name"])
        problem, rows = None, _rows(asked["file"], asked["rows"])
        while problem is None and row < len(rows):
            row += 1
            problem = _problem_of(_result(function, rows[row - 1], asked["kwargs"]))
        found = {"problem": problem, "row": row, "where": _defined(function) if problem else None}
    except (Exception, SystemExit, _TooSlow) as error:
        found = {"problem": _raised(error, row, asked["seconds"]), "row": row, "where": _where(error, asked["path"])}
    json.dump(found, answer)
    answer.close()
    os._exit(0)  # threads of the function's may still run


def _expire(_signal: int, _frame: object) -> None:
    raise _TooSlow


def _loaded(path: str, name: str) -> Callable[..., Any]:
    """As verl.utils.import_utils.load_extern_object loads it."""
    if path.startswith("pkg://"):
        module: ModuleType = importlib.import_module(path.removeprefix("pkg://").replace("/", "."))
    else:
        spec = importlib.util.spec_from_file_location("reward_trial_module", path.removeprefix("file://"))
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is no Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    function: Callable[..., Any] = getattr(module, name)
    return function


def _rows(file: str, count: int) -> list[dict[str, Any]]:
    if file.endswith(".parquet"):
        from pyarrow import parquet

        batches = parquet.ParquetFile(file).iter_batches(batch_size=count)
        rows: list[dict[str, Any]] = next(batches).to_pylist()
        return rows
    with open(file, encoding="utf-8") as lines:  # noqa: PTH123 - one import less in the job's environment
        return [json.loads(line) for _, line in zip(range(count), lines, strict=False)]


def _result(function: Callable[..., Any], row: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Any:
    truth = (row.get("reward_model") or {}).get("ground_truth")
    extra = {**(row.get("extra_info") or {}), "num_turns": 2, "rollout_reward_scores": {}}
    named = {
        "data_source": row.get("data_source"),
        "solution_str": str(truth),
        "ground_truth": truth,
        "extra_info": extra,
    }
    result = function(**{**named, **kwargs})
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Any) -> Any:
    return await result


def _problem_of(result: Any) -> str | None:
    """What is wrong with a returned value; None if it is a finite number, or a dict with one as its `score`."""
    if isinstance(result, dict) and "score" not in result:
        return "returned a dict without 'score'"
    score = result["score"] if isinstance(result, dict) else result
    what = f"{'a dict with score ' if isinstance(result, dict) else ''}{score!r:.80}"
    try:
        is_number = not isinstance(score, str | bytes) and math.isfinite(float(score))
    except (TypeError, ValueError):
        is_number = False
    return None if is_number else f"returned {what}, which is no finite number"


def _raised(error: BaseException, row: int, seconds: float) -> str:
    if isinstance(error, _TooSlow):
        return f"took more than {seconds:g} s"
    last = traceback.format_exception_only(error)[-1].strip()
    return f"raised {last}" if row else f"cannot be called: {last}"


def _where(error: BaseException, path: str) -> str | None:
    """The deepest line in the function's own file, or else the deepest one."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    frames = [frame for frame in frames if not frame[0].startswith("<")]
    own = [frame for frame in frames if frame[0] == path.removeprefix("file://")]
    if isinstance(error, SyntaxError):
        own.append((error.filename or path, error.lineno))
    return f"{(own or frames)[-1][0]}:{(own or frames)[-1][1]}" if own or frames else None


def _defined(function: Callable[..., Any]) -> str | None:
    """Where it is defined."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else None


if __name__ == "__main__":
    main()
