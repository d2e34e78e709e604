"""Makes verl's SFT trainer on Ray right for a driver that has no GPU.

Acts in the driver alone (`python -m verl.trainer.sft_trainer_ray`); every other process of the job is left as it is.

``trainer.device`` has one value for two things. It names what the placement groups ask Ray for up to verl 0.8.0, where only
"cuda" becomes the resource GPU, and it is the device on which the driver itself adds up sequence lengths and validation losses
(``SFTTrainer.device_name``), where "cuda" needs a GPU that the driver has not. On GPU clusters the configuration keeps "cuda", and
the driver's own tensors stay on the CPU.

``ray.init()`` gets the address "auto" where it is called without one: a release that does not follow RAY_ADDRESS would
start a cluster of its own inside the worker.

Touches ``SFTTrainer.device_name`` and the call of ``ray.init`` in verl.trainer.sft_trainer_ray, read in verl 0.7.1 to
0.9.1 and main at 1dda039b.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

DRIVER = "verl.trainer.sft_trainer_ray"


def install() -> None:
    """Wrap ``ray.init`` where this process is the SFT driver; do nothing elsewhere."""
    if DRIVER not in sys.orig_argv:
        return
    import ray  # the driver imports it next anyway

    ray.init = _connecting(ray.init)


def _connecting(init: Callable[..., Any]) -> Callable[..., Any]:
    def connect(address: str | None = None, **kwargs: Any) -> Any:
        # The trainer's module is __main__, which nothing imports: here its class is there, and not yet used.
        keep_statistics_on_the_cpu(sys.modules["__main__"])
        return init("auto" if address is None else address, **kwargs)

    return connect


def keep_statistics_on_the_cpu(trainer: ModuleType) -> None:
    """Make ``SFTTrainer.device_name`` "cpu", whatever is assigned to it. Ends the process with one sentence if it is gone."""
    fit = getattr(getattr(trainer, "SFTTrainer", None), "fit", None)
    if "device_name" not in getattr(getattr(fit, "__code__", None), "co_names", ()):
        verl = sys.modules.get("verl")
        raise SystemExit(
            f"verl-regress: {DRIVER} of the verl at {getattr(verl, '__file__', 'an unknown place')} has no SFTTrainer.fit "
            "that reads self.device_name, which the hook sft_driver keeps on the CPU: train with verl 0.7.1 to 0.9.1, or "
            "teach py/hooks/sft_driver.py what this release does."
        )
    trainer.SFTTrainer.device_name = property(lambda _self: "cpu", lambda _self, _value: None)
