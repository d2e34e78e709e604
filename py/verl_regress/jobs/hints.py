"""Advice for common causes of failure: the exception's type decides first, then what its message says."""

import re

# The letters of a path say nothing about a cause, except where the folder is the cause.
_PATH = re.compile(r"(?<![\w:/])(?!/dev/shm\b|/tmp/ray\b|/torch_)(?:[\w.@+~-]*/)+[\w.@+-]*")
_DIST = r"RuntimeError|(?:torch\.distributed\.)?DistBackendError"
_NODE_MEMORY = "a node has too little memory: lower the micro batch sizes and lengths, or use nodes with more"

# By the types of the exception, as a traceback names them ("": a sentence of ours), and a part of its message. The first that fits
# counts: a cause comes before what many causes have in common.
HINTS = {
    ("ModuleNotFoundError", r"No module named '([^']+)'"): (
        "the nodes' Python has no module {0}: add its package to the node image, or do without it; one of verl's own is missing in the snapshot"
    ),
    ("FileNotFoundError", r"Unable to find '"): (
        "the data is not there: 'make prepare' makes the data sets under the shared root, and DATASET or the JobSpec's dataset names one"
    ),
    ("NotImplementedError", r"Reward function is not implemented for data_source="): (
        "verl has no reward for that data_source of the data: name your own function with reward_fn_path in the JobSpec, or correct the data"
    ),
    ("OSError|RuntimeError", r"Too many open files|received 0 items of ancdata"): (
        "a process has too many files open: raise the limit on the nodes (ulimit -n), or lower data.dataloader_num_workers"
    ),
    ("PermissionError", r"'/tmp/ray\b"): (
        "/tmp/ray on that node belongs to another user, whose Ray made it: ask that user or root to remove it when that Ray has ended"
    ),
    (
        f"OSError|{_DIST}",
        r"(?:/dev/shm|shared memory segment|/torch_).*(?:No space left|Cannot allocate memory|\((?:12|28)\))|No space left.*/dev/shm"
        r"|insufficient shared memory|workers are out of shared memory",
    ): "/dev/shm of the nodes is too small: raise SHM_SIZE and run 'make down up', or enlarge it on nodes that you manage yourself",
    (
        rf"(?:torch\.(?:cuda\.)?)?OutOfMemoryError|torch\.AcceleratorError|{_DIST}",
        r"\b(?:CUDA|HIP)\b[^.]* out of memory|Cuda failure.*out of memory",
    ): "a GPU has too little memory: lower the micro batch sizes per GPU, the lengths, or rollout.gpu_memory_utilization",
    ("ValueError", r"Free memory on device.*less than desired GPU memory utilization"): (
        "vLLM starts with less free GPU memory than it is to use: lower actor_rollout_ref.rollout.gpu_memory_utilization, or end what else "
        "uses that GPU ('make stop' ends an earlier job, nvidia-smi on the node shows the rest)"
    ),
    (r"ray\.exceptions\.OutOfMemoryError|MemoryError|numpy\.\S+\._ArrayMemoryError", ""): _NODE_MEMORY,
    (
        "OSError|RuntimeError|",
        r"can't allocate memory|Cannot allocate memory|std::bad_alloc|out of memory: the kernel|memory monitor killed",
    ): _NODE_MEMORY,
    (
        r"OSError|RuntimeError|ray\.exceptions\.OutOfDiskError|safetensors_rust\.SafetensorError|",
        r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed|unexpected pos \d+ vs \d+",
    ): "a disk is full: free space where the message says, or keep fewer checkpoints (trainer.save_freq, 'make gc')",
    (r"OSError|RuntimeError|torch\.distributed\.DistNetworkError", r"EADDRINUSE|[Aa]ddress already in use"): (
        "a port is taken on that node: another process listens there, often one that an earlier job left ('make stop' ends it)"
    ),
    (
        _DIST,
        r"no socket interface found|Gloo connectFullMesh failed|neither AF_INET|socket\w*Connect\w*: Connect to|No route to host",
    ): (
        "processes cannot reach each other over the network interface that they chose: name one that all nodes share as NCCL_SOCKET_IFNAME "
        "and GLOO_SOCKET_IFNAME under env_vars of the JobSpec ('ip -br address' on a node lists them)"
    ),
    (_DIST, r"NCCL error|\bnccl\w+Error\b"): (
        "GPUs could not talk to each other: set NCCL_DEBUG=INFO under env_vars of the JobSpec, and read what NCCL says in the log"
    ),
    (
        r"wandb\.errors\.(?:errors\.)?CommError",
        r"Run initialization has timed out|(?i:network error|failed to connect|connection to api)",
    ): "wandb cannot reach its server from the nodes: set WANDB_MODE=offline under env_vars of the JobSpec, or take wandb out of trainer.logger",
    (r"wandb\.errors\.(?:errors\.)?(?:UsageError|AuthenticationError)", r"(?i:api[ _]key)"): (
        "wandb has no key that it takes: name WANDB_API_KEY under secrets of the JobSpec, or take wandb out of trainer.logger"
    ),
    (r"ray\.exceptions\.(?:ActorDiedError|WorkerCrashedError)|", r"died unexpectedly|crashed or was killed"): (
        "one of the training processes was killed or crashed: 'make debug' collects what the nodes say, memory first"
    ),
    (
        "AssertionError|ValueError",
        r"batch\w*\b.*divisible|data size must be divisible|must be >= (?:actor|critic)\.ppo_mini_batch_size",
    ): (
        "batch sizes must fit each other: data.train_batch_size (times rollout.n) a multiple of the mini batch size, that a "
        "multiple of the micro batch size per GPU times the GPUs"
    ),
    (
        r"huggingface_hub\.errors\.\w+|OSError|(?:requests\.exceptions\.)?ConnectionError",
        r"offline mode|outgoing traffic has been disabled|couldn't connect to 'https://huggingface|host='huggingface\.co'",
    ): (
        "a model or data set was asked for from the Hugging Face hub, which jobs cannot reach: use 'make prepare' and name its path "
        "under the shared root"
    ),
}

