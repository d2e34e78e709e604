"""Talks to Ray: plain HTTP to the dashboard of Ray 2.60 (60 ms; `ray list` takes over a second), and the SDK to submit."""

import http.client
import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from verl_regress.base.errors import BadInput, Exit, RegressError
from verl_regress.cluster import ray_internals

HEAD = "http://127.0.0.1:8265"  # the head's own dashboard, as the commands in the head see it


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: urllib would send the token along, to wherever it leads."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        """Follow none."""


# Proxies in the environment are for the outside world, not for our own head.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
# Ray's SDK and command would use these instead of the address that they are given (Ray 2.60).
_MISLEADING = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
_CONNECT_SECONDS = 3.0  # to a raylet or the GCS; a container that is gone is "no route to host" after about 3 s
_SUBMIT_SECONDS = 60.0  # neither the SDK nor the command has a deadline; they take 2


class Unreachable(RegressError):
    """Ray does not answer at its address."""

    def __init__(self, address: str, problem: object) -> None:
        super().__init__(
            f"Ray does not answer at {address} as seen from the head ({problem}): bring the cluster up with 'make up'.",
            Exit.UNREACHABLE,
        )


@dataclass(frozen=True)
class Node:
    """One row of Ray's node table; `port` is where its raylet listens, if that was asked for (`RayApi.raylets`)."""

    name: str
    node_id: str
    address: str
    is_head: bool
    alive: bool
    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None

    def answers(self) -> bool:
        """Does Ray call it alive, and does its raylet, if its port is known, accept a connection? A paused or busy one does."""
        return self.alive and (self.port is None or accepts(self.address, self.port))


def accepts(host: str, port: int) -> bool:
    """Does anything there accept a connection?"""
    try:
        with socket.create_connection((host, port), _CONNECT_SECONDS):
            return True
    except OSError:
        return False


def silent(raylets: Collection[Node]) -> list[Node]:
    """The raylets that do not answer, or that Ray calls dead; all are asked at once."""
    with ThreadPoolExecutor(max(1, len(raylets))) as pool:
        return [raylet for raylet, answers in zip(raylets, pool.map(Node.answers, raylets), strict=True) if not answers]


