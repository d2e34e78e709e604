"""A JobSpec as a typed object, built once from the document that jobspec.schema.json accepted."""

from __future__ import annotations

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

    def told(self) -> str:
        """Where the value comes from."""
        return f"{self.name} ({f'the file {self.file}' if self.file else 'the variable of that name'})"


@dataclass(frozen=True)
class JobSpec:
    """What a JobSpec asks for; None or empty for what it leaves out. `document` has it value for value."""

    document: Document = field(repr=False)
    workload: str
    submission_id: str | None
    shared_root: str | None
    code_id: str | None
    code_path: str | None
    model: str | None
    dataset: str | None
    reward_fn_path: str | None
    address: str | None
    entrypoint_num_cpus: float | None
    entrypoint_resources: Mapping[str, float]
    trainer_overrides: Sequence[str]
    env_vars: Mapping[str, str]
    secrets: tuple[Secret, ...]

    @classmethod
    def of(cls, document: Document) -> JobSpec:
        """The JobSpec in a document that its schema accepted."""
        content = document.content
        resources = content.get("resources", {})
        return cls(
            document=document,
            workload=content["workload"],
            submission_id=content.get("submission_id"),
            shared_root=content.get("shared_root"),
            code_id=content.get("code_id"),
            code_path=content.get("code_path"),
            model=content.get("model"),
            dataset=content.get("dataset"),
            reward_fn_path=content.get("reward_fn_path"),
            address=content.get("ray", {}).get("address"),
            entrypoint_num_cpus=resources.get("entrypoint_num_cpus"),
            entrypoint_resources=resources.get("entrypoint_resources", {}),
            trainer_overrides=content.get("trainer_overrides", []),
            env_vars=content.get("env_vars", {}),
            secrets=secrets_in(content),
        )

    @property
    def origin(self) -> str:
        """The name by which the user knows it."""
        return self.document.origin


def secrets_in(content: Mapping[str, Any]) -> tuple[Secret, ...]:
    """The secrets that the content of a JobSpec names."""
    return tuple(Secret(given["name"], given.get("file")) for given in content.get("secrets", []))