# What the user's reward function returned where verl needs a number, by type, message and place of the exception. Read in verl 0.7.1 to 0.9.1:
# experimental/reward_loop/reward_manager/*.py, experimental/agent_loop/agent_loop.py, trainer/ppo/reward.py, trainer/ppo/v1/trainer_base.py.
_MANAGER = "verl/experimental/reward_loop/reward_manager/"
_NO_REWARDS = {
    ("KeyError", r"\bkey \W*rm_scores\b.* not found in TensorDict", ""): "None",
    ("KeyError", r"'score'", _MANAGER): "a dict without 'score'",
    (
        r"pydantic_core\S*\.ValidationError",
        r"\breward_score Input should be a valid number(?:.*input_type=(\w+))?",
        "",
    ): "what is no number, a {0},",
    (
        "TypeError",
        r"can't assign an? (\w+) to a torch\.FloatTensor",
        "verl/experimental/agent_loop/",
    ): "what is no number, a {0},",
    ("TypeError", r"unsupported operand|can only concatenate", _MANAGER): "what is no number",  # dapo adds to it
}


def of_reward(kind: str, message: str, where: str | None, function: str) -> str | None:
    """The advice for an exception at `where` that comes from what the reward function returned, which is named `function`; or None."""
    for (types, part, place), returned in _NO_REWARDS.items():
        match = re.search(part, message)
        if re.fullmatch(types, kind) and match is not None and (where or "").startswith(place):
            what = returned.format(*(each or "text or a container" for each in match.groups()))
            return f"{function} returned {what} for an answer: return a number for every answer, or a dict with a number as its 'score'"
    return None


def find(kind: str, message: str) -> str | None:
    """The first advice that fits an exception of the type `kind` with this message, or None."""
    text = _PATH.sub("PATH", message)
    for (types, part), advice in HINTS.items():
        if re.fullmatch(types, kind) and (match := re.search(part, text)) is not None:
            return advice.format(*match.groups())
    return None
