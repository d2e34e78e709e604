"""A Ray base config as a typed object, built once from the document that base_config.schema.json accepted."""

from __future__ import annotations

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

    document: Document = field(repr=False)
    address: str
    entrypoint_num_cpus: float
    entrypoint_resources: Mapping[str, float]
    python_layers: Sequence[str]
    env_vars: Mapping[str, str]
    trainer_overrides: Mapping[str, Sequence[str]]
    deterministic: Deterministic | None

    @classmethod
    def of(cls, document: Document) -> BaseConfig:
        """The base config in a document that its schema accepted."""
        content = document.content
        return cls(
            document=document,
            address=content["address"],
            entrypoint_num_cpus=content["entrypoint_num_cpus"],
            entrypoint_resources=content["entrypoint_resources"],
            python_layers=content.get("python_layers", []),
            env_vars=content.get("runtime_env", {}).get("env_vars", {}),
            trainer_overrides=content.get("trainer_overrides", {}),
            deterministic=Deterministic(**content["deterministic"]) if "deterministic" in content else None,
        )

    @property
    def origin(self) -> str:
        """The name by which the user knows it."""
        return self.document.origin

    @property
    def repeats_anyway(self) -> bool:
        """Whether its `deterministic` is {}: its jobs repeat themselves without DETERMINISTIC=1."""
        return self.document.content.get("deterministic") == {}
