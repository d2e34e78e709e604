"""TO=dstack: a distributed task (dstack 0.20 and 0.22, dstack/_internal/core/models/configurations.py).

dstack gives every node of `nodes` the same resources, runs the same commands everywhere in the host's network, and says
by DSTACK_NODE_RANK which node this is. Rank 0 is the head.
"""

from shlex import quote
from typing import Any

from verl_regress.base.errors import BadInput
from verl_regress.export import node_scripts
from verl_regress.export.job import REQUEST_DIR, Export

LONGEST = 41  # of a run's name: dstack/_internal/core/services/__init__.py
# Written by each node, not mounted: dstack has no file contents in a task.
_REQUEST_DIR = f"/tmp{REQUEST_DIR}"

_COMMANDS = """\
set -euo pipefail
umask 077
export RAY_AUTH_TOKEN_PATH=/tmp/ray_token
printf '%s' "$RAY_AUTH_TOKEN" >"$RAY_AUTH_TOKEN_PATH"
unset RAY_AUTH_TOKEN
umask 022
head=$DSTACK_MASTER_NODE_IP
address=$(sed -n "$((DSTACK_NODE_RANK + 1))p" <<<"$DSTACK_NODES_IPS")
if ((DSTACK_NODE_RANK == 0)); then
address=$head
mkdir -p {request}
{files}{head}fi
name=worker-$((DSTACK_NODE_RANK - 1))
unset {secrets}
{worker}"""


def render(export: Export) -> str:
    """The task as a file, with a comment that says how it is run and what it lacks. Raises BadInput."""
    site, vendor = export.site, export.vendor
    if vendor is not None and vendor.dstack is None:
        raise BadInput(
            f"TO=dstack cannot ask for the devices of PROFILE={export.planned.request.defaults.profile}, whose vendor dstack does not know: use TO=compose or TO=kuberay."
        )
    gpu = {} if vendor is None else {"gpu": {"vendor": vendor.dstack, "count": site.gpus_per_worker}}
    task: dict[str, Any] = {
        "type": "task",
        "name": export.name,
        "nodes": len(site.workers) + 1,
        "image": site.image,
        "user": site.user,
        "shell": "bash",
        "startup_order": "any",
        "stop_criteria": "master-done",
        "env": [
            "RAY_AUTH_TOKEN",
            *export.secrets,
            *(f"{name}={value}" for name, value in {**export.environment, **site.environment}.items()),
        ],
        "volumes": [f"{site.volume}:{export.root}"],
        "resources": {"shm_size": f"{site.shm_bytes / 1024**3:g}GB", **gpu},
        "commands": [_commands(export)],
    }
    names = ["RAY_AUTH_TOKEN=$(openssl rand -hex 32)", *(f"{name}=…" for name in export.secrets)]
    return export.file(
        "a dstack distributed task",
        task,
        run=[
            f"{' '.join(names)} dstack apply -f FILE",
            "The values come from your shell, and dstack's server keeps them with the run; they are not in this file.",
        ],
        before=[
            f"A fleet of {len(site.workers) + 1} nodes with 'placement: cluster', whose hosts mount the shared root (NFS) at {site.volume}.",
            f"Ports {site.knobs['GCS_PORT']}, 8265 and 52365 of the hosts must be free: dstack's nodes use the host's network.",
        ],
        lost=[
            "A head without GPUs: dstack's nodes are all alike, so the head's GPUs stay unused.",
            "Which GPUs a worker has: dstack chooses them, all of one host. Its type and memory are yours to add under resources.",
            "The limits memlock and stack, capabilities, groups and device files of docker-compose: dstack sets its own.",
            "A clean end: 'dstack stop' in the middle ends the job without a record of why.",
        ],
    )


def _commands(export: Export) -> str:
    values = {name: f'"${name}"' for name in export.secrets}
    files = export.request_files()
    return _COMMANDS.format(
        request=_REQUEST_DIR,
        files="".join(f"printf %s {quote(text)} >{_REQUEST_DIR}/{name}\n" for name, text in files.items()),
        head=node_scripts.head(export, _REQUEST_DIR, values),
        secrets=" ".join(export.secrets) or "-v RAY_AUTH_TOKEN",
        worker=node_scripts.worker(export),
    )
