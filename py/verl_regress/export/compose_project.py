"""TO=compose: a whole Compose project, for a machine without verl-regress: head, workers, and the job.

It repeats docker-compose.yaml and what scripts/lib/lifecycle/compose.bash adds; a test compares them by profile.
"""

from typing import Any

from verl_regress.export import node_scripts
from verl_regress.export.job import REQUEST_DIR, Export

LONGEST = 63  # of a project's name
_TOKEN = "ray_token"
_ADDRESS = "address=$(hostname -i | awk '{ print $1 }')\n"


def render(export: Export) -> str:
    """The project as a file, with a comment that says how it is run and what it lacks."""
    values = {name: f'"$(</run/secrets/{name})"' for name in export.secrets}
    workers = {f"worker-{index}": _worker(export, index, ids) for index, ids in enumerate(export.site.workers)}
    files = {name.replace(".", "_"): (name, text) for name, text in export.request_files().items()}
    head = _node(export, _ADDRESS + node_scripts.head(export, REQUEST_DIR, values))
    head["secrets"] = [_TOKEN, *export.secrets]
    head["configs"] = [{"source": key, "target": f"{REQUEST_DIR}/{name}"} for key, (name, _) in files.items()]
    if export.vendor is not None and not export.vendor.ids:
        head["environment"]["NVIDIA_VISIBLE_DEVICES"] = "void"
    project = {
        "name": export.name,
        "services": {"head": head, **workers},
        "networks": {"ray": {}},
        # From the shell of whoever runs it: the values are never in this file.
        "secrets": {_TOKEN: {"environment": "RAY_AUTH_TOKEN"}}
        | {name: {"environment": name} for name in export.secrets},
        "configs": {key: {"content": _literal(text)} for key, (_, text) in files.items()},
    }
    return export.file(
        "a Compose project",
        project,
        run=[
            "RAY_AUTH_TOKEN=$(openssl rand -hex 32) docker compose -f FILE up --exit-code-from head",
            "docker compose -f FILE down",
            "The exit status is the job's, as in verl-regress's README; RAY_AUTH_TOKEN may be any long random word.",
        ],
        before=[
            f"{export.site.volume} is the shared root of that machine: change it in every service if it has another path there.",
            f"The job's secrets in the shell's environment: {', '.join(export.secrets) or 'none'}.",
            "Compose 2.24 or later, for files and secrets that are written here.",
        ],
        lost=[
            "The dashboard: its port is not published.",
            "Our labels: neither 'make down' nor 'make check' knows these containers.",
            "A clean end: 'docker compose down' in the middle ends the job without a record of why.",
        ],
    )


def _node(export: Export, script: str) -> dict[str, Any]:
    return {
        "image": export.site.image,
        "init": True,
        "user": export.site.user,
        "command": ["bash", "-c", _literal(script)],
        "shm_size": export.site.knobs["SHM_SIZE"],
        "networks": ["ray"],
        "environment": {**export.environment, "RAY_AUTH_TOKEN_PATH": f"/run/secrets/{_TOKEN}"},
        "volumes": [_bind(_literal(export.site.volume), export.root)],
        "secrets": [_TOKEN],
    }


def _bind(source: str, target: str) -> dict[str, Any]:
    return {"type": "bind", "source": source, "target": target, "bind": {"create_host_path": False}}


def _worker(export: Export, index: int, ids: str) -> dict[str, Any]:
    site, vendor = export.site, export.vendor
    node = _node(export, f"name=worker-{index} head=head\n{_ADDRESS}{node_scripts.worker(export)}")
    own = [f"{vendor.numbered}{number}" for number in ids.split(",")] if vendor and vendor.numbered else []
    if devices := [*site.knobs["WORKER_DEVICES"].split(), *own]:
        node["devices"] = devices
    if vendor is None:
        return node
    node["ulimits"] = {"memlock": -1, "stack": 67108864}
    if not vendor.ids:
        wanted = {"driver": "nvidia", "device_ids": ids.split(","), "capabilities": ["gpu"]}
        node["deploy"] = {"resources": {"reservations": {"devices": [wanted]}}}
        return node
    node["environment"] |= {name: _literal(value) for name, value in site.environment.items()}
    if vendor.numbered:
        node["volumes"] += [_bind(path, path) | {"read_only": True} for path in site.driver]
        ids = ",".join(map(str, range(site.gpus_per_worker)))
    else:
        node["group_add"], node["cap_add"], node["security_opt"] = ["video"], ["SYS_PTRACE"], ["seccomp=unconfined"]
    node["environment"] |= dict.fromkeys(vendor.ids, ids)
    return node


def _literal(text: str) -> str:
    """Compose fills in variables after a `$`; twice means one."""
    return text.replace("$", "$$")
