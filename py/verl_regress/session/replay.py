"""Replay (REPLAY=1): the first run of A with a seed records its rollouts, and every other run of that case and seed trains on exactly these.

verl itself writes and reads them (`skip.rollout_tq` with the V1 trainer, `skip.rollout` with V0; since 0.9.0). Where it finds no file it
generates, and goes on without an error. So what a run used is compared with what A wrote.
"""

import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from verl_regress.base import say
from verl_regress.base.errors import BadInput, RegressError, first
from verl_regress.base.layout import JobDir
from verl_regress.base.trust import need
from verl_regress.jobs.recorded_run import REPLAY
from verl_regress.plan.overrides import Override
from verl_regress.plan.plan import Plan
from verl_regress.session.suites import Case, Suite
from verl_regress.store.artefact import sha256_of

DIRECTORY = "replay"  # of a session; it goes when the session is over
_STEPS = "trainer.total_training_steps"
_KEYS = {True: "skip.rollout_tq", False: "skip.rollout"}  # by trainer.use_v1
# verl puts these into the path of a recording, in addition to the names of experiment and project (verl/utils/skip/rollout_skip.py, 0.9.1).
_IN_PATH = (
    "data.gen_batch_size",
    "data.train_batch_size",
    "actor_rollout_ref.rollout.n",
    "data.max_prompt_length",
    "data.max_response_length",
)
_PER_TOKEN, _PER_ANSWER = 48, 4096  # bytes, in 0.9.1: ids twice, positions, masks, log-probs and scores; texts and tags
# verl's words for a step that was read, with V1 and with V0 (0.9.1).
_READ = re.compile(rb"(?:cached trajectories from|Load generate result at) step (\d+)")
_SCORED = b"verl-regress: the rewards of a replayed batch are computed again"  # py/hooks/recomputed_rewards.py
_STEP = 2  # in the path of a file of a recording: EXPERIMENT_PROJECT/GBS…/STEP/…


def overrides(directory: Path, steps: int) -> tuple[Override, ...]:
    """What makes verl write the rollouts of these steps into the directory, or read them if they are there."""
    numbers = ",".join(map(str, range(1, steps + 1)))
    texts = ["trainer.experiment_name=replay", "trainer.project_name=verl-regress"]  # parts of the path
    for key in _KEYS.values():
        texts += [f"{key}.enable=True", f"{key}.dump_dir={directory}", f"{key}.steps=[{numbers}]"]
    return tuple(Override(text, REPLAY, optional=True) for text in texts)


def decide(suite: Suite, directory: Path, plan_of: Callable[[Case, str], Plan]) -> dict[str, Any]:
    """Which cases are replayed, with the number of their steps and the most bytes of a recording; `plan_of` plans one with A or B, and a replay
    of one step. Prints why a case is not. Raises RegressError without space for the first recordings.
    """
    found: dict[str, Any] = {}
    for case in suite.cases:
        if source := case.continues or case.equals:  # it trains on the rollouts of that case
            found |= {case.name: found[source]} if source in found else {}
        elif recording := _recording(suite, case, plan_of):
            size = recording["bytes"] / 2**20
            say.info(f"{case.name}: A's rollouts are recorded in {directory}, at most {size:,.1f} MiB for each seed")
            found[case.name] = recording
    needed = sum(each["bytes"] for name, each in found.items() if each["recorded_by"] == name)
    free = shutil.disk_usage(directory.parent).free
    if needed > free:
        raise RegressError(
            f"REPLAY=1 needs up to {needed / 2**30:,.1f} GiB for rollouts in {directory}, which has {free / 2**30:,.1f} GiB free: free some space "
            "there ('make gc' removes old checkpoints), or set REPLAY=0 in a new session."
        )
    return found


def _recording(suite: Suite, case: Case, plan_of: Callable[[Case, str], Plan]) -> dict[str, Any] | None:
    """What a case records; None if it is not replayed."""
    try:
        plans = {side: plan_of(case, side) for side in "AB"}
    except BadInput:  # B's refusal is recorded, and A's run reports its own
        return None
    if not plans["A"].request.workload.samples_key:
        return None
    if why := _why_not(suite, case, plans):
        say.skip(f"the replay of {case.name} ({why})")
        return None
    steps = int(plans["A"].composed.value(_STEPS))
    return {"recorded_by": case.name, "steps": steps, "bytes": _most_bytes(plans["A"])}


