"""A Ray base config as a typed object, built once from the document that base_config.schema.json accepted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verl_regress.base.documents import Document


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
