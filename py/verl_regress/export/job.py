"""One export: the plan of a job, the cluster that it was planned for, as its knobs describe it, and what all formats have in common."""

import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from verl_regress import __version__
from verl_regress.base.errors import printable
from verl_regress.base.files import as_json
from verl_regress.base.knobs import Knobs
from verl_regress.base.layout import HELPER_DIR
from verl_regress.plan.environment import Environment
from verl_regress.plan.plan import Plan

HELPER = str(HELPER_DIR / "py/run.py")  # its entry point on the shared root: this version of it
REQUEST_DIR = "/etc/verl-regress"  # where a container finds the request's files


def name_of(submission_id: str, most: int) -> str:
    """The id as a name of at most `most` characters that Kubernetes, Compose and dstack accept: RFC 1035, lower case.

    An id that needs more than lower case gets a hash, so that two ids never have one name.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", submission_id.lower()).strip("-")
    plain = plain if plain[0].isalpha() else f"job-{plain}"
    if len(plain) <= most and plain == submission_id.lower():
        return plain
    return f"{plain[: most - 9].rstrip('-')}-{hashlib.sha256(submission_id.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Vendor:
    """A vendor of GPUs: `kubernetes` is its device plugin's resource, `dstack` its name in dstack's `gpu.vendor`.

    `ids` are the variables that say which GPUs are a container's own, if its engine passes others, too. `numbered` is what a device file is
    called before its number, where a container gets its own files and counts them from 0.
    """

    kubernetes: str
    dstack: str | None
    ids: tuple[str, ...] = ()
    numbered: str | None = None


# By profile, as scripts/lib/lifecycle/compose.bash does it.
_VENDORS = {
    "gpu": Vendor("nvidia.com/gpu", "nvidia"),
    "rocm": Vendor("amd.com/gpu", "amd", ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
    "npu": Vendor("huawei.com/Ascend910", None, ("ASCEND_RT_VISIBLE_DEVICES",), "/dev/davinci"),
}


@dataclass(frozen=True)
class Site:
    """What a cluster is made of: the knobs, and what the scripts know beyond them.

    `workers` has the GPU ids of each worker (`0,1,2,3`), `driver` are files of the host that a worker gets, and `environment` is what the
    profile's compose file adds to it. `volume` is where the shared root is there, in the format's own words.
    """

    knobs: Knobs
    image: str
    user: str
    workers: Sequence[str]
    resources: Mapping[str, float]
    driver: Sequence[str]
    unset: Sequence[str]
    environment: Mapping[str, str]
    volume: str

    @property
    def gpus_per_worker(self) -> int:
        """How many GPUs each worker has."""
        return int(self.knobs["GPUS_PER_WORKER"])

    @property
    def declared(self) -> dict[str, str]:
        """How many CPUs and GPUs a worker declares to Ray; what is missing here Ray counts."""
        gpus = "" if self.knobs["PROFILE"] == "npu" else self.knobs["WORKER_GPUS"]
        return {name: count for name, count in (("CPU", self.knobs["WORKER_CPUS"]), ("GPU", gpus)) if count}

    @property
    def shm_bytes(self) -> int:
        """SHM_SIZE in bytes; its units are powers of 1024, as the engine reads them."""
        number = self.knobs["SHM_SIZE"].lower().rstrip("b")
        unit = number[-1] if number[-1] in "kmgt" else ""
        return int(number.removesuffix(unit)) << 10 * " kmgt".index(unit or " ")


@dataclass(frozen=True)
class Export:
    """A plan for the cluster `name` that the file makes for this job alone, and the Ray of the cluster here."""

    planned: Plan
    site: Site
    name: str
    ray_version: str

    @classmethod
    def from_plan(cls, planned: Plan, site: Site, ray_version: str, longest: int) -> "Export":
        """The export of a plan that was made for a cluster here."""
        request, name = planned.request, name_of(planned.job.submission_id, longest)
        said = replace(request.said, submission_id=planned.job.submission_id)
        defaults = replace(request.defaults, cluster=name, max_running=None)
        there = replace(request, said=said, defaults=defaults, owner=None)
        environment = Environment.build(planned.job.root, there, planned.code.path, planned.job)
        return cls(replace(planned, request=there, environment=environment), site, name, ray_version)

    @property
    def vendor(self) -> Vendor | None:
        """Whose GPUs the profile's workers have."""
        return _VENDORS.get(self.planned.request.defaults.profile)

    @property
    def root(self) -> str:
        """The shared root, as every node sees it."""
        return str(self.planned.job.root.path)

    @property
    def secrets(self) -> list[str]:
        """The names of the job's secrets."""
        return [secret.name for secret in self.planned.environment.secrets]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every node, as docker-compose.yaml has it, without the token."""
        of_ray = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
        return {"HOME": "/tmp", "USER": "ray", "SHARED_ROOT": self.root, **of_ray}

    def request_files(self) -> dict[str, str]:
        """The files from which the helper makes the same plan there, by name."""
        request = self.planned.request
        spec = request.spec.document
        named = f"job_spec.{'json' if spec.origin.endswith('.json') else 'yaml'}"
        return {
            "asked.json": as_json(request.recorded()),
            named: spec.text,
            "ray_config.yaml": request.base.document.text,
        }

    def file(
        self, kind: str, *documents: Mapping[str, Any], run: Iterable[str], before: Iterable[str], lost: Iterable[str]
    ) -> str:
        """The documents below a comment that says how they are run; `lost` is what this kind of file cannot carry over."""
        planned = self.planned
        spec, code, profile = planned.request.spec, planned.code, planned.request.defaults.profile
        given = (f"{name}={value}" for name, value in self.site.knobs.typed().items())
        lines = [
            f"{spec.workload} with snapshot {code.code_id} (verl {code.record['verl_version']}), profile {profile}, as {kind}. "
            f"Made by verl-regress {__version__}:",
            f"  {shlex.join(['make', 'export', *given])}",
            "",
            "Run it:",
            *(f"  {line}" for line in run),
            "",
            "Before that:",
            f"- The shared root must be at {self.root} on every node there, with at least these from 'make prepare' and 'make snapshot':",
            *(f"    {path}" for path in (HELPER_DIR.parent, code.path, *(one.path for one in planned.inputs))),
            f"- The image {self.site.image} must be in a registry that answers there: push it, and export again with NODE_IMAGE=its name there.",
            *(f"- {line}" for line in before),
            "",
            "Not carried over:",
            f"- A second run: {planned.job.submission_id} gets its directory once. Export again to run it again.",
            "- The queue: this cluster is for this job alone, so it waits for no other and MAX_RUNNING means nothing.",
            "- This checkout's commands: 'make status', 'make wait', 'make stop', 'make debug' and 'make verify' do not reach it. Where the",
            "  shared root is the same file system, 'make jobs' and 'make logs' read its records.",
            *(f"- {line}" for line in lost),
        ]
        comment = "".join(f"# {printable(line)}".rstrip() + "\n" for line in lines)
        return "\n".join([comment, "---\n".join(map(as_yaml, documents))])


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block, so that scripts and documents stay readable; no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)


def as_yaml(document: Mapping[str, Any]) -> str:
    """A document in the order in which it was made."""
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000))
