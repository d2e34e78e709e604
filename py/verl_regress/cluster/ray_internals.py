"""Everything we use of Ray that Ray does not document: private modules, actor names, dashboard routes, log locations.

Read in Ray 2.60; maintain/verl-releases.md names the releases that jobs ran with. Check a new release of Ray here first.
Not here: `/api/jobs/…` and `/api/v0/…`, the routes of Ray's public clients for jobs and state (cluster/ray_api.py).
The processes of a job cannot import this module: py/hooks/ray_private.py has what they use. A test finds such a use of Ray
anywhere else.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from verl_regress.base.errors import Exit, RegressError, last_line, shown

# Dashboard routes that its own pages use. Without `nocache` an answer may be minutes old.
NODES_SUMMARY = "/nodes?view=summary&nocache=1"
CLUSTER_STATUS = "/api/cluster_status?format=1"  # what `ray status` prints, without the two seconds of its process
# The logs of all Ray sessions on the node, and of the latest one. RAY_TMPDIR is Ray's own variable; transport/srun sets it.
ALL_LOGS = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray"
LOGS = ALL_LOGS / "session_latest" / "logs"
# ray.dashboard.modules.job.common: the actor that runs a job's entrypoint.
_SUPERVISOR = "_ray_internal_job_actor_"
_SUPERVISORS_NAMESPACE = "SUPERVISOR_ACTOR_RAY_NAMESPACE"


def submission_client(address: str) -> Any:
    """Ray's JobSubmissionClient, whose requests raise RuntimeError where Ray's own (2.60) follow a redirect to any host.

    They would go without the token, but with the job's description, and what answers there would be taken for Ray.
    """
    from ray.job_submission import JobSubmissionClient

    class ThisHostOnly(JobSubmissionClient):  # type: ignore[misc]  # Ray has no types on the host
        def _do_request(self, *args: Any, **options: Any) -> Any:
            answer = super()._do_request(*args, allow_redirects=False, **options)
            if answer.is_redirect:
                where = shown(answer.headers["location"])
                raise RuntimeError(
                    f"HTTP {answer.status_code} redirects it to {where}, and no redirect is followed: set ray.address of the "
                    "JobSpec, or address of the Ray base config, to the head's own address"
                )
            return answer

    return ThisHostOnly(address)


def end_supervisor(submission_id: str, record: Callable[[], None]) -> bool:
    """End a PENDING job by killing the actor that would run its entrypoint; False if there is none any more.

    Ray offers nothing else for such a job, and calls it FAILED a second later: `record` is called right before. Call this
    in the head.
    """
    import ray

    ray.init(address="auto", namespace="verl-regress", log_to_driver=False, logging_level="ERROR")
    try:
        supervisor = ray.get_actor(f"{_SUPERVISOR}{submission_id}", namespace=_SUPERVISORS_NAMESPACE)
    except ValueError:
        return False
    else:
        record()
        ray.kill(supervisor, no_restart=True)
        return True
    finally:
        ray.shutdown()


# Each of these asks the GCS at `gcs` (IP:port), which every worker reaches; the dashboard may listen on the head alone, and starts seconds
# later. They raise RegressError if there is no answer within `timeout` seconds.


def actors_from_gcs(gcs: str, job_id: str, timeout: float) -> list[dict[str, Any]]:
    """Ray's actors of the job `job_id` (hex), dead ones too: ActorClassName, ActorID, Pid."""
    rows: list[dict[str, Any]] = _ask("what the job's actors are", timeout, _ACTORS, gcs, job_id)
    return rows


def is_job_in_gcs(gcs: str, submission_id: str, timeout: float) -> bool:
    """Does Ray know this submission? A head that was restarted does not."""
    return bool(_ask(f"whether it knows {submission_id}", timeout, _IS_JOB, gcs, submission_id))


def nodes_lost_from_gcs(gcs: str, driver_address: str, driver_pid: int, timeout: float) -> list[str]:
    """The nodes with which actors of the driver `driver_pid` on `driver_address` died, as `worker-0 (10.0.0.2)`, sorted.

    An actor that Ray starts again elsewhere does not count.
    """
    names: list[str] = _ask("which nodes it lost", timeout, _LOST, gcs, driver_address, str(driver_pid))
    return names


