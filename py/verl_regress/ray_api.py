"""Asking Ray: plain HTTP to the dashboard of Ray 2.60 (60 ms where `ray list` takes over a second), and the SDK to submit."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_regress.errors import BadInput, Exit, RegressError


class Unreachable(RegressError):
    """Nobody answers at Ray's address."""

    def __init__(self, address: str, problem: object) -> None:
        super().__init__(
            f"Ray does not answer at {address} as seen from the head ({problem}): bring the cluster up with 'make up'.",
            Exit.UNREACHABLE,
        )


@dataclass(frozen=True)
class Node:
    """One row of Ray's node table."""

    name: str
    address: str
    is_head: bool
    alive: bool
    resources: Mapping[str, float]


@dataclass(frozen=True)
class RayApi:
    """Ray's dashboard at `address`, as the head sees it; `timeout` is in seconds a request."""

    address: str
    timeout: float = 10.0

    def version(self) -> str:
        """Ray's version. Raises Unreachable: the cheapest way to learn that the cluster is there."""
        return str(self._get("/api/version")["ray_version"])

    def nodes(self) -> list[Node]:
        """All nodes that Ray remembers, the dead ones too."""
        answer = self._get("/api/v0/nodes?limit=1000&detail=1")
        return [
            Node(
                name=row["node_name"],
                address=row["node_ip"],
                is_head=row["is_head_node"],
                alive=row["state"] == "ALIVE",
                resources=row.get("resources_total") or {},
            )
            for row in answer["data"]["result"]["result"]
        ]

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Ray's details of every submitted job, by submission id."""
        return {job["submission_id"]: job for job in self._get("/api/jobs/") if job.get("submission_id")}

    def job(self, submission_id: str) -> dict[str, Any] | None:
        """Ray's details of one job (status, driver_info, message, …), or None where Ray does not know it."""
        try:
            details: dict[str, Any] = self._get(f"/api/jobs/{urllib.parse.quote(submission_id, safe='')}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise Unreachable(self.address, error) from error
        return details

    def actors(self, submission_id: str) -> list[dict[str, Any]]:
        """Ray's actors of one job, dead ones too: class_name, state, node_id, pid, …"""
        job = self.job(submission_id)
        if job is None or not job.get("job_id"):
            return []
        query = urllib.parse.urlencode(
            {
                "limit": 1000,
                "detail": 1,
                "filter_keys": "job_id",
                "filter_predicates": "=",
                "filter_values": job["job_id"],
            }
        )
        rows: list[dict[str, Any]] = self._get(f"/api/v0/actors?{query}")["data"]["result"]["result"]
        return rows

    def submit(
        self,
        *,
        submission_id: str,
        entrypoint: str,
        entrypoint_num_cpus: float,
        entrypoint_resources: Mapping[str, float],
        runtime_env: Mapping[str, Any],
        metadata: Mapping[str, str],
    ) -> None:
        """Submit through Ray's Python SDK. Raises BadInput for a taken id, Unreachable when Ray goes away."""
        # The SDK would follow these instead of the address that it is given (Ray 2.60).
        for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
            os.environ.pop(name, None)
        from ray.job_submission import JobSubmissionClient

        try:
            JobSubmissionClient(self.address).submit_job(
                submission_id=submission_id,
                entrypoint=entrypoint,
                entrypoint_num_cpus=entrypoint_num_cpus,
                entrypoint_resources=dict(entrypoint_resources),
                runtime_env=dict(runtime_env),
                metadata=dict(metadata),
            )
        except (RuntimeError, OSError) as error:  # requests' ConnectionError is an OSError
            if "already exists" in str(error):
                raise BadInput(f"submission_id '{submission_id}' is taken in Ray: give another one.") from None
            # The answer may be lost although the job was accepted: ask before saying that it was not.
            if self.job(submission_id) is None:
                raise RegressError(f"Ray refused the job: {str(error).splitlines()[0]}") from error

    def _get(self, path: str) -> Any:
        request = urllib.request.Request(self.address + path, headers=_authorization())
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise RegressError(
                    f"Ray at {self.address} refuses our token (HTTP {error.code}): the cluster was started with "
                    "another one; run 'make down up'.",
                    Exit.UNREACHABLE,
                ) from error
            if error.code == 404:
                raise
            raise Unreachable(self.address, error) from error
        except (OSError, json.JSONDecodeError) as error:
            raise Unreachable(self.address, error) from error


def _authorization() -> dict[str, str]:
    """The header that Ray's token auth wants (2.52 and later), where the node has a token."""
    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    if os.environ.get("RAY_AUTH_MODE") != "token" or not path:
        return {}
    return {"Authorization": f"Bearer {Path(path).read_text(encoding='ascii').strip()}"}
