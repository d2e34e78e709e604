"""The environment variables of a job: PYTHONPATH with the snapshot first, the hooks, and what the user asked for."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verl_regress.base.errors import BadInput, shown
from verl_regress.base.jobspec import Secret
from verl_regress.base.layout import HELPER_DIR, JobDir, SharedRoot
from verl_regress.base.trust import JOB_UIDS
from verl_regress.plan.compose import Composed
from verl_regress.plan.overrides import DETERMINISTIC
from verl_regress.plan.request import CommandLine, Request
from verl_regress.secrets import secret_files

# Ray 2.60 pins every GPU task to CUDA_VISIBLE_DEVICES if env_vars has it, and corrects a RAY_ADDRESS there for the
# driver but not for its actors; only "auto" does no harm.
_FINDS_CLUSTER = "the job finds its cluster by itself"
_PINS_GPUS = "Ray gives each process its own GPUs, and this would pin them all to the same"
_REFUSED_ENV = {
    "CUDA_VISIBLE_DEVICES": _PINS_GPUS,
    "ASCEND_RT_VISIBLE_DEVICES": _PINS_GPUS,
    "RAY_ADDRESS": _FINDS_CLUSTER,
    "RAY_API_SERVER_ADDRESS": _FINDS_CLUSTER,
    "VERL_FILE_LOGGER_PATH": "a job writes only into its own directory",
    "VERL_REHEARSAL_REPORTS": "a job writes only into its own directory",
    "RAY_DEBUG": "the knob DEBUGGER turns Ray's debugger on, for one submission",
    "RAY_DEBUG_POST_MORTEM": "DEBUGGER=post-mortem does that, for one submission",
}
_OURS = "VERL_REGRESS_"  # begins our own variables; a job may set these:
_FOR_JOBS = ("VERL_REGRESS_HOOKS", "VERL_REGRESS_OFFLINE")
# Variables that Python or our sitecustomize reads before the hook env_vars can set anything.
_READ_AT_START = ("PYTHONPATH", "VERL_REGRESS_HOOKS")

_RAY_INIT = "ray_kwargs.ray_init"  # in verl's config: the arguments of ray.init, and the values of those for a new cluster that do no harm
_TAKEN: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("num_cpus", "num_gpus", "resources", "labels", "object_store_memory", "_node_name"), (None,)),
    **dict.fromkeys(("local_mode", "_system_config", "_enable_object_reconstruction"), (None, False, {})),
    "address": (None, "auto"),
}
_FOR_NEW_CLUSTERS = "Ray takes it for a new cluster only, and the job's cluster runs already"


@dataclass(frozen=True)
class Environment:
    """The variables of every process of a job, and its secrets by name, never their values.

    `origins` says where a variable was asked for. The hook env_vars sets those of `by_hook` in each process: those with a `$`, which Ray would
    expand, and those of DETERMINISTIC=1, which verl passes to its actors itself: Ray takes no variable from both.
    """

    variables: Mapping[str, str]
    origins: Mapping[str, str]
    by_hook: Mapping[str, str]
    secrets: tuple[Secret, ...]

    @classmethod
    def build(cls, root: SharedRoot, request: Request, code_path: Path, job: JobDir) -> "Environment":
        """The environment of `job`. Raises BadInput for a variable or a secret that a job may not set."""
        asked, secrets = _asked(root, request), secret_files.named(request.spec)
        variables = _variables(root, request, code_path, job, {name: value for name, (value, _) in asked.items()})
        by_verl = request.base.deterministic.env_vars if request.base.deterministic else {}
        by_hook = {name: value for name, value in variables.items() if "$" in value or name in by_verl}
        for secret in secrets:
            if secret.name in variables:
                raise BadInput(
                    f"The secret {secret.name} is also set as plain text, by {request.base.origin} or by the job's own environment: "
                    "remove it there, or give the secret another name."
                )
        hooks = [secret_files.HOOK] if secrets else []
        hooks += ["env_vars"] if by_hook else []  # hooks before this one do not see what it sets
        variables["VERL_REGRESS_HOOKS"] = ",".join([*hooks, variables["VERL_REGRESS_HOOKS"]])
        if secrets:
            variables[secret_files.FILE_VARIABLE] = str(secret_files.file_of(root, request.defaults.cluster, job))
        return cls(variables, {name: origin for name, (_, origin) in asked.items()}, by_hook, secrets)

    def with_owners(self, users: Iterable[str]) -> "Environment":
        """The same for a job whose directory belongs to one of these users: Ray carries them, so nobody else can change them."""
        return replace(self, variables={**self.variables, JOB_UIDS: " ".join(sorted(users))})

    def runtime_env(self) -> dict[str, Any]:
        """The job's runtime_env: environment variables only, nothing is uploaded."""
        return {"env_vars": {name: value for name, value in self.variables.items() if name not in self.by_hook}}

    @property
    def secrets_file(self) -> Path | None:
        """Where the values of its secrets are until it is over; None if it has none."""
        return Path(self.variables[secret_files.FILE_VARIABLE]) if self.secrets else None

    def check_ray_init(self, composed: Composed) -> None:
        """Raise BadInput for what a job's own `ray.init` refuses, because its cluster runs already and Ray has the job's variables.

        Read in Ray 2.60 (ray/_private/worker.py: init; ray/runtime_env/runtime_env.py: _merge_runtime_env).
        """
        for name, value in (composed.value(_RAY_INIT) or {}).items():
            if value not in _TAKEN.get(name, (value,)):
                why = _FINDS_CLUSTER if name == "address" else _FOR_NEW_CLUSTERS
                raise BadInput(f"{composed.named(f'{_RAY_INIT}.{name}', value)} is refused: {why}; leave it out.")
        variables = composed.value(f"{_RAY_INIT}.runtime_env.env_vars") or {}
        is_merged = self.variables.get("RAY_OVERRIDE_JOB_RUNTIME_ENV") != "1"  # else Ray takes what ray.init says
        both = next((name for name in variables if is_merged and name in self.runtime_env()["env_vars"]), None)
        if both is not None:
            raise BadInput(
                f"{composed.named(f'{_RAY_INIT}.runtime_env.env_vars.{both}', variables[both])} is refused: the job has this variable, too "
                f"(from {self.origins.get(both, 'verl-regress')}), and Ray takes none from both; leave it out, and write it under env_vars of the JobSpec."
            )


