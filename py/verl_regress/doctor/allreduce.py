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
_WITHIN = 12  # seconds


def is_possible() -> bool:
    """Is torch on this node?"""
    return importlib.util.find_spec("torch") is not None


def run(rank: int, addresses: list[str], backend: str) -> dict[str, Any]:
    """What the process `rank` of them measured: megabytes a second, alone with each other one, too; or its `error`."""
    spec = importlib.util.find_spec(__name__)
    source = spec.loader.get_source(__name__)  # type: ignore[union-attr]  # both loaders have it
    words = [str(rank), str(len(addresses)), addresses[0], backend]
    try:
        ran = subprocess.run(
            [sys.executable, "-c", source, *words], capture_output=True, text=True, timeout=2 * _WITHIN, check=False
        )
        measured: dict[str, Any] = (
            json.loads(ran.stdout) if ran.returncode == 0 else {"error": ran.stderr.strip().splitlines()[-1]}
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no end in {2 * _WITHIN} s"}
    return measured


def _main(rank: int, size: int, address: str, backend: str) -> None:
    import torch
    from torch import distributed

    distributed.init_process_group(
        backend, init_method=f"tcp://{address}:{_PORT}", rank=rank, world_size=size, timeout=timedelta(seconds=_WITHIN)
    )
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
