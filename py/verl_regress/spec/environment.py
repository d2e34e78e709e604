"""The environment variables of a job: PYTHONPATH with the snapshot first, the hooks, and what the user asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from verl_regress.base.documents import Document
from verl_regress.base.errors import BadInput, shown
from verl_regress.base.layout import HELPER_DIR, JobDir, SharedRoot
from verl_regress.secrets import job_secrets
from verl_regress.secrets.job_secrets import Secret
from verl_regress.spec.compose import DETERMINISTIC
from verl_regress.spec.workloads import Workload

# Ray 2.60 pins every GPU task to CUDA_VISIBLE_DEVICES if env_vars has it, and corrects a RAY_ADDRESS there for the
# driver but not for its actors; only "auto" does no harm.
_REFUSED_ENV = {
    "CUDA_VISIBLE_DEVICES": "Ray gives each process its own GPUs, and this would pin them all to the same",
    "RAY_ADDRESS": "the job finds its cluster by itself",
    "RAY_API_SERVER_ADDRESS": "the job finds its cluster by itself",
    "VERL_FILE_LOGGER_PATH": "a job writes under its own directory and nowhere else",
    "VERL_REGRESS_JOB_DIR": "a job writes under its own directory and nowhere else",
    job_secrets.FILE_VARIABLE: "a job names its secrets under secrets",
}
# Variables that Python or our sitecustomize reads before the hook env_vars can set anything.
_READ_AT_START = ("PYTHONPATH", "VERL_REGRESS_HOOKS")


def of_job(
    root: SharedRoot,
    job_dir: JobDir,
    code_path: Path,
    workload: Workload,
    spec: Document,
    base: Document,
    deterministic: Mapping[str, str],
) -> dict[str, str]:
    """The environment of every process of the job. The snapshot comes first on PYTHONPATH, and no entry is empty.

    Precedence, highest first: DETERMINISTIC=1, JobSpec, base config. Raises BadInput for a variable that a job may not
    set.
    """
    asked: dict[str, str] = {}
    for origin, layer in (*_layers(spec, base), (DETERMINISTIC, deterministic)):
        for name, value in layer.items():
            asked[name] = root.fill_in(value)
            reason = _REFUSED_ENV.get(name) if (name, value) != ("RAY_ADDRESS", "auto") else None
            if name in _READ_AT_START and "$" in asked[name]:
                reason = "Python reads it as it starts, when Ray has filled in $, perhaps with nothing"
            if reason is not None:
                raise BadInput(
                    f"env_vars.{shown(name)}={shown(repr(value))} (from {origin}) is refused: {reason}; leave it out."
                )
    # Hooks before this one would not see what it sets.
    first = "env_vars" if deterministic or any("$" in value for value in asked.values()) else ""
    layers = [HELPER_DIR / layer for layer in ("hooks", *base.content.get("python_layers", []))]
    python_path = [
        str(code_path),
        *map(str, layers),
        *asked.get("PYTHONPATH", "").split(os.pathsep),
        *os.environ.get("PYTHONPATH", "").split(os.pathsep),
    ]
    return {
        "HF_HOME": str(root.path / "hf"),
        "HYDRA_FULL_ERROR": "1",
        "PYTHONDONTWRITEBYTECODE": "1",  # a snapshot has its own bytecode, made once
        "PYTHONUNBUFFERED": "1",
        "RAY_JOB_STOP_WAIT_TIME_S": "15",  # Ray's 3 s leave the launcher no time to record the end
        "VERL_FILE_LOGGER_PATH": str(job_dir.metrics),
        **workload.env_vars,
        **asked,
        "VERL_REGRESS_HOOKS": ",".join(
            filter(None, (first, "identity", *workload.hooks, asked.get("VERL_REGRESS_HOOKS", "")))
        ),
        "VERL_REGRESS_JOB_DIR": str(job_dir.path),
        "PYTHONPATH": os.pathsep.join(entry for entry in python_path if entry),
    }


def origins(spec: Document, base: Document) -> dict[str, str]:
    """Where each variable was asked for, by name."""
    return {name: origin for origin, layer in _layers(spec, base) for name in layer}


def _layers(spec: Document, base: Document) -> tuple[tuple[str, Mapping[str, str]], ...]:
    """The documents' variables, the higher layer last."""
    return (
        (base.origin, base.content.get("runtime_env", {}).get("env_vars", {})),
        (spec.origin, spec.content.get("env_vars", {})),
    )


def of_secrets(secrets: Iterable[Secret], env_vars: Mapping[str, str], file: Path, base: Document) -> dict[str, str]:
    """The variables that secrets add: the path of their file, and its hook before all others. Raises BadInput."""
    names = [secret.name for secret in secrets]
    for name in names:
        if name in env_vars:
            raise BadInput(
                f"The secret {name} is set in clear by {base.origin} or by the job's own environment: name another, or leave "
                "it out there."
            )
    if not names:
        return {}
    hooks = f"{job_secrets.HOOK},{env_vars['VERL_REGRESS_HOOKS']}"
    return {job_secrets.FILE_VARIABLE: str(file), "VERL_REGRESS_HOOKS": hooks}