def _variables(
    root: SharedRoot, request: Request, code_path: Path, job: JobDir, asked: Mapping[str, str]
) -> dict[str, str]:
    """The variables, without those for secrets. The snapshot comes first on PYTHONPATH, and no entry is empty."""
    workload, said = request.workload, request.said
    seeds = "rl" in request.deterministic.overrides  # or all answers of a group would be equal, and GRPO's advantages 0
    hooks = [
        "identity,process_memory,job_exceptions",
        "debugger" if said.debugger else "",
        "torch_seed" if said.seed is not None else "",
        "last_bit" if said.perturbed else "",
        "recomputed_rewards" if said.recompute_rewards else "",
        *workload.hooks,
        "verl_rehearsal.request_seed" if seeds else "",
        asked.get("VERL_REGRESS_HOOKS", ""),
    ]
    layers = ("py/hooks", *request.base.python_layers, *(["rehearsal"] if seeds else []))
    ours = [str(code_path), *(str(HELPER_DIR / layer) for layer in layers)]
    others = os.pathsep.join((asked.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")))
    return {
        "HF_HOME": str(root.hf),
        "HF_MODULES_CACHE": str(job.hf_modules),  # imported, so it is no other job's
        "HYDRA_FULL_ERROR": "1",
        "PYTHONDONTWRITEBYTECODE": "1",  # a snapshot has its own bytecode, made once
        "PYTHONUNBUFFERED": "1",
        "RAY_JOB_STOP_WAIT_TIME_S": "15",  # Ray's 3 s leave the launcher no time to record the end
        "VERL_FILE_LOGGER_PATH": str(job.metrics),
        **workload.env_vars,
        **asked,
        **_of_debugger(said),
        "VERL_REGRESS_HOOKS": ",".join(filter(None, hooks)),
        "VERL_REGRESS_JOB_DIR": str(job.path),
        **({"VERL_REHEARSAL_REPORTS": str(job.reports)} if request.base.python_layers else {}),
        "PYTHONPATH": os.pathsep.join(filter(None, (*ours, *others.split(os.pathsep)))),
    }


def _of_debugger(said: CommandLine) -> dict[str, str]:
    """The variables of Ray's debugger (2.60), which Ray itself turns on wherever debugpy is installed: off, unless asked for."""
    variables = {
        "RAY_DEBUG": "1" if said.debugger else "0",  # 0: breakpoint() does nothing
        "RAY_DEBUG_POST_MORTEM": "1" if said.debugger == "post-mortem" else "",
        "VERL_REGRESS_DEBUGGER_HOST": said.debugger_host or "",
    }
    return {name: value for name, value in variables.items() if value}


def _asked(root: SharedRoot, request: Request) -> dict[str, tuple[str, str]]:
    """The variables that were asked for, and where. Precedence, highest first: DETERMINISTIC=1, JobSpec, base config."""
    base, spec, asked = request.base, request.spec, dict[str, tuple[str, str]]()
    layers = {base.origin: base.env_vars, spec.origin: spec.env_vars, DETERMINISTIC: request.deterministic.env_vars}
    for origin, layer in layers.items():
        for name, value in layer.items():
            asked[name] = root.fill_in(value), origin
            reason = _why_refused(name, root.fill_in(value))
            if reason is not None:
                raise BadInput(
                    f"env_vars.{shown(name)}={shown(repr(value))} (from {origin}) is refused: {reason}; leave it out."
                )
    return asked


def _why_refused(name: str, value: str) -> str | None:
    """Why a job may not set a variable to this value; None if it may."""
    if name in _READ_AT_START and "$" in value:
        return "Python reads it as it starts, when Ray has filled in $, perhaps with nothing"
    if name.startswith(_OURS) and name not in _FOR_JOBS:
        return "verl-regress sets it"
    return None if (name, value) == ("RAY_ADDRESS", "auto") else _REFUSED_ENV.get(name)
