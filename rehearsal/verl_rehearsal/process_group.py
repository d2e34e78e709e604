"""Starts verl's process group on gloo alone, and reports which node each training rank is on.

Touches ``torch.distributed.init_process_group``. ``initialize_global_process_group_ray`` of ``verl.utils.distributed``,
read in verl 0.7.1 to 0.9.1 and main at 1dda039b, asks for "cpu:gloo,<device>:<backend>". On CPUs that names the device
cpu twice, which torch refuses.
"""

from collections.abc import Callable, Mapping
from types import ModuleType

import wrapt

from verl_rehearsal import report

DUPLICATE = "cpu:gloo,cpu:gloo"


def apply(module: ModuleType) -> None:
    """Wrap ``init_process_group``; ``module`` is ``torch.distributed``."""
    # A torch built without distributed support has no process groups, so there is nothing to rehearse.
    if module.is_available():
        wrapt.wrap_function_wrapper(module, "init_process_group", _on_gloo)


def _on_gloo(
    init_process_group: Callable[..., None], _instance: None, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> None:
    if args[:1] == (DUPLICATE,):
        args = ("gloo", *args[1:])
    elif kwargs.get("backend") == DUPLICATE:
        kwargs = {**kwargs, "backend": "gloo"}
    init_process_group(*args, **kwargs)
    _report_rank()


def _report_rank() -> None:
    from torch import distributed

    rank, size = distributed.get_rank(), distributed.get_world_size()
    report.write("training_actor", {"rank": rank, "world_size": size, "node_ip": report.node_ip()})
