"""The cause found for each real failure of a real job (tests/recorded/failures/README.md), and the hints for them."""

import json
from pathlib import Path

import pytest
import yaml
from shared_fixtures import write

from verl_regress.jobs import failure, hints

HOME = Path(__file__).parents[1] / "recorded" / "failures"
CASES = yaml.safe_load((HOME / "cases.yaml").read_text())
FILES = sorted(path for path in HOME.iterdir() if path.suffix in (".json", ".log"))
BY_NAME = {case["name"]: case for case in CASES}


def plan_of(case):
    code_id = f"failure-{case['name'].replace('_', '-')}" if "edits" in case else "codeA"
    reward = f"compute_score in /private/user/code/failures/{case['name']}.py" if "reward_fn" in case else None
    return {"code_path": f"/private/common/code/verl/{code_id}", "shared_root": "/private", "reward_function": reward}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_root_exception_its_place_its_step_and_what_to_do(make_job, file):
    """From what the job's processes recorded, or from the end of the driver's log."""
    job, case = make_job(), BY_NAME[file.stem]
    if file.suffix == ".json":
        job.reports.mkdir(parents=True)
    kept = job.driver_log if file.suffix == ".log" else job.reports / "exceptions-all-1.json"
    kept.write_bytes(file.read_bytes())
    found, wanted = failure.root_cause(job, plan_of(case), 1), case["cause"]
    if file.suffix == ".json":
        assert found == {**wanted, "step": None}  # the step is in the log
    else:
        assert found == {**wanted, "where": wanted["where"] if case.get("only_logged") else None}


def test_the_table_is_complete_and_its_files_are_small():
    assert len(CASES) == len(BY_NAME) >= 15
    assert {case["workload"] for case in CASES} == {"ppo", "grpo", "sft"}
    assert {path.stem for path in FILES} == set(BY_NAME)
    assert max(path.stat().st_size for path in FILES) <= 20_000


NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:77, unhandled system error, NCCL version 2.26.2"
)
SHM = "/dev/shm of the nodes is too small: raise SHM_SIZE "
DISK = "a disk is full: "
GPU = "a GPU has too little memory: "
NODE = "a node has too little memory: "
NETWORK = "processes cannot reach each other over the network interface "
BETWEEN_GPUS = "GPUs could not talk to each other: "
# An exception with its hint, and one that only looks like it, with the hint that is right for that one.
EXAMPLES = [
    ("ModuleNotFoundError", "No module named 'mlflow'", "the nodes' Python has no module mlflow: ",
     "ImportError", "cannot import name 'x' from 'verl' (/private/No module named 'x'/verl.py)", None),
    ("FileNotFoundError", "Unable to find '/private/datasets/nothing.parquet'", "the data is not there: ",
     "FileNotFoundError", "[Errno 2] No such file or directory: '/private/jobs/a/dumped.parquet'", None),
    ("NotImplementedError", "Reward function is not implemented for data_source='my/sums'",
     "verl has no reward for that data_source of the data: ",
     "KeyError", "'data_source' (/private/verl/utils/reward_score/__init__.py)", None),
    ("RuntimeError", "unable to open shared memory object </torch_12_3> in read-write mode: Too many open files (24)",
     "a process has too many files open: ", "ValueError", "Too many open files in the batch: 9", None),
    ("PermissionError", "[Errno 13] Permission denied: '/tmp/ray/session_2026-01-01/ports_by_node.json.lock'",
     "/tmp/ray on that node belongs to another user", "PermissionError", "[Errno 13] Permission denied: '/private/tmp/ray/x'", None),
    ("torch.distributed.DistBackendError",
     f"{NCCL} Last error: Error while creating shared memory segment /dev/shm/nccl-aB3 (size 9637888), error: No space left on device (28)",
     SHM, "OSError", "[Errno 28] No space left on device: '/private/jobs/shm'", DISK),
    ("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
     SHM, "triton.runtime.errors.OutOfResources", "out of resource: shared memory, Required: 106496, Hardware limit: 101376", None),
    ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.", GPU,
     "ray.exceptions.OutOfMemoryError", "Task was killed due to the node running low on memory.", NODE),
    ("torch.distributed.DistBackendError", f"{NCCL} ncclUnhandledCudaError: Last error: Cuda failure 2 'out of memory'", GPU,
     "ValueError", "an answer about CUDA is out of memory of the buffer", None),
    ("ValueError", "Free memory on device cuda:0 (3.2/79.3 GiB) on startup is less than desired GPU memory utilization (0.9, 71.3 GiB).",
     "vLLM starts with less free GPU memory than it is to use: ",
     "ValueError", "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", None),
    ("MemoryError", "", NODE, "RuntimeError", "the replay memory is empty", None),
    ("", "the trainer was ended by SIGKILL, out of memory: the kernel of worker-0 killed it", NODE,
     "ValueError", "Cannot allocate memory slots: 3 infos are missing", None),
    ("RuntimeError", "[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0", DISK,
     "RuntimeError", "[enforce fail at inline_container.cc:145] . PytorchStreamReader failed reading zip archive: failed finding central directory", None),
    ("OSError", "[Errno 98] Address already in use", "a port is taken on that node: ",
     "OSError", "[Errno 99] Cannot assign requested address: '/private/EADDRINUSE'", None),
    ("RuntimeError", f"{NCCL} ncclInternalError: Internal check failed. Last error: Bootstrap : no socket interface found", NETWORK,
     "RuntimeError", "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:3", None),
    ("torch.distributed.DistBackendError", NCCL, BETWEEN_GPUS,
     "RuntimeError", "Error(s) in loading state_dict of /private/NCCL error/model.py", None),
    ("wandb.errors.errors.CommError", "Run initialization has timed out after 90.0 sec.", "wandb cannot reach its server from the nodes: ",
     "wandb.errors.errors.CommError", "You do not have permission to access the resource. Verify that there are no issues with your networking setup.", None),
    ("wandb.errors.errors.UsageError", "api_key not configured (no-tty). call wandb.login", "wandb has no key that it takes: ",
     "openai.OpenAIError", "The api_key client option must be set", None),
    ("ray.exceptions.ActorDiedError", "The actor died unexpectedly before finishing this task (WorkerDict)",
     "one of the training processes was killed or crashed: ",
     "ray.exceptions.ActorDiedError", "The actor died because of an error raised in its creation task", None),
    ("AssertionError", "normalized ppo_mini_batch_size 3 should be divisible by 2", "batch sizes must fit each other: ",
     "ValueError", "hidden_size 100 must be divisible by num_attention_heads 3", None),
    ("requests.exceptions.ConnectionError", "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded",
     "a model or data set was asked for from the Hugging Face hub, ",
     "requests.exceptions.ConnectionError", "HTTPConnectionPool(host='127.0.0.1', port=8000): Max retries exceeded", None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "cure", "other_kind", "other_message", "other_cure"), EXAMPLES)
