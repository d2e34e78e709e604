"""A job's secrets: which it names, the file in which their values travel, and that it goes when the job is over.

Values come on stdin from where `make submit` was typed, stand in one file of mode 0600 below `${SHARED_ROOT}/secrets/`, outside
every job directory, and reach the job's processes by the hook of the same name (py/hooks/job_secrets.py).
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from verl_regress.base import lock, say
from verl_regress.base.errors import BadInput, RegressError
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.secrets.redaction import Redactor

if TYPE_CHECKING:
    from verl_regress.base.documents import Document

HOOK = "job_secrets"
FILE_VARIABLE = "VERL_REGRESS_SECRETS"

_SHORTEST = 8  # characters: what is shorter stands by chance in every log, and hiding it would spoil them
_LONGEST = 65536  # bytes: a process may be started with no more than 128 KiB in one variable (Linux)
# What decides how a process starts, where it finds its cluster and its files, or which GPUs it has.
_OURS = re.compile(r"(VERL_|RAY_|PYTHON|LD_|CUDA_|HIP_|ROCR_|NCCL_).*|PATH|HOME|USER|TMPDIR|SHARED_ROOT|HF_HOME")
# Waits until the launcher is gone, however it went, and removes the file. Ray's own stop sends SIGTERM to it too (2.60).
_KEEPER = "trap '' TERM INT HUP; read -r _; rm -f -- \"$1\""


@dataclass(frozen=True)
class Secret:
    """The name of the variable that the job gets, and the file with its value; None: the variable of that name."""

    name: str
    file: str | None = None

    def told(self) -> str:
        """Where the value comes from."""
        return f"{self.name} ({f'the file {self.file}' if self.file else 'the variable of that name'})"


def named(spec: Document) -> tuple[Secret, ...]:
    """The secrets that a JobSpec names. Raises BadInput, without what stands there: it may be a value after all."""
    secrets = tuple(Secret(given["name"], given.get("file")) for given in spec.content.get("secrets", []))
    names = [secret.name for secret in secrets]
    for name in names:
        if _OURS.fullmatch(name):
            raise BadInput(
                f"The secret {name} (from {spec.origin}) is refused: that variable is not a job's to set; name another."
            )
        if names.count(name) > 1:
            raise BadInput(f"The secret {name} stands twice in {spec.origin}: leave one out.")
        if name in spec.content.get("env_vars", {}):
            raise BadInput(
                f"{name} stands in secrets and in env_vars of {spec.origin}: leave it out of env_vars, which Ray serves in clear."
            )
    return secrets


def read_values(stream: BinaryIO) -> dict[str, str]:
    """The values in front of the tar stream: `NAME=VALUE`, each ended by a NUL, an empty one at the end. Raises BadInput."""
    values = {}
    while entry := _until_nul(stream):
        name, _, value = entry.decode("utf-8", "surrogateescape").partition("=")
        values[name] = value
    return values


def _until_nul(stream: BinaryIO) -> bytes:
    entry = bytearray()
    while (byte := stream.read(1)) != b"\0":
        if not byte:
            raise BadInput("The secrets on stdin end too early: submit with 'make submit'.")
        entry += byte
    return bytes(entry)


def check(values: Mapping[str, str], secrets: Collection[Secret], origin: str) -> None:
    """Raise BadInput unless each secret that is named has a usable value; no value is ever told."""
    if values.keys() != {secret.name for secret in secrets}:
        raise BadInput(f"The values of the secrets in {origin} did not come on stdin: submit with 'make submit'.")
    for name, value in values.items():
        size = len(value.encode("utf-8", "surrogateescape"))
        if len(value) < _SHORTEST:
            raise BadInput(
                f"The secret {name} (from {origin}) has {len(value)} characters: give it at least {_SHORTEST}, what is "
                "shorter cannot be told from other text in a log."
            )
        if size > _LONGEST:
            raise BadInput(
                f"The secret {name} (from {origin}) has {size} bytes: give it at most {_LONGEST}, no process can be started with more."
            )


def file_of(root: SharedRoot, cluster: str, job: JobDir) -> Path:
    """Where the secrets of a job (or of an attempt) are while it is not over."""
    return root.secrets / cluster / job.ray_id


@contextmanager
def written(file: Path | None, values: Mapping[str, str]) -> Iterator[None]:
    """Write a job's secrets (there may be none), readable by their owner alone from the first moment; an error removes them.

    They are held until the end of the block, by when Ray has the job: nobody sweeps what is held. Raises OSError.
    """
    if file is None:
        yield
        return
    for directory in (file.parent.parent, file.parent):
        directory.mkdir(mode=0o700, exist_ok=True)
    held = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        _hold(held)
        os.write(held, json.dumps(values).encode("ascii"))
        yield
    except BaseException:
        file.unlink(missing_ok=True)
        raise
    finally:
        os.close(held)


def hold() -> dict[str, str]:
    """In the launcher: the job's secrets, taken out of its own environment, and the file removed when it ends.

    What the launcher starts reads them anew by the hook: an environment that a process was started with is for all to
    see. A keeper in a session of its own removes the file should the launcher be killed. Raises RegressError.
    """
    path = os.environ.get(FILE_VARIABLE)
    if not path:
        return {}
    try:
        held = os.open(path, os.O_RDONLY)
        values: dict[str, str] = json.loads(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise RegressError(
            f"The job's secrets cannot be read from {path} ({type(error).__name__}): submit it again."
        ) from None
    _hold(held)  # until this process ends
    end, _ours = os.pipe()  # our end is closed by our own end, and by nothing else
    subprocess.Popen(
        ["/bin/sh", "-c", _KEEPER, "keeper", path],
        stdin=end, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={}, start_new_session=True,
    )  # fmt: skip
    os.close(end)
    atexit.register(Path(path).unlink, missing_ok=True)
    started_with = Path("/proc/self/environ").read_bytes().split(b"\0")
    for name in values:
        os.environ.pop(name, None)
        if any(entry.startswith(f"{name}=".encode()) for entry in started_with):
            raise RegressError(
                f"Ray started the job with the secret {name} in its environment, where the process list shows it: the hook "
                "job_secrets does not know this release's job supervisor; train without secrets, or with Ray 2.60."
            )
    return values


def _hold(descriptor: int) -> None:
    """Say that the file is in use; on a file system without locks nothing does."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def is_held(file: Path) -> bool:
    """Does the submitter or the launcher of a job hold its secrets?"""
    with suppress(OSError):  # it is gone by now, or the file system has no locks
        return lock.is_held(file, fcntl.LOCK_EX)
    return False


def forget(job: JobDir) -> None:
    """The job is over: its secrets go, unless its launcher is there still and about to remove them itself."""
    env_vars = (job.read_config("runtime_env.json") or {}).get("env_vars", {})
    file = Path(env_vars.get(FILE_VARIABLE, "/nonexistent"))
    if file.is_file() and not is_held(file):
        file.unlink(missing_ok=True)
        say.changed(f"removed the secrets of {job.ray_id}, which is over")


def redactor(root: SharedRoot, **more: str) -> Redactor:
    """What takes every secret that is on this shared root now, and `more` by name, out of text."""
    values = dict(more)
    for file in root.secrets.rglob("*"):
        with suppress(OSError, ValueError):  # a directory, or its job has just ended
            values |= json.loads(file.read_text(encoding="ascii"))
    return Redactor(values)
