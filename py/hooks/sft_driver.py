"""Makes verl's SFT trainer on Ray work in a driver that has no GPU (`python -m verl.trainer.sft_trainer_ray`).

Up to verl 0.8.0 ``trainer.device`` decides what the placement groups request from Ray, where only "cuda" becomes the resource GPU. It is
also the device on which the driver itself adds up lengths and losses (``SFTTrainer.device_name``): those tensors stay on the CPU.
``ray.init()`` without an address gets "auto": a release that ignores RAY_ADDRESS would start its own cluster inside the worker.
"""

import sys
from typing import Any

DRIVER = "verl.trainer.sft_trainer_ray"


def install() -> None:
    """Wrap ``ray.init`` if this process is the SFT driver; do nothing elsewhere."""
    if DRIVER not in sys.orig_argv:
        return
    import ray  # the driver imports it next anyway

    init = ray.init

    def connect(address: str | None = None, **kwargs: Any) -> Any:
        # The trainer's module is __main__, which nothing imports. Now its class exists and has not been used yet.
        keep_statistics_on_the_cpu(sys.modules["__main__"])
        return init("auto" if address is None else address, **kwargs)

    ray.init = connect


def keep_statistics_on_the_cpu(trainer: Any) -> None:
    """Make ``SFTTrainer.device_name`` always "cpu", which ``fit`` reads."""
    trainer.SFTTrainer.device_name = property(lambda _self: "cpu", lambda _self, _value: None)
