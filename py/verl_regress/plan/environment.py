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
from verl_regress.plan.overrides import DETERMINISTIC
from verl_regress.plan.request import Request
from verl_regress.secrets import secret_files

# Ray 2.60 pins every GPU task to CUDA_VISIBLE_DEVICES if env_vars has it, and corrects a RAY_ADDRESS there for the
# driver but not for its actors; only "auto" does no harm.
_REFUSED_ENV = {
    **dict.fromkeys(
        ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"),
        "Ray gives each process its own GPUs, and this would pin them all to the same",
    ),
    "RAY_ADDRESS": "the job finds its cluster by itself",
    "RAY_API_SERVER_ADDRESS": "the job finds its cluster by itself",
    "VERL_FILE_LOGGER_PATH": "a job writes only into its own directory",
    "VERL_REGRESS_JOB_DIR": "a job writes only into its own directory",
    "VERL_REHEARSAL_REPORTS": "a job writes only into its own directory",
    secret_files.FILE_VARIABLE: "a job names its secrets under secrets",
    "RAY_DEBUG": "the knob DEBUGGER turns Ray's debugger on, for one submission",
    "RAY_DEBUG_POST_MORTEM": "DEBUGGER=post-mortem does that, for one submission",
    JOB_UIDS: "by it the launcher sees who submitted the job",
    "VERL_REGRESS_DEBUGGER_HOST": "the knob DEBUGGER decides where Ray's debugger listens",
}
# Variables that Python or our sitecustomize reads before the hook env_vars can set anything.
_READ_AT_START = ("PYTHONPATH", "VERL_REGRESS_HOOKS")


@dataclass(frozen=True)
class Environment:
    """The variables of every process of a job, and its secrets by name, never their values.

    `origins` says where a variable was asked for, and `deterministic` which ones DETERMINISTIC=1 adds.
    """

    variables: Mapping[str, str]
    origins: Mapping[str, str]
    deterministic: frozenset[str]
    secrets: tuple[Secret, ...]

    @classmethod
    def build(cls, root: SharedRoot, request: Request, code_path: Path, job: JobDir) -> "Environment":
        """The environment of `job`. Raises BadInput for a variable or a secret that a job may not set."""
        variables = _variables(root, request, code_path, job)
        secrets = secret_files.named(request.spec)
        file = secret_files.file_of(root, request.defaults.cluster, job)
        return cls(
            variables={**variables, **_of_secrets(secrets, variables, file, request.base.origin)},
            origins={name: origin for origin, layer in _layers(request) for name in layer},
            deterministic=frozenset(request.deterministic.env_vars),
            secrets=secrets,
        )

    def with_owners(self, users: Iterable[str]) -> "Environment":
        """The same for a job whose directory belongs to one of these users: Ray carries them, so nobody else can change them."""
        return replace(self, variables={**self.variables, JOB_UIDS: " ".join(sorted(users))})

    def runtime_env(self) -> dict[str, Any]:
        """The job's runtime_env: environment variables only, nothing is uploaded."""
        late = self.set_by_hook()
        return {"env_vars": {name: value for name, value in self.variables.items() if name not in late}}

    def set_by_hook(self) -> dict[str, str]:
        """The variables that the hook env_vars sets in each process: those with a `$`, which Ray would expand, and those
        of DETERMINISTIC=1, which verl passes to its actors itself: Ray takes no variable from both.
        """
        return {name: value for name, value in self.variables.items() if "$" in value or name in self.deterministic}

    @property
    def secrets_file(self) -> Path | None:
        """Where the values of its secrets are until it is over; None if it has none."""
        return Path(self.variables[secret_files.FILE_VARIABLE]) if self.secrets else None


def _variables(root: SharedRoot, request: Request, code_path: Path, job: JobDir) -> dict[str, str]:
    """The variables, without those for secrets. The snapshot comes first on PYTHONPATH, and no entry is empty."""
    asked, workload, said = _asked(root, request), request.workload, request.said
    seeds = (
        "rl" in request.deterministic.overrides
    )  # else all answers of a group would be equal, and GRPO's advantages 0
    sets_late = request.deterministic.env_vars or any("$" in value for value in asked.values())
    hooks = [
        "env_vars" if sets_late else "",  # hooks before this one would not see what it sets
        *("identity", "process_memory", "job_exceptions"),
        "debugger" if said.debugger else "",
        "last_bit" if said.perturbed else "",
        *workload.hooks,
        "verl_rehearsal.request_seed" if seeds else "",
        asked.get("VERL_REGRESS_HOOKS", ""),
    ]
    layers = [
        str(HELPER_DIR / layer)
        for layer in ("py/hooks", *request.base.python_layers, *(["rehearsal"] if seeds else []))
    ]
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
        **_of_debugger(request),
        "VERL_REGRESS_HOOKS": ",".join(filter(None, hooks)),
        "VERL_REGRESS_JOB_DIR": str(job.path),
        **({"VERL_REHEARSAL_REPORTS": str(job.reports)} if request.base.python_layers else {}),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(code_path), *layers, *others.split(os.pathsep)))),
    }


def _of_debugger(request: Request) -> dict[str, str]:
    """The variables of Ray's debugger (2.60), which Ray itself turns on wherever debugpy is installed: off, unless asked for."""
    said = request.said
    if said.debugger is None:
        return {"RAY_DEBUG": "0"}  # breakpoint() does nothing
    variables = {"RAY_DEBUG": "1"}
    if said.debugger == "post-mortem":
        variables["RAY_DEBUG_POST_MORTEM"] = "1"
    if said.debugger_host is not None:
        variables["VERL_REGRESS_DEBUGGER_HOST"] = said.debugger_host
    return variables


def _asked(root: SharedRoot, request: Request) -> dict[str, str]:
    """The variables that were asked for. Precedence, highest first: DETERMINISTIC=1, JobSpec, base config."""
    asked: dict[str, str] = {}
    for origin, layer in (*_layers(request), (DETERMINISTIC, request.deterministic.env_vars)):
        for name, value in layer.items():
            asked[name] = root.fill_in(value)
            reason = _REFUSED_ENV.get(name) if (name, value) != ("RAY_ADDRESS", "auto") else None
            if name in _READ_AT_START and "$" in asked[name]:
                reason = "Python reads it as it starts, when Ray has filled in $, perhaps with nothing"
            if reason is not None:
                raise BadInput(
                    f"env_vars.{shown(name)}={shown(repr(value))} (from {origin}) is refused: {reason}; leave it out."
                )
    return asked


def _layers(request: Request) -> tuple[tuple[str, Mapping[str, str]], ...]:
    """The documents' variables, the higher layer last."""
    return ((request.base.origin, request.base.env_vars), (request.spec.origin, request.spec.env_vars))


def _of_secrets(secrets: Iterable[Secret], variables: Mapping[str, str], file: Path, origin: str) -> dict[str, str]:
    """The variables that secrets add: the path of their file, and its hook before all others. Raises BadInput."""
    names = [secret.name for secret in secrets]
    for name in names:
        if name in variables:
            raise BadInput(
                f"The secret {name} is also set as plain text, by {origin} or by the job's own environment: "
                "remove it there, or give the secret another name."
            )
    if not names:
        return {}
    hooks = f"{secret_files.HOOK},{variables['VERL_REGRESS_HOOKS']}"
    return {secret_files.FILE_VARIABLE: str(file), "VERL_REGRESS_HOOKS": hooks}
