"""Makes verl's SFT trainer on Ray work in a driver that has no GPU (`python -m verl.trainer.sft_trainer_ray`).

Up to verl 0.8.0 ``trainer.device`` decides what the placement groups request from Ray, where only "cuda" becomes the resource GPU. It is
also the device on which the driver itself adds up lengths and losses (``SFTTrainer.device_name``): those tensors stay on the CPU.
``ray.init()`` without an address gets "auto": a release that ignores RAY_ADDRESS would start its own cluster inside the worker.
"""

import sys
from types import ModuleType
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


def keep_statistics_on_the_cpu(trainer: ModuleType) -> None:
    """Make ``SFTTrainer.device_name`` always "cpu". Ends the process with one sentence if ``fit`` does not read it."""
    fit = getattr(getattr(trainer, "SFTTrainer", None), "fit", None)
    if "device_name" not in getattr(getattr(fit, "__code__", None), "co_names", ()):
        verl = sys.modules.get("verl")
        raise SystemExit(
            f"verl-regress: {DRIVER} of the verl at {getattr(verl, '__file__', 'an unknown place')} has no SFTTrainer.fit that reads "
            "self.device_name: train with verl 0.7.1 to 0.9.1, or teach py/hooks/sft_driver.py what this release does."
        )
    trainer.SFTTrainer.device_name = property(lambda _self: "cpu", lambda _self, _value: None)
