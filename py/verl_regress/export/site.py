"""The cluster that a job is exported from, as its knobs describe it, and how each vendor's GPUs are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Vendor:
    """A vendor of GPUs: `kubernetes` is its device plugin's resource, `dstack` its name in dstack's `gpu.vendor`.

    `ids` are the variables that say which GPUs are a container's own, where it sees the devices of all; none for a
    vendor whose engine passes only its own.
    """

    kubernetes: str
    dstack: str
    ids: tuple[str, ...] = ()


# By profile, as scripts/lib/lifecycle/compose.bash does it. A profile that is missing here has no GPUs.
VENDORS = {
    "gpu": Vendor("nvidia.com/gpu", "nvidia"),
    "rocm": Vendor("amd.com/gpu", "amd", ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
}


@dataclass(frozen=True)
class Site:
    """The knobs that decide what a cluster is made of.

    `workers` has the GPU ids of each worker (`0,1,2,3`). `cpus` and `gpus` are what a worker declares to Ray; None: Ray
    counts them. `environment` is what the profile's compose file adds to a worker. `volume` is where the shared root
    is there, in the format's own words. `deadlines` are PENDING_TIMEOUT, START_TIMEOUT, STALL_TIMEOUT and UNREACHABLE_TIMEOUT.
    """

    image: str
    user: str
    workers: tuple[str, ...]
    gpus_per_worker: int
    resources: Mapping[str, float]
    cpus: int | None
    gpus: int | None
    shm_size: str
    object_store_bytes: int
    gcs_port: int
    devices: tuple[str, ...]
    unset: tuple[str, ...]
    environment: Mapping[str, str]
    volume: str
    cluster_timeout: int
    deadlines: str

    @property
    def shm_bytes(self) -> int:
        """SHM_SIZE in bytes; its units are powers of 1024, as the engine reads them."""
        number = self.shm_size.lower().rstrip("b")
        unit = number[-1] if number[-1] in "kmgt" else ""
        return int(number.removesuffix(unit)) << 10 * " kmgt".index(unit or " ")
