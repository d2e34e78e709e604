"""A JobSpec and a Ray base config as typed objects, each built once from the document that its schema accepted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_regress.base.documents import Document


@dataclass(frozen=True)
class Secret:
    """The name of the job's variable, and the file with its value; None: the caller's variable of that name."""

    name: str
    file: str | None = None

    def described(self) -> str:
        """Where the value comes from."""
        return f"{self.name} ({f'the file {self.file}' if self.file else 'the variable of that name'})"


@dataclass(frozen=True)
class JobSpec:
    """What a JobSpec asks for; None or empty for what it leaves out. `document` has it value for value."""

    document: "Document" = field(repr=False)
    workload: str
    submission_id: str | None = None
    shared_root: str | None = None
    code_id: str | None = None
    code_path: str | None = None
    model: str | None = None
    dataset: str | None = None
    reward_fn_path: str | None = None
    address: str | None = None
    entrypoint_num_cpus: float | None = None
    entrypoint_resources: Mapping[str, float] = field(default_factory=dict)
    trainer_overrides: Sequence[str] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[Secret, ...] = ()

    @classmethod
    def from_document(cls, document: "Document") -> "JobSpec":
        """The JobSpec in a document that its schema accepted; what is under `ray` and `resources` has its own fields."""
        said = dict(document.content)
        said |= said.pop("ray", {}) | said.pop("resources", {})
        said["secrets"] = secrets_in(said)
        return cls(document, **said)

    @property
    def origin(self) -> str:
        """The name by which the user knows it."""
        return self.document.origin


def secrets_in(content: Mapping[str, Any]) -> tuple[Secret, ...]:
    """The secrets that the content of a JobSpec names."""
    return tuple(Secret(given["name"], given.get("file")) for given in content.get("secrets", []))


@dataclass(frozen=True)
class Deterministic:
    """What DETERMINISTIC=1 adds: overrides by workload, and environment variables."""

    overrides: Mapping[str, Sequence[str]] = field(default_factory=dict)
    env_vars: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BaseConfig:
    """What a profile brings to every job. `trainer_overrides` are by workload; `document` has it all as given."""

    document: "Document" = field(repr=False)
    address: str
    entrypoint_num_cpus: float
    entrypoint_resources: Mapping[str, float]
    python_layers: Sequence[str] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict)
    trainer_overrides: Mapping[str, Sequence[str]] = field(default_factory=dict)
    deterministic: Deterministic | None = None

    @classmethod
    def from_document(cls, document: "Document") -> "BaseConfig":
        """The base config in a document that its schema accepted; what is under `runtime_env` has its own field."""
        said = dict(document.content)
        said |= said.pop("runtime_env", {})
        if "deterministic" in said:
            said["deterministic"] = Deterministic(**said["deterministic"])
        return cls(document, **said)

    @property
    def origin(self) -> str:
        """The name by which the user knows it."""
        return self.document.origin
