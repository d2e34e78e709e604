"""A job's secrets: which ones it names, the file in which their values travel, and its removal when the job is over.

Values come on stdin from where `make submit` was typed. They are kept in one file of mode 0600 under
`${SHARED_ROOT}/secrets/`, outside every job directory, and the hook (py/hooks/job_secrets.py) passes
them to the job's processes.
"""

import atexit
import fcntl
import json
import os
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from redaction import Redactor
from verl_regress.base import lock, processes, say
from verl_regress.base.errors import BadInput, RegressError, shown
from verl_regress.base.jobspec import JobSpec, Secret
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.base.trust import need, of_job

HOOK = "job_secrets"
FILE_VARIABLE = "VERL_REGRESS_SECRETS"

_SHORTEST = 8  # characters: shorter values occur in any log by chance, and hiding them would garble it
_LONGEST = 65536  # bytes: Linux starts no process with more than 128 KiB in one variable
# Variables that decide how a process starts, where it finds its cluster and its files, or which GPUs it has.
_OURS = re.compile(
    r"(VERL_|RAY_|PYTHON|LD_|CUDA_|HIP_|ROCR_|NCCL_|ASCEND_|HCCL_).*|PATH|HOME|USER|TMPDIR|SHARED_ROOT|HF_HOME"
)
# Waits until the launcher is gone for any reason, and removes the file. Ray's own stop sends SIGTERM to it too (2.60).
_KEEPER = "trap '' TERM INT HUP; read -r _; rm -f -- \"$1\""


def named(spec: JobSpec) -> tuple[Secret, ...]:
    """The secrets that a JobSpec names. Raises BadInput, without quoting the entry: it may be a secret's value."""
    names = [secret.name for secret in spec.secrets]
    for name in names:
        if _OURS.fullmatch(name):
            raise BadInput(
                f"The secret {name} (from {spec.origin}) is refused: a job cannot set that variable; name another."
            )
        if names.count(name) > 1:
            raise BadInput(f"The secret {name} occurs twice in {spec.origin}: leave one out.")
        if name in spec.env_vars:
            raise BadInput(
                f"{name} is in secrets and in env_vars of {spec.origin}: leave it out of env_vars, which Ray shows as plain text."
            )
    return spec.secrets


def read_values(stream: BinaryIO) -> dict[str, str]:
    """The values before the tar stream: `NAME=VALUE`, each ended by a NUL, an empty one at the end. Raises BadInput."""
    values, entry = dict[str, str](), bytearray()
    while byte := stream.read(1):
        if byte != b"\0":
            entry += byte
            continue
        if not entry:
            return values
        name, _, value = entry.decode("utf-8", "surrogateescape").partition("=")
        values[name], entry = value, bytearray()
    raise BadInput("The secrets on stdin end too early: submit with 'make submit'.")


def check(values: Mapping[str, str], secrets: Collection[Secret], origin: str) -> None:
    """Raise BadInput unless every named secret has a usable value; values are never shown."""
    if values.keys() != {secret.name for secret in secrets}:
        raise BadInput(f"The values of the secrets in {origin} did not come on stdin: submit with 'make submit'.")
    for name, value in values.items():
        size = len(value.encode("utf-8", "surrogateescape"))
        if len(value) < _SHORTEST:
            raise BadInput(
                f"The secret {name} (from {origin}) has {len(value)} characters: give it at least {_SHORTEST}, a shorter value cannot be distinguished from other text in a log."
            )
        if size > _LONGEST:
            raise BadInput(
                f"The secret {name} (from {origin}) has {size} bytes: give it at most {_LONGEST}, because no process can be started with more."
            )


def file_of(root: SharedRoot, cluster: str, job: JobDir) -> Path:
    """The file with the secrets of a job (or of an attempt) until it is over."""
    return root.secrets / cluster / job.ray_id


