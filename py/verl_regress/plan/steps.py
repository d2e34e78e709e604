"""The training steps of an attempt, before it runs: where it begins, where its data, its epochs and its config end it, and what it saves.

Read in verl 0.7.1 to 0.9.1: `fit` and the data loaders of trainer/sft_trainer_ray.py, trainer/ppo/ray_trainer.py and trainer/ppo/v1/trainer_base.py.
"""

import ast
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from verl_regress.base.workloads import Workload
from verl_regress.jobs import checkpoints
from verl_regress.jobs.shortfall import FROM_WITHIN
from verl_regress.plan.compose import Composed

_TOTAL, _EPOCHS = "trainer.total_training_steps", "trainer.total_epochs"
_SAVE = "trainer.save_freq"
# The file of each trainer that puts the data back to where it was.
_SFT = "utils/checkpoint/checkpoint_handler.py"
_V0 = "trainer/ppo/ray_trainer.py"
_V1 = "trainer/ppo/v1/trainer_base.py"


@dataclass(frozen=True)
class Steps:
    """An attempt trains the steps after `after`, the step that it continues from, up to `last`; None if that is not known before.

    `total` is the number that its config asks for, `per_epoch` how many steps an epoch has, `saves` how many of the steps save a checkpoint,
    `skipped` how many of them verl will not train, because it continues an epoch that was over. With `is_most` there may be fewer steps:
    verl leaves out prompts that are too long.
    """

    after: int
    last: int | None = None
    total: int | None = None
    per_epoch: int | None = None
    saves: int | None = None
    skipped: int = 0
    is_most: bool = False

    @property
    def count(self) -> int | None:
        """How many steps are to do; None if that is not known before."""
        return None if self.last is None else max(0, self.last - self.after)

    def recorded(self) -> dict[str, Any]:
        """As config/resolved.json has it."""
        return asdict(self)


def steps_of(code_path: Path, workload: Workload, composed: Composed, rows: int | None) -> Steps:
    """The steps of a job with this config, whose data has so many rows (None: not known), on the snapshot at `code_path`."""
    after = _begin(composed)
    if composed.value("trainer.val_only") is True and composed.value("trainer.val_before_train") is not False:
        return Steps(after, last=after, total=after, saves=0)
    batch, epochs, asked = _batch(workload, composed), composed.value(_EPOCHS) or 0, composed.value(_TOTAL)
    per_epoch = None if rows is None or batch is None else rows // batch
    of_data = None if per_epoch is None else per_epoch * epochs
    total = of_data if asked is None else asked
    if total is None:
        return Steps(after)
    last = total if of_data is None else min(total, of_data)
    is_most = composed.value("data.filter_overlong_prompts") is True
    steps = Steps(after, last, total, per_epoch, is_most=is_most)
    is_passed_over = not is_most and _continues_ended_epochs(code_path, workload, composed)
    return replace(
        steps,
        saves=_saves(workload, composed, steps),
        skipped=_skipped(steps, epochs) if is_passed_over else 0,
    )


def _skipped(steps: Steps, epochs: int) -> int:
    """How many steps a verl leaves out that finds no data in the first epoch after the end of one."""
    if not steps.per_epoch or not steps.after or not steps.count or steps.after % steps.per_epoch:
        return 0
    left = epochs * steps.per_epoch - steps.after - steps.per_epoch
    return max(0, steps.count - left)


def _begin(composed: Composed) -> int:
    """The step of the checkpoint that the trainer loads. A job's own directory has none when it starts, so `auto` alone begins at 0."""
    path, mode = composed.value("trainer.resume_from_path"), composed.value("trainer.resume_mode")
    name = Path(str(path)).name
    is_step = name.startswith("global_step_") and name.removeprefix("global_step_").isdecimal()
    return checkpoints.step_of(name) if path and mode != "disable" and is_step else 0


def _batch(workload: Workload, composed: Composed) -> int | None:
    """How many rows of the data a step takes; None if the config does not say it."""
    size, generated = composed.value("data.train_batch_size"), composed.value("data.gen_batch_size")
    is_v0 = workload.has_reward and composed.value("trainer.use_v1") is not True
    chosen = generated if is_v0 and isinstance(generated, int) else size
    return chosen if isinstance(chosen, int) and chosen > 0 else None