def node_memory(gcs: str, node_id: str, timeout: float) -> dict[str, Any]:
    """`counters()` of py/hooks/node_memory.py on the node `node_id` (hex), by a task of Ray."""
    counted: dict[str, Any] = _ask(f"what the kernel of node {node_id} killed", timeout, _MEMORY, gcs, node_id)
    return counted


def missing_on(gcs: str, node_ids: Sequence[str], paths: Sequence[str], timeout: float) -> dict[str, list[str]]:
    """Which of these paths are not there, on each of these nodes (hex), by a task of Ray on each. In the head, `gcs` may be `auto`."""
    missing: dict[str, list[str]] = _ask("what its nodes have", timeout, _MISSING, gcs, json.dumps(paths), *node_ids)
    return missing


def _ask(what: str, timeout: float, program: str, gcs: str, *arguments: str) -> Any:
    """The last line that `program` prints, as JSON. It runs in a separate process, because Ray's client may end its process."""
    unsaid = f"Ray's GCS at {gcs} does not say {what}"
    try:
        asked = subprocess.run(
            [sys.executable, "-c", program, gcs, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RegressError(f"{unsaid} (no answer in {timeout:g} s)", Exit.UNREACHABLE) from None
    if asked.returncode != 0:
        raise RegressError(f"{unsaid} ({last_line(asked.stderr)})", Exit.UNREACHABLE)
    return json.loads(asked.stdout.strip().splitlines()[-1])


_STATE = """
import json, sys, ray
from ray._private.state import GlobalState
from ray._raylet import GcsClientOptions
state = GlobalState()
state._initialize_global_state(
    GcsClientOptions.create(sys.argv[1], None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
)
"""

_ACTORS = f"""{_STATE}
actors = state.actor_table(None, ray.JobID.from_hex(sys.argv[2])).values()
print(json.dumps([{{key: actor[key] for key in ("ActorClassName", "ActorID", "Pid")}} for actor in actors]))
"""

_IS_JOB = """
import json, sys
from ray._private.ray_constants import KV_NAMESPACE_JOB
from ray._raylet import GcsClient
from ray.dashboard.modules.job.common import JobInfoStorageClient
key = JobInfoStorageClient.JOB_DATA_KEY.format(job_id=sys.argv[2]).encode()
print(json.dumps(GcsClient(address=sys.argv[1]).internal_kv_exists(key, KV_NAMESPACE_JOB)))
"""

_LOST = f"""{_STATE}
from ray.core.generated import common_pb2
driver = (sys.argv[2], int(sys.argv[3]))
jobs = [job["JobID"] for job in state.job_table() if (job["DriverIPAddress"], job["DriverPid"]) == driver]
dead = [
    actor
    for job in jobs
    for actor in state.actor_table(None, ray.JobID.from_hex(job)).values()
    if actor["State"] == "DEAD"
    and actor["DeathCause"].actor_died_error_context.reason == common_pb2.ActorDiedErrorContext.NODE_DIED
]
names = {{node["NodeID"]: node["NodeName"] + " (" + node["NodeManagerAddress"] + ")" for node in state.node_table()}}
print(json.dumps(sorted({{names[actor["Address"]["NodeID"]] for actor in dead}})))
"""

# The launcher's environment has the job's runtime_env, which this task must not run in.
_MEMORY = """
import json, os, sys
os.environ.pop("RAY_JOB_CONFIG_JSON_ENV_VAR", None)
import node_memory, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.cloudpickle.register_pickle_by_value(node_memory)
ray.init(address=sys.argv[1], namespace="verl-regress", log_to_driver=False, logging_level="ERROR")
there = NodeAffinitySchedulingStrategy(sys.argv[2], soft=False)
task = ray.remote(num_cpus=0, scheduling_strategy=there)(node_memory.counters)
print(json.dumps(ray.get(task.remote())))
"""

_MISSING = """
import json, os, sys, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
def missing(paths):
    return [path for path in paths if not os.path.lexists(path)]
ray.init(address=sys.argv[1], namespace="verl-regress", log_to_driver=False, logging_level="ERROR")
paths, asked = json.loads(sys.argv[2]), ray.remote(num_cpus=0)(missing)
there = {node: NodeAffinitySchedulingStrategy(node, soft=False) for node in sys.argv[3:]}
answers = {node: asked.options(scheduling_strategy=strategy).remote(paths) for node, strategy in there.items()}
print(json.dumps({node: ray.get(answer) for node, answer in answers.items()}))
"""