@contextmanager
def opened(root: SharedRoot, cluster: str) -> Iterator[Path | None]:
    """The directory of a cluster's secrets, by a path that leads there whatever its name means later; None if there is none.

    In a group's shared root everyone may make a name in `secrets/`, and a job that was made by hand may name any cluster.
    Raises BadInput for a link, and for a name with a slash.
    """
    directory = root.secrets / cluster
    if directory.parent != root.secrets or cluster == "..":
        raise BadInput(f"{shown(cluster, 80)} is not a name of a cluster: the job's plan was edited by hand.")
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield None
        return
    except NotADirectoryError:  # so says Linux of a link, too
        raise BadInput(f"{directory} is a file or a link, which another user may have made: remove it.") from None
    try:
        yield processes.path_of(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def written(file: Path | None, values: Mapping[str, str]) -> Iterator[None]:
    """Write a job's secrets (there may be none), readable only by their owner from the start; an error removes them.

    The file is locked until the end of the block, when Ray has the job, so that no sweep removes it. Raises OSError, and BadInput if
    their directory is another user's, who could put another file in its place.
    """
    if file is None:
        yield
        return
    for directory in (file.parent.parent, file.parent):
        directory.mkdir(mode=0o700, exist_ok=True)
    # O_RDWR: NFS gives a shared lock only to who may read.
    held = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        need(file.parent, str(file.parent), "or set another CLUSTER_NAME", [str(os.fstat(held).st_uid)], alone=True)
        _hold(held)
        os.write(held, json.dumps(values).encode("ascii"))
        yield
    except BaseException:
        file.unlink(missing_ok=True)
        raise
    finally:
        os.close(held)


def hold() -> dict[str, str]:
    """In the launcher: take the job's secrets out of the environment, and remove the file when it ends.

    What the launcher starts reads them again through the hook, because anyone can see a process's initial environment.
    A keeper in its own session removes the file if the launcher is killed. Raises RegressError.
    """
    path = os.environ.get(FILE_VARIABLE)
    if not path:
        return {}
    try:
        held = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        need(Path(path), path, "and submit the job again", of_job())
        values: dict[str, str] = json.loads(processes.path_of(held).read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise RegressError(
            f"The job's secrets cannot be read from {path} ({type(error).__name__}): submit it again."
        ) from None
    _hold(held)  # until this process ends
    end, _ours = os.pipe()  # our end is closed when we end, and by nothing else
    subprocess.Popen(
        ["/bin/sh", "-c", _KEEPER, "keeper", path],
        stdin=end,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={},
        start_new_session=True,
    )
    os.close(end)
    atexit.register(Path(path).unlink, missing_ok=True)
    started_with = processes.started_with()
    for name in values:
        os.environ.pop(name, None)
        if any(entry.startswith(f"{name}=".encode()) for entry in started_with):
            raise RegressError(
                f"Ray started the job with the secret {name} in its environment, where the process list shows it: the hook "
                "job_secrets does not know this release's job supervisor; train without secrets, or with Ray 2.60."
            )
    return values


def _hold(descriptor: int) -> None:
    """Mark the file as in use; without locks on the file system this does nothing."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def is_held(file: Path) -> bool:
    """Does the submitter or the launcher of a job hold its secrets?"""
    with suppress(OSError):  # it is gone by now, or the file system has no locks
        return lock.is_held(file, fcntl.LOCK_EX)
    return False


def forget(job: JobDir) -> None:
    """Remove the secrets of a job that is over, unless its launcher is still there and about to remove them itself."""
    if (named := _file_in_use(job)) is None:
        return
    with opened(job.root, named.parent.name) as directory:
        file = directory / named.name if directory is not None else None
        if file is not None and file.is_file() and not is_held(file):
            file.unlink(missing_ok=True)
            say.changed(f"removed the secrets of the job {job.ray_id}, which is over")


def _file_in_use(job: JobDir) -> Path | None:
    """The file that the job's processes read its secrets from; None if it was submitted without any.

    Only the cluster's name is taken from the record: whoever makes a job by hand may write any path there.
    """
    path = ((job.read_config("runtime_env.json") or {}).get("env_vars") or {}).get(FILE_VARIABLE)
    return file_of(job.root, Path(str(path)).parent.name, job) if path else None


def redactor(root: SharedRoot, **more: str) -> Redactor:
    """A Redactor for every secret that is on this shared root now, and for `more` by name."""
    values = list(more.items())  # not by name: each job may have another value for it
    for file in root.secrets.rglob("*"):
        with suppress(OSError, ValueError):  # a directory, or its job has just ended
            values += json.loads(file.read_text(encoding="ascii")).items()
    return Redactor(values)


def are_unknown(job: JobDir) -> bool:
    """Had the job secrets that this user cannot read (any more), so that nothing can be searched for them?"""
    file = _file_in_use(job)
    return file is not None and not os.access(file, os.R_OK)