@dataclass(frozen=True)
class RayApi:
    """Ray's dashboard at `address`, as seen from the head; `timeout` is in seconds per request."""

    address: str
    timeout: float = 10.0

    def nodes(self) -> list[Node]:
        """All nodes that Ray remembers, the dead ones too."""
        return [
            Node(
                name=row["node_name"],
                node_id=row["node_id"],
                address=row["node_ip"],
                is_head=row["is_head_node"],
                alive=row["state"] == "ALIVE",
                resources=row.get("resources_total") or {},
                labels=row.get("labels") or {},
            )
            for row in self._rows("/api/v0/nodes?limit=1000&detail=1", "result", "result")
        ]

    def raylets(self) -> list[Node]:
        """All nodes that Ray remembers, with the ports of their raylets.

        Ports come from a second answer, which does not even name dead nodes; without `nocache` it may be out of date.
        """
        nodes = self.nodes()
        listening = [row["raylet"] for row in self._rows(ray_internals.NODES_SUMMARY, "summary")]
        ports = {row["nodeId"]: int(row["nodeManagerPort"]) for row in listening if row.get("state") == "ALIVE"}
        return [replace(node, port=ports.get(node.node_id)) for node in nodes]

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Ray's details of every submitted job, by submission id."""
        return {job["submission_id"]: job for job in self.ask("/api/jobs/") if job.get("submission_id")}

    def job(self, submission_id: str) -> dict[str, Any] | None:
        """Ray's details of one job (status, driver_info, message, …), or None if Ray does not know it."""
        details: dict[str, Any] | None = self.ask(_path_of(submission_id), none_on_404=True)
        return details

    def actors(self, submission_id: str) -> list[dict[str, Any]]:
        """Ray's actors of one job, dead ones too: class_name, state, node_id, pid, …; none until its driver has connected."""
        return self.actors_of((self.job(submission_id) or {}).get("job_id"))

    def actors_of(self, job_id: str | None) -> list[dict[str, Any]]:
        """The same by Ray's number of the job."""
        if not job_id:
            return []
        only = f"filter_keys=job_id&filter_predicates=%3D&filter_values={job_id}"
        return self._rows(f"/api/v0/actors?limit=1000&detail=1&{only}", "result", "result")

    def submit(self, submission_id: str, **job: Any) -> None:
        """Submit by `submit_job` of Ray's Python SDK. Raises BadInput for a taken id, Unreachable when Ray goes away."""
        _token_for(self.address)  # the SDK sends it by itself, as does the command
        for name in _MISLEADING:
            os.environ.pop(name, None)
        os.environ["no_proxy"] = "*"
        signal.signal(signal.SIGALRM, _expire)
        signal.setitimer(signal.ITIMER_REAL, _SUBMIT_SECONDS)
        try:
            ray_internals.submission_client(self.address).submit_job(submission_id=submission_id, **job)
        except Exception as error:  # RuntimeError, requests' own, RayError, …: none of them means "accepted"
            self._need_accepted(submission_id, str(error) or type(error).__name__)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def submit_by_command(self, submission_id: str, argv: Sequence[str]) -> None:
        """Submit by the command `ray job submit …`; raises as `submit` does."""
        _token_for(self.address)
        environ = {name: value for name, value in os.environ.items() if name not in _MISLEADING} | {"no_proxy": "*"}
        try:
            said = subprocess.run(
                argv, env=environ, capture_output=True, text=True, timeout=_SUBMIT_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            self._need_accepted(submission_id, str(error))
            return
        if said.returncode != 0:
            self._need_accepted(submission_id, said.stderr.strip() or said.stdout)

    def _need_accepted(self, submission_id: str, said: str) -> None:
        """Handle a failed submission: raises what the failure means, unless Ray has the job after all."""
        if "already exists" in said:
            raise BadInput(f"submission_id '{submission_id}' is taken in Ray: give another one.")
        if self.job(submission_id) is None:
            # Ray sends a traceback: its last line is what happened.
            lines = said.rstrip(". \n").splitlines() or ["nothing"]
            raise RegressError(f"Ray refused the job: {lines[-1]}")

    def stop(self, submission_id: str) -> None:
        """Ask Ray to stop a job, and return before it has. A PENDING job keeps waiting (2.60): see ray_internals.end_supervisor."""
        self.ask(f"{_path_of(submission_id)}/stop", method="POST")

    def _rows(self, path: str, *keys: str) -> list[dict[str, Any]]:
        """The table under `data` and these keys of Ray's answer. Raises Unreachable."""
        rows = self.ask(path)
        try:
            for key in ("data", *keys):
                rows = rows[key]
        except (KeyError, TypeError):
            raise Unreachable(self.address, "what answers there is not Ray") from None
        table: list[dict[str, Any]] = rows
        return table

    def ask(
        self, path: str, *, method: str = "GET", none_on_404: bool = False, parse: Callable[[bytes], Any] = json.loads
    ) -> Any:
        """The dashboard's answer at `path`, read by `parse`. Raises Unreachable; BadInput as `_token_for` does."""
        secret = _token_for(self.address)
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}  # Ray 2.52 and later
        request = urllib.request.Request(self.address + path, headers=headers, method=method)
        try:
            with _OPENER.open(request, timeout=self.timeout) as response:
                return parse(response.read())
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise RegressError(
                    f"Ray at {self.address} refuses our token (HTTP {error.code}): the cluster was started with "
                    "another one; 'make down up FORCE=1' starts it with ours and ends its jobs.",
                    Exit.UNREACHABLE,
                ) from error
            if error.code == 404 and none_on_404:
                return None
            raise Unreachable(self.address, error) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreachable(self.address, getattr(error, "reason", error)) from error


def _path_of(submission_id: str) -> str:
    return f"/api/jobs/{urllib.parse.quote(submission_id, safe='')}"


def _expire(_number: int, _frame: object) -> None:
    raise TimeoutError(f"no answer in {_SUBMIT_SECONDS:g} s")


def seen_from_here(address: str, environ: Mapping[str, str]) -> str:
    """The dashboard's address on this node: on a worker, the head's loopback becomes the host in RAY_ADDRESS (the GCS)."""
    parts, gcs = urllib.parse.urlsplit(address), environ.get("RAY_ADDRESS", "")
    head = urllib.parse.urlsplit(f"//{gcs}").hostname if ":" in gcs else None
    if head is None or parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        return address
    return f"{parts.scheme}://{f'[{head}]' if ':' in head else head}:{parts.port}"


def _token_for(address: str) -> str | None:
    """The token for the dashboard at `address`, if the node has one. Raises BadInput unless it is our own head's.

    Whoever listens at another address, which a JobSpec may name, could use the token to run code on every node.
    """
    secret = token()
    if secret and address not in (HEAD, seen_from_here(HEAD, os.environ)):
        raise BadInput(
            f"{address} (from the JobSpec's ray.address, or address of the Ray base config) is not this cluster's head, the only one that "
            f"gets its Ray token: use {HEAD}."
        )
    return secret


def token() -> str | None:
    """Ray's token, if the node has one. Raises OSError if it should have one that cannot be read.

    KubeRay passes it as RAY_AUTH_TOKEN (1.6), which Ray prefers to the file, too (2.60).
    """
    if os.environ.get("RAY_AUTH_MODE") != "token":
        return None
    if passed := os.environ.get("RAY_AUTH_TOKEN"):
        return passed.strip()
    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return Path(path).read_text(encoding="ascii").strip() if path else None