def _why_not(suite: Suite, case: Case, plans: Mapping[str, Plan]) -> str | None:
    """Why a case is not replayed; None if it is."""
    family = [each for each in suite.cases if case.name in (each.name, each.continues)]
    if any(each.speed or each.memory for each in family):
        return "a case whose speed or memory is judged generates in every run"
    for side, made in plans.items():
        if key := _lacking_key(made):
            return f"verl {made.code.record['verl_version']} of {side} has no key {key}, which verl has since 0.9.0"
    for key in ("trainer.use_v1", _STEPS, *_IN_PATH):
        a, b = (made.composed.value(key) for made in plans.values())
        if a != b:
            return f"{key} is {a} in A and {b} in B"
    lacks_steps = plans["A"].composed.value(_STEPS) is None
    return "verl's config does not say how many steps it trains: give steps in the suite" if lacks_steps else None


def _lacking_key(made: Plan) -> str | None:
    """The key that makes verl record its rollouts, if the snapshot's config does not have it."""
    key = _KEYS[bool(made.composed.value("trainer.use_v1"))]
    is_left_out = any(each.parts()[1].startswith(f"{key}.") for each in made.composed.left_out)
    return key if is_left_out else None


def _most_bytes(made: Plan) -> int:
    value = made.composed.value
    prompts = int(value("data.gen_batch_size") or value("data.train_batch_size"))
    tokens = int(value("data.max_prompt_length")) + int(value("data.max_response_length"))
    answers = prompts * int(value("actor_rollout_ref.rollout.n")) * int(value(_STEPS))
    return answers * (tokens * _PER_TOKEN + _PER_ANSWER)


def files_of(directory: Path) -> dict[str, str]:
    """The sha256 of each file of a recording, by its path in it, without what NFS keeps of removed ones. Raises OSError."""
    paths = (path for path in sorted(directory.rglob("*")) if not path.name.startswith(".nfs"))
    return {str(path.relative_to(directory)): sha256_of(path) for path in paths if path.is_file()}


def unrecorded(files: Iterable[str], trained: Iterable[int]) -> str | None:
    """What a recording lacks of the steps that its run trained; None if it has them all."""
    # A file at another depth, or beside the numbered directories, is of no step.
    parts = (path.split("/") for path in files)
    steps = {int(each[_STEP]) for each in parts if len(each) > _STEP and each[_STEP].isdecimal()}
    lacking = _listed(set(trained) - steps)
    return f"its rollouts of step {lacking} were not recorded, so no other run can train on them" if lacking else None


def need_unchanged(directory: Path, recorded: Mapping[str, str]) -> None:
    """Raise RegressError if a recording is not what A wrote, or if others can change it: verl unpickles it, which runs what is in it."""
    need(directory, f"The recording {directory}", "and run make verify again")
    if changed := _changed(files_of(directory), recorded):
        raise RegressError(
            f"The recording {directory} is not what A's run wrote ({changed}): begin a new session, which records it again."
        )


def misused(
    job: JobDir, recorded: Mapping[str, str], directory: Path, trained: Collection[int], *, is_scored: bool = False
) -> str | None:
    """Why a run did not train on exactly what A recorded, or, with `is_scored`, on rewards of its own; None if it did."""
    if changed := _changed(files_of(directory), recorded):
        return f"it did not leave A's rollouts as they were: {changed}"
    with job.driver_log.open("rb") as log:
        read = [line for line in log if _READ.search(line) or _SCORED in line]
    if lacking := _listed(set(trained) - {int(step) for line in read for step in _READ.findall(line)}):
        return f"it did not read A's rollouts of step {lacking}, so it generated its own"
    scored = sum(_SCORED in line for line in read) if is_scored else len(trained)
    return None if scored >= len(trained) else f"it computed the rewards of {scored} of {len(trained)} steps again"


def _listed(steps: Iterable[int]) -> str:
    return first([str(step) for step in sorted(steps)])


def _changed(files: Mapping[str, str], recorded: Mapping[str, str]) -> str | None:
    """Which files are new, missing or of other bytes; None if none is."""
    paths = sorted({path for path, _ in files.items() ^ recorded.items()})
    whats = ("new" if path not in recorded else "missing" if path not in files else "of other bytes" for path in paths)
    return first([f"{path} is {what}" for path, what in zip(paths, whats, strict=True)]) if paths else None
