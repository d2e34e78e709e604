"""Advice for common causes of failure: a pattern for the exception's text, and one sentence with the cure.

Standard library only, because it runs on the nodes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Hint:
    """Advice for exceptions that match `pattern`.

    `pattern` is searched in `type: message` and the lines after it (`of`). `seen` is a case of
    tests/recorded/failures/, or the words and their source.
    """

    pattern: str
    advice: str
    seen: str


# The first match is given, so the narrow ones come first.
HINTS = (
    Hint(
        r"No API key configured|api_key not configured|WANDB_API_KEY",
        "wandb has no API key: export WANDB_API_KEY and name it under secrets in the JobSpec, or leave wandb out of trainer.logger",
        "wandb_without_key",
    ),
    Hint(
        r"No module named '(?:verl|mvp_marker)\b",
        "the snapshot lacks this module: check that the source given to 'make snapshot' is whole",
        "ModuleNotFoundError: No module named 'verl.trainer.sft_trainer_ray' (Python 3.11)",
    ),
    Hint(
        r"No module named '(?P<module>[^']+)'",
        "the nodes' Python has no module {module}: add its package to the node image, or do without it",
        "reward_module_missing",
    ),
    Hint(
        r"^KeyError: (?P<column>'[^']+')\nverl/utils/dataset/",
        "the data has no column {column}: compare data.prompt_key (SFT: data.messages_key) with the columns of train.parquet",
        "column_missing",
    ),
    Hint(
        r"Unable to find '|FileNotFoundError.*\.parquet",
        "the data is not there: 'make prepare' makes the data sets under the shared root, and DATASET or the JobSpec's dataset names one",
        "data_file_missing",
    ),
    Hint(
        r"cannot import name '(?P<name>[^']+)'",
        "{name} is not in the module that was loaded: the snapshot's files do not fit together, or the image has another version "
        "of that package",
        "import_in_an_actor",
    ),
    Hint(
        r"CUDA out of memory|OutOfMemoryError|HIP out of memory",
        "a GPU has too little memory: lower the micro batch sizes per GPU, the lengths, or rollout.gpu_memory_utilization",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. (torch 2.9)",
    ),
    Hint(
        r"can't allocate memory|Cannot allocate memory|MemoryError|std::bad_alloc|out of memory: the kernel|memory monitor killed",
        "a node has too little memory: lower the micro batch sizes and lengths, or use nodes with more",
        "out_of_memory",
    ),
    Hint(
        r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed|inline_container\.cc",
        "a disk is full: free space where the message says, or keep fewer checkpoints (trainer.save_freq, 'make gc')",
        "reward_on_a_full_disk",
    ),
    Hint(
        r"EADDRINUSE|[Aa]ddress already in use",
        "a port is taken on that node: another process listens there, often one that an earlier job left ('make stop' ends it)",
        "port_taken",
    ),
    Hint(
        r"The actor died unexpectedly|WorkerCrashedError",
        "one of the training processes was killed or crashed: 'make debug' collects what the nodes say, memory first",
        "actor_killed",
    ),
    Hint(
        r"divisible|must be >= actor\.ppo_mini_batch_size|must be >= critic\.ppo_mini_batch_size",
        "batch sizes must fit each other: data.train_batch_size (times rollout.n) a multiple of the mini batch size, that a "
        "multiple of the micro batch size per GPU times the GPUs",
        "batch_not_divisible",
    ),
    Hint(
        r"[Ss]equence.*length.*(?:longer|larger|exceed)|is longer than|truncation|max_length",
        "a row is longer than the length setting allows: raise data.max_prompt_length (SFT: data.max_length), or set "
        "data.truncation or data.filter_overlong_prompts",
        "sequence_too_long_sft",
    ),
    Hint(
        r"size mismatch for|ignore_mismatched_sizes|Error\(s\) in loading state_dict|Unrecognized model|It looks like the config file",
        "checkpoint, weights and config.json do not belong together: check model.path, override_config and resume_from_path",
        "model_config_mismatch",
    ),
    Hint(
        r"size of tensor|sizes of tensors|shape mismatch|expanded size|shape '\[.*is invalid for input|does not match|mismatched",
        "two tensors have different lengths: compare data.max_prompt_length and data.max_response_length with the rollout's "
        "prompt_length and response_length",
        "lengths_mismatch",
    ),
    Hint(
        r"offline mode|outgoing traffic has been disabled|LocalEntryNotFoundError|couldn't connect to 'https://huggingface",
        "a model or data set was asked for from the Hugging Face hub, which jobs cannot reach: use 'make prepare' and name its path "
        "under the shared root",
        "model_not_on_disk",
    ),
    Hint(
        r"No such file or directory: '[^']*global_step_|resume ckpt must",
        "there is no such checkpoint: name a global_step_N directory under a job's checkpoints/ that is whole, or leave "
        "trainer.resume_from_path out",
        "checkpoint_missing",
    ),
    Hint(
        r"inf.*nan|\b[Nn]a[Nn]\b",
        "the numbers overflowed: lower the learning rate, or check rewards and data for values that are not finite",
        "nan_probabilities",
    ),
    Hint(
        r"adv_estimator|AdvantageEstimator|[Aa]dvantage estimator",
        "algorithm.adv_estimator names no estimator of this verl: verl/trainer/ppo/core_algos.py lists them",
        "unknown_estimator",
    ),
    Hint(
        r"reward_score",
        "the reward function gave no number: return one, or a dict with the key 'score'",
        "reward_of_wrong_type",
    ),
    Hint(
        r"PermissionError|Permission denied",
        "the job may not write or read there: jobs run as the owner of WORKDIR (RUN_AS), and write under their own directory",
        "reward_without_permission",
    ),
    Hint(
        r"Interpolation key|is not in struct|Missing mandatory value|MissingConfigException",
        "the config lacks this key: 'make submit DRY_RUN=1' prints the whole config of the snapshot's verl",
        "interpolation",
    ),
)


def of(exception: str, where: str = "", also: str = "") -> str | None:
    """The advice for an exception (`type: message`), or None; `where` and `also` as verl_regress.jobs.failure gives them."""
    text = f"{exception}\n{where}\n{also}"
    for hint in HINTS:
        if (match := re.search(hint.pattern, text)) is not None:
            return hint.advice.format(**match.groupdict())
    return None
