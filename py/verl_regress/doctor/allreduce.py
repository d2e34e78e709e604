"""A real all-reduce between the workers, as torch makes it for a job. This file runs as a process of its own, with `python3 -c`."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

_PORT = 45003  # of torch's store, on the first worker
_BYTES = 1 << 24
_WITHIN = 12  # seconds that a step may take
_LONGEST = 30  # and all of it


def is_possible() -> bool:
    """Is torch on this node?"""
    return importlib.util.find_spec("torch") is not None


def run(rank: int, addresses: list[str], backend: str) -> dict[str, Any]:
    """What the process `rank` of them measured: megabytes a second, alone with each other one, too; its `error`; or that it is too `late`."""
    spec = importlib.util.find_spec(__name__)
    source = spec.loader.get_source(__name__)  # type: ignore[union-attr]  # both loaders have it
    words = [str(rank), str(len(addresses)), addresses[0], backend]
    try:
        ran = subprocess.run(
            [sys.executable, "-c", source, *words], capture_output=True, text=True, timeout=_LONGEST, check=False
        )
    except subprocess.TimeoutExpired as ended:
        if ended.stdout:  # all processes have met
            return {"error": f"no end in {_LONGEST} s"}
        return {"late": f"torch was not imported on all workers in {_LONGEST} s"}
    if ran.returncode != 0:
        return {"error": (ran.stderr.strip().splitlines() or [f"exit status {ran.returncode}"])[-1]}
    measured: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])  # NCCL writes there, too
    return measured


def _main(rank: int, size: int, address: str, backend: str) -> None:
    import torch
    from torch import distributed

    late = timedelta(seconds=2 * _LONGEST)
    store = distributed.TCPStore(address, _PORT, size, rank == 0, late)  # waits for all
    print("ready", flush=True)
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=_WITHIN))
    data = torch.ones(_BYTES // 4, device="cuda" if backend == "nccl" else "cpu")

    def speed(group: Any) -> float:
        distributed.all_reduce(data[:1], group=group)
        began = time.monotonic()
        distributed.all_reduce(data, group=group)
        float(data[0])  # waits for it
        return _BYTES / 1e6 / (time.monotonic() - began)

    found: dict[str, Any] = {"all": speed(None), "pairs": {}}
    for first in range(size):
        for second in range(first + 1, size):
            group = distributed.new_group([first, second])
            if rank in (first, second):
                found["pairs"][first + second - rank] = speed(group)
    distributed.barrier()
    print(json.dumps(found), flush=True)
    os._exit(0)  # the end of the other processes would be an error of Gloo's


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