def test_a_hint_fits_its_cause_and_nothing_that_looks_like_it(
    kind, message, cure, other_kind, other_message, other_cure
):
    assert hints.find(kind, message).startswith(cure)
    assert (hints.find(other_kind, other_message) or "").startswith(other_cure or "")
    assert (hints.find(other_kind, other_message) is None) == (other_cure is None)


def test_every_hint_has_an_example():
    advice = [one.partition("{")[0] for one in hints.HINTS.values()]
    assert [one for one in advice if not any(hints.find(*each[:2]).startswith(one) for each in EXAMPLES)] == []


def test_an_unknown_exception_has_no_hint():
    assert hints.find("ZeroDivisionError", "division by zero") is None


@pytest.mark.parametrize("is_recorded", [True, False])
def test_the_hint_is_for_the_whole_message_however_much_of_it_is_kept(make_job, is_recorded):
    job = make_job()
    lines = [
        f"{NCCL} {'x' * 300}",
        "ncclSystemError: System call failed.",
        "Last error:",
        "/dev/shm/nccl-a: No space left on device (28)",
    ]
    if is_recorded:
        one = {
            "type": "torch.distributed.DistBackendError",
            "message": "\n".join(lines),
            "frames": [],
            "link": None,
            "came_from_ray": False,
        }
        write(
            job.reports / "exceptions-w-1.json",
            json.dumps({"exceptions": [{"time": 1.0, "is_driver": True, "chain": [one], "lines": []}]}),
        )
    else:
        write(
            job.driver_log,
            "\n".join(
                ["Traceback (most recent call last):", f"torch.distributed.DistBackendError: {lines[0]}", *lines[1:]]
            ),
        )
    found = failure.root_cause(job, plan_of({"name": "nccl"}), 1)
    assert found["hint"].startswith(SHM)
    assert len(found["message"]) == 300


MANAGERS = "verl/experimental/reward_loop/reward_manager/"


@pytest.mark.parametrize(
    ("kind", "message", "where", "returned"),
    [
        ("KeyError", "'score'", f"{MANAGERS}gdpo.py:89", "a dict without 'score'"),
        ("KeyError", "'score'", "user/code/reward.py:3", None),
        ("KeyError", "'score'", None, None),
        ("KeyError", "'rm_scores'", "user/code/reward.py:3", None),
        ("KeyError", "'ground_truth'", f"{MANAGERS}naive.py:53", None),
        ("TypeError", "unsupported operand type(s) for +=: 'NoneType' and 'float'", f"{MANAGERS}dapo.py:131", "what is no number"),
        ("TypeError", "unsupported operand type(s) for +: 'NoneType' and 'int'", "user/code/reward.py:3", None),
        ("TypeError", "compute_score() got an unexpected keyword argument 'extra_info'", "verl/trainer/ppo/reward.py:42", None),
        ("pydantic_core._pydantic_core.ValidationError", "1 validation error for Rollout temperature Input should be a valid number", None, None),
    ],
)  # fmt: skip
def test_only_what_comes_from_the_returned_value_is_put_to_the_reward_function(kind, message, where, returned):
    hint = hints.of_reward(kind, message, where, "f in r.py")
    assert hint == (
        returned
        and f"f in r.py returned {returned} for an answer: return a number for every answer, or a dict with a number as its 'score'"
    )
