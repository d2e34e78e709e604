"""Turns a process into one of a rehearsal: what ``verl_rehearsal.pth`` calls at the start of each Python with ``VERL_REHEARSAL=1``.

Child processes, such as Ray's workers, inherit the variable. verl-regress does not use this: its cluster declares its own
resources, and its ``sitecustomize`` calls ``verl_rehearsal.install()``.

Touches ``ray.init``, read in Ray 2.60. verl asks Ray for more CPUs than a laptop has, for a resource named ``cpu``, and whether there
are enough GPUs. Where no cluster was named, the driver's own Ray declares them; processes share whatever cores there are.
"""

import functools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import verl_rehearsal

DECLARED = 64  # CPUs, GPUs and cpu
_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


@functools.cache  # in a virtual environment Python 3.11 reads each .pth file twice
def activate() -> None:
    """Install the hooks, hide the GPUs, and let the driver's Ray declare what verl asks for. Ends the process if that fails."""
    try:
        import wrapt

        hide_gpus()
        verl_rehearsal.install()
        wrapt.register_post_import_hook(lambda ray: wrapt.wrap_function_wrapper(ray, "init", _with_resources), "ray")
    except Exception as error:
        print(
            f"verl-rehearsal: this Python ({sys.executable}) cannot rehearse, as VERL_REHEARSAL={os.environ['VERL_REHEARSAL']} asks: "
            f"{type(error).__name__}: {error}; install verl-rehearsal again with pip, or unset VERL_REHEARSAL.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)  # site.py goes on after an Exception, and verl would train on a GPU or fail much later


def hide_gpus(devices: Path = Path("/dev")) -> None:
    """Hide this machine's GPUs from this process and its children. The driver says so, once, when it imports verl."""
    import wrapt

    found = [*sorted(devices.glob("nvidia[0-9]*")), *devices.glob("kfd")]
    if not found or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return  # none, or Ray or the user has hidden them
    os.environ.update(dict.fromkeys(_HIDING, ""))
    if "RAY_RAYLET_PID" in os.environ:
        return  # a worker, and the driver has said so

    def say(_module: ModuleType) -> None:
        print(
            f"verl-rehearsal: VERL_REHEARSAL={os.environ['VERL_REHEARSAL']} (from the environment) trains on the CPU, so the GPUs of "
            f"this machine ({', '.join(map(str, found))}) are not used; unset it to train on them.",
            file=sys.stderr,
            flush=True,
        )

    wrapt.register_post_import_hook(say, "verl")


def _with_resources(init: Callable[..., Any], _instance: None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    import ray

    names_cluster = args or kwargs.get("address") or "RAY_ADDRESS" in os.environ
    if names_cluster or ray.is_initialized():
        return init(*args, **kwargs)
    declared = {
        "address": "local",
        "num_cpus": kwargs.get("num_cpus") or DECLARED,
        "num_gpus": kwargs.get("num_gpus") or DECLARED,
        "resources": {"cpu": DECLARED} | (kwargs.get("resources") or {}),
    }
    # Ray refuses to declare GPUs that are hidden from it; its workers hide them again.
    hidden = {name: os.environ.pop(name) for name in _HIDING if os.environ.get(name) == ""}
    try:
        return init(**{**kwargs, **declared})
    finally:
        os.environ.update(hidden)
