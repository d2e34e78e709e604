"""The stacks of a running job's Python processes, which py/hooks/process_memory.py writes when we ask, and what the job does by them."""

import re
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from verl_regress.base.errors import Unreadable
from verl_regress.base.files import read_text
from verl_regress.base.layout import JobDir

_PATIENCE = 2.5  # seconds: each process checks every second
_LOOK_EVERY = 0.1
# What the functions of verl 0.7.1 to 0.9.1 and of reward functions are called. The first that any process is in counts: who generates
# may wait for a score.
_DOING = (
    ("scoring", re.compile(r"compute_(?:score|reward)\w*")),
    ("saving a checkpoint", re.compile(r"_?save_checkpoint")),
    ("updating", re.compile(r"_?update_(?:actor|critic)|_?compute_(?:\w+_)?(?:log_prob|values)|train_(?:mini_)?batch")),
    ("generating", re.compile(r"generate(?:_sequences)?")),
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


def ask(job: JobDir) -> dict[str, str]:
    """The answer of each process of a running job that gives one in time, by `<hostname>-<pid>`; none for a job that is over.

    Raises OSError if the job directory cannot be written.
    """
    if job.read_state("ended") is not None or job.read_state("started") is None:
        return {}
    asked = datetime.now(timezone.utc).isoformat()
    (job.state / "stacks_asked").write_text(asked, encoding="ascii")
    end, answers = time.monotonic() + _PATIENCE, dict[str, str]()
    processes = {path.stem for path in (job.state / "memory").glob("*.txt")}
    while len(answers) < len(processes) and time.monotonic() < end:
        time.sleep(_LOOK_EVERY)
        answers = {name: text for name, text in _in(job.state).items() if text.startswith(asked)}
    return answers


def words(job: JobDir, bundle: Path) -> str | None:
    """`scoring in compute_score (user/code/slow.py:7, RewardLoopWorker (process 12) on worker-1)`, by a debug bundle of the job.

    None if no frame says.
    """
    plan, answers = job.read_config("resolved.json") or {}, _in(bundle)
    homes = {f"{job.root.user_code}/": "user/code/", f"{plan.get('code_path')}/": ""}
    for doing, pattern in _DOING:
        for text in answers.values():
            who = text.partition("\n")[0].partition(" ")[2]
            for file, line, function in _FRAME.findall(text):
                home = next((home for home in homes if file.startswith(home)), "")
                if pattern.fullmatch(function) or (doing == "scoring" and homes.get(home) == "user/code/"):
                    return f"{doing} in {function} ({homes.get(home, '')}{file.removeprefix(home)}:{line}, {who})"
    return None


def _in(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.glob("stacks/*.txt")):
        with suppress(OSError, Unreadable):
            found[path.stem] = read_text(path)
    return found