def _saves(workload: Workload, composed: Composed, steps: Steps) -> int | None:
    """How many checkpoints the steps save: SFT always saves the step `total`, RL does if it saves at all."""
    every = steps.per_epoch if composed.value(_SAVE) == "after_each_epoch" else composed.value(_SAVE)
    if not isinstance(every, int) or steps.last is None or steps.total is None:
        return None
    regular = steps.last // every - steps.after // every if every > 0 else 0
    reaches_total = steps.after < steps.last >= steps.total
    has_extra = reaches_total and (every <= 0 or steps.last % every > 0) and (every > 0 or not workload.has_reward)
    return regular + has_extra


def _continues_ended_epochs(code_path: Path, workload: Workload, composed: Composed) -> bool:
    """Does this verl put the data back to where an epoch ended, and take its end for that of the next epoch?

    SFT does, in 0.7.1 to 0.9.1, and PPO in 0.7.1. A loop without that fault compares the step with the epoch's steps before it restores the
    data (ray_trainer.py from 0.8.0 on), or begins with the data again when it ends (trainer_base.py of V1).
    """
    name = _SFT if not workload.has_reward else _V1 if composed.value("trainer.use_v1") is True else _V0
    try:
        source = (code_path / "verl" / name).read_bytes()
        functions = [ast.unparse(each) for each in _functions(ast.parse(source))]
    except (OSError, SyntaxError, ValueError):
        return False
    restores = [text for text in functions if "train_dataloader.load_state_dict(" in text]
    is_aware = any("epoch" in text for text in restores) or b"StopIteration" in source
    return bool(restores) and not is_aware


def _functions(tree: ast.AST) -> Iterator[ast.AST]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def warnings(steps: Steps, composed: Composed, release: str) -> Iterator[str]:
    """What the user should know before the attempt trains; `release` is how messages name the snapshot's verl."""
    if steps.skipped and steps.count:
        yield (
            f"{release} looks for more data in the epoch that ended with step {steps.after}, so this will train {steps.count - steps.skipped} of "
            f"{steps.count} steps: {FROM_WITHIN}."
        )
    elif steps.per_epoch and steps.total is not None:
        yield from _too_few(steps, composed, steps.total - steps.after)
    if steps.saves if steps.saves is not None else composed.value(_SAVE) not in (0, -1):
        yield from _unsaved(composed)


def _too_few(steps: Steps, composed: Composed, wanted: int) -> Iterator[str]:
    """That the data and the epochs end before the steps that were asked for."""
    if steps.count == 0 and steps.after:
        yield f"no step is left after step {steps.after}, so this will train nothing: add {asking_for_more(steps, composed)}."
    elif steps.count is not None and steps.count < wanted:
        most, saved = " at most" if steps.is_most else "", "" if steps.saves else " and save no checkpoint"
        yield (
            f"{composed.named(_TOTAL, steps.total)}: this will train{most} {steps.count} of {wanted} steps{saved}, because an epoch of the data "
            f"has {steps.per_epoch} and {composed.named(_EPOCHS, composed.value(_EPOCHS))}: write {_EPOCHS}={_epochs_for(steps, steps.after + wanted)}."
        )


def _unsaved(composed: Composed) -> Iterator[str]:
    """What the checkpoints will lack that a training continues with."""
    for part in checkpoints.parts_of(composed.value):
        if part.missing:
            key, saved = f"{part.key}.save_contents", ",".join(part.saves)
            new = "a job that continues from them begins with new ones"
            then = new if part.continues else "no job could continue from them"
            yield (
                f"{composed.named(key, f'[{saved}]')}: the checkpoints will have no {' and no '.join(part.missing)}, and {then}: write "
                f"{key}=[{','.join((*part.saves, *part.missing))}]."
            )


def _epochs_for(steps: Steps, total: int) -> int:
    """How many epochs have so many steps; 0 if that is not known."""
    return math.ceil(total / steps.per_epoch) if steps.per_epoch else 0


def asking_for_more(steps: Steps, composed: Composed) -> str:
    """The overrides that give an attempt without a step left some, as they are typed."""
    total = composed.value(_TOTAL)
    wanted = steps.after + 10 if total is None or total <= steps.after else total
    found = [f"{_TOTAL}={wanted}"] if wanted != total and (total is not None or not steps.per_epoch) else []
    epochs = _epochs_for(steps, wanted)
    found += [f"{_EPOCHS}={epochs}"] if epochs > (composed.value(_EPOCHS) or 0) else []
    return f"OVERRIDES={found[0]}" if len(found) == 1 else f"OVERRIDES='{' '.join(found)}'"
