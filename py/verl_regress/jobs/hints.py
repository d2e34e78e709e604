"""Advice for common causes of failure: a pattern for the exception's text, and one sentence with the cure.

Standard library only, because it runs on the nodes.
"""

from __future__ import annotations

import re

HINTS = {
    r"No module named '([^']+)'": (
        "the nodes' Python has no module {0}: add its package to the node image, or do without it; one of verl's own is missing in the snapshot"
    ),
    r"Unable to find '|FileNotFoundError.*\.parquet": (
        "the data is not there: 'make prepare' makes the data sets under the shared root, and DATASET or the JobSpec's dataset names one"
    ),
    r"CUDA out of memory|OutOfMemoryError|HIP out of memory": (
        "a GPU has too little memory: lower the micro batch sizes per GPU, the lengths, or rollout.gpu_memory_utilization"
    ),
    r"can't allocate memory|Cannot allocate memory|MemoryError|std::bad_alloc|out of memory: the kernel|memory monitor killed": (
        "a node has too little memory: lower the micro batch sizes and lengths, or use nodes with more"
    ),
    r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed|inline_container\.cc": (
        "a disk is full: free space where the message says, or keep fewer checkpoints (trainer.save_freq, 'make gc')"
    ),
    r"EADDRINUSE|[Aa]ddress already in use": (
        "a port is taken on that node: another process listens there, often one that an earlier job left ('make stop' ends it)"
    ),
    r"NCCL|ncclSystemError": (
        "GPUs could not talk to each other: set NCCL_DEBUG=INFO under env_vars of the JobSpec, and read what NCCL says in the log"
    ),
    r"The actor died unexpectedly|WorkerCrashedError": (
        "one of the training processes was killed or crashed: 'make debug' collects what the nodes say, memory first"
    ),
    r"divisible|must be >= (?:actor|critic)\.ppo_mini_batch_size": (
        "batch sizes must fit each other: data.train_batch_size (times rollout.n) a multiple of the mini batch size, that a "
        "multiple of the micro batch size per GPU times the GPUs"
    ),
    r"offline mode|outgoing traffic has been disabled|LocalEntryNotFoundError|couldn't connect to 'https://huggingface": (
        "a model or data set was asked for from the Hugging Face hub, which jobs cannot reach: use 'make prepare' and name its path "
        "under the shared root"
    ),
}


def find(text: str) -> str | None:
    """The first advice that fits an exception (`type: message`), or None."""
    for pattern, advice in HINTS.items():
        if (match := re.search(pattern, text)) is not None:
            return advice.format(*match.groups())
    return None
