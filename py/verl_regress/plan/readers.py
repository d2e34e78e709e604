"""Whether the trainer that runs reads what overrides set: verl has several, and each reads keys that the others do not know.

Which files run is read in the code of the snapshot: what the trainer's module mentions, without the other trainers and agent loops (0.7.1 to
0.9.1). A wrong refusal is worse than a missed mistake: a key is refused only if a file that does not run reads it.
"""

import re
from collections.abc import Iterator

from verl_regress.base.errors import BadInput, Refusals, shown
from verl_regress.base.workloads import WORKLOADS, Workload
from verl_regress.plan.compose import Composed
from verl_regress.plan.source import Source

_V1, _MODE, _LOOP = "trainer.use_v1", "trainer.v1.trainer_mode", "actor_rollout_ref.rollout.agent.default_agent_loop"
_LOOPS_OF_USER = (
    "actor_rollout_ref.rollout.agent.agent_loop_config_path",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
)
# The files of the trainers of main_ppo, from 0.9.1 on; V1's are registered by mode.
_OF_V1, _OF_V0 = "verl/trainer/ppo/v1/", "verl/trainer/main_ppo_v0.py"
_REGISTERED = re.compile(r"^@register(?:_trainer)?\(['\"](\w+)['\"]\)", re.MULTILINE)
_LOOPS = "verl/experimental/agent_loop/"
# Files that declare what the config has, and read nothing.
_DECLARES = re.compile(r"verl/(?:trainer|workers)/config/")
# By which measure DAPO's groups are compared: the reward itself, or what verl's own reward functions and managers name.
_METRIC, _REWARD = "algorithm.filter_groups.metric", "reward"
_MEASURES = ("verl/utils/reward_score/", "verl/experimental/reward_loop/")
_OWN_FUNCTION = "reward.custom_reward_function.path"


def running(composed: Composed, source: Source, workload: Workload, *, names_loops: bool) -> set[str]:
    """The files of verl that the trainer may load; `names_loops`: the data may have a column that names an agent loop for each row."""
    return source.reached(workload.module, [*_not_running(composed, source, names_loops=names_loops)])


def check(composed: Composed, source: Source, workload: Workload, running: set[str], wrong: Refusals) -> None:
    """Note in `wrong` overrides with which the trainer, which loads the files `running`, does nothing, and an estimator of another workload."""
    if workload.has_reward:
        with wrong.noted():
            _check_estimator(composed, workload)
        with wrong.noted():
            _check_metric(composed, source)
    for override in composed.overrides:
        key = override.parts()[1]
        if not override.optional and key in composed.changed:
            with wrong.noted():
                _need_reader(override.shown, key, composed, source, running)


def _not_running(composed: Composed, source: Source, *, names_loops: bool) -> Iterator[str]:
    """The beginnings of the paths of files that do not run."""
    is_v1 = composed.value(_V1)
    if is_v1 is not None:
        yield _OF_V0 if is_v1 else _OF_V1
    own_loops = names_loops or any(composed.value(key) for key in _LOOPS_OF_USER)
    chosen = {_OF_V1: composed.value(_MODE), _LOOPS: None if own_loops else composed.value(_LOOP)}
    for folder, word in chosen.items():
        registering = {
            file: _REGISTERED.findall(text) for file, text in source.files.items() if file.startswith(folder)
        }
        if any(word in words for words in registering.values()):
            yield from (file for file, words in registering.items() if words and word not in words)


def _need_reader(given: str, key: str, composed: Composed, source: Source, running: set[str]) -> None:
    """Raise BadInput if no file that runs names a part of the key, and another one of verl's reads it."""
    parts = key.split(".")
    # That of a trainer's own section is named where verl chooses the trainer.
    if key.startswith("trainer.v1.") and composed.value(_V1) is False:
        readers = [_OF_V1]
    else:
        readers = next(filter(None, (_readers(part, source, running) for part in parts[1:])), [])
    if readers:
        chooser = _LOOP if readers[0].startswith(_LOOPS) else _MODE if composed.value(_V1) is True else _V1
        value = composed.value(chooser)
        why = f"which this trainer does not run{f' with {composed.named(chooser, value)}' if value is not None else ''}"
        raise BadInput(f"{given} sets a key that verl reads in {readers[0]} only, {why}: leave it out, or change that.")


def _readers(part: str, source: Source, running: set[str]) -> list[str]:
    """The files that do not run and read this part of a key, if no file that runs names it."""
    named = re.compile(rf"(?<![/\w]){re.escape(part)}\b(?!/)")
    read = re.compile(rf"\.{re.escape(part)}\b|(['\"]){re.escape(part)}\1")
    reading = [file for file, text in source.files.items() if not _DECLARES.match(file) and read.search(text)]
    if not reading or any(named.search(source.files[file]) for file in running if not _DECLARES.match(file)):
        return []
    return [file for file in reading if file not in running]


def _check_estimator(composed: Composed, workload: Workload) -> None:
    """verl trains a critic for GAE, or as critic.enable says (need_critic in trainer/ppo/utils.py, 0.7.1 to 0.9.1)."""
    key, enable = "algorithm.adv_estimator", composed.value("critic.enable")
    estimator = composed.value(key)
    if estimator is None and enable is None:
        return
    has_critic = estimator == "gae" if enable is None else enable is True
    named = composed.named(key, estimator) if enable is None else composed.named("critic.enable", enable)
    if workload.has_critic in (None, has_critic):
        return
    own = next(name for name, each in WORKLOADS.items() if each is workload)
    fitting = " or ".join(f"WORKLOAD={name}" for name, each in WORKLOADS.items() if each.has_critic is has_critic)
    what = f"a critic, which WORKLOAD={own} has not" if has_critic else f"no critic, which WORKLOAD={own} is for"
    raise BadInput(f"{named} trains {what}: write {fitting}, or leave it out.")


def _check_metric(composed: Composed, source: Source) -> None:
    """The groups of DAPO are compared by what the reward function returns; verl's own names it in its code."""
    metric, own = composed.value(_METRIC), composed.value(_OWN_FUNCTION)
    is_on = composed.value("algorithm.filter_groups.enable") is True
    if not is_on or own or not isinstance(metric, str) or metric == _REWARD:
        return
    texts = [text for file, text in source.files.items() if file.startswith(_MEASURES)]
    if texts and not any(f"{quote}{metric}{quote}" in text for text in texts for quote in "'\""):
        raise BadInput(
            f"{composed.named(_METRIC, metric)} is not what verl's reward functions return: write {_METRIC}={_REWARD}, or name a function of your "
            f"own that returns {shown(metric)}."
        )
