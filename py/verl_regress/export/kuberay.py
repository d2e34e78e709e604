"""TO=kuberay: a RayJob (ray.io/v1) and the ConfigMap with its request, for KubeRay 1.6 or later.

Facts from ray-project/kuberay at feeaf72f (2026-08): HTTPMode submits when all Pods are ready (rayjob_controller.go), while K8sJobMode passes
runtime_env and metadata through a shell (common/job.go), which would fill in what follows a `$`. `authOptions.mode: token` makes a token for
each cluster, and passes it as RAY_AUTH_TOKEN (common/pod.go); it needs `rayVersion`. `resources` of a group is what the node declares to Ray.
"""

import json
from collections.abc import Mapping
from typing import Any

from verl_regress.export.job import HELPER, REQUEST_DIR, Export, as_yaml
from verl_regress.export.node_scripts import secrets_on_stdin

LONGEST = 47  # MaxRayJobNameLength


def render(export: Export) -> str:
    """Both documents as a file, with a comment that says how it is run and what it lacks."""
    files = export.request_files()
    request = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": export.name}, "data": files}
    before = [
        f"A PersistentVolumeClaim {export.site.volume} (ReadWriteMany) in the same namespace has the shared root. Another name: EXPORT_VOLUME.",
        "KubeRay 1.6 or later. Its token is made for this cluster, and goes with it.",
    ]
    if export.secrets:
        literals = " ".join(f"--from-file={name}=FILE" for name in export.secrets)
        before.append(f"The job's secrets: kubectl create secret generic {export.name}-secrets {literals}")
    return export.file(
        "a RayJob for KubeRay",
        request,
        _ray_job(export),
        run=["kubectl create -f FILE", f"kubectl get rayjob {export.name} --watch"],
        before=before,
        lost=[
            "Requests and limits for CPU and memory, node selectors, tolerations and network policies: add what your cluster wants.",
            "The queue's and the status commands' knobs: PENDING_TIMEOUT, START_TIMEOUT, STALL_TIMEOUT, UNREACHABLE_TIMEOUT.",
            "The token as a file: KubeRay passes it as RAY_AUTH_TOKEN, so processes of the job have it in their environment.",
            "The comparison of the nodes' packages with the snapshot's requirements, which 'make submit' makes.",
            "Which GPUs a worker has, the group video and /dev/infiniband: the device plugins decide. The limits memlock and stack: the container runtime's.",
        ],
    )


def _ray_job(export: Export) -> dict[str, Any]:
    planned, site = export.planned, export.site
    head, worker = _pod(export), _pod(export)
    head["initContainers"] = [_reserve(export)]
    head["volumes"].append({"name": "request", "configMap": {"name": export.name}})
    if export.vendor is not None:
        [container] = worker["containers"]
        container["resources"] = {"limits": {export.vendor.kubernetes: str(site.gpus_per_worker)}}
        if export.vendor.ids and not export.vendor.numbered:
            container["securityContext"] = {
                "capabilities": {"add": ["SYS_PTRACE"]},
                "seccompProfile": {"type": "Unconfined"},
            }
        container["env"] += _env(site.environment)
    store = {"object-store-memory": site.knobs["OBJECT_STORE_BYTES"]}
    heads = {"rayStartParams": {"num-cpus": "0", "num-gpus": "0", **store}, "template": {"spec": head}}
    workers = {
        "groupName": "worker",
        **dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), len(site.workers)),
        "rayStartParams": store,
        "resources": {name: f"{amount:g}" for name, amount in site.resources.items()} | site.declared,
        "template": {"spec": worker},
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": export.name},
        "spec": {
            "jobId": planned.job.ray_id,
            "submissionMode": "HTTPMode",
            "backoffLimit": 0,
            "shutdownAfterJobFinishes": True,
            "entrypoint": planned.driver.entrypoint,
            "entrypointNumCpus": planned.driver.entrypoint_num_cpus,
            "entrypointResources": json.dumps(dict(planned.driver.entrypoint_resources)),
            "metadata": {"submitted_via": "kuberay", **planned.metadata()},
            "runtimeEnvYAML": as_yaml(planned.environment.runtime_env()),
            "rayClusterSpec": {
                "rayVersion": export.ray_version,
                "authOptions": {"mode": "token"},
                "headGroupSpec": heads,
                "workerGroupSpecs": [workers],
            },
        },
    }


def _env(variables: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in variables.items()]


def _pod(export: Export) -> dict[str, Any]:
    site = export.site
    user, _, group = site.user.partition(":")
    container = {
        "name": "ray",
        "image": site.image,
        "env": [each for each in _env(export.environment) if each["name"] != "RAY_AUTH_MODE"],
        "volumeMounts": [{"name": "shared", "mountPath": export.root}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    return {
        "securityContext": {"runAsUser": int(user), "runAsGroup": int(group)},
        "containers": [container],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": site.volume}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(site.shm_bytes)}},
        ],
    }


def _reserve(export: Export) -> dict[str, Any]:
    """Makes the job's directory before Ray starts: the launcher reads its plan there."""
    site = export.site
    devices = len(site.workers) * int(site.declared.get("GPU", site.gpus_per_worker))
    argv = ["python3", HELPER, "--shared-root", export.root, "submit-exported", f"--reserve={devices}"]
    env = _env(export.environment)
    if export.secrets:
        values = secrets_on_stdin({name: f'"${name}"' for name in export.secrets})
        argv = ["bash", "-c", f'{values} | "$0" "$@"', *argv, "--secrets"]
        keys = ((name, {"name": f"{export.name}-secrets", "key": name}) for name in export.secrets)
        env += [{"name": name, "valueFrom": {"secretKeyRef": key}} for name, key in keys]
    request = {"name": "request", "mountPath": REQUEST_DIR, "readOnly": True}
    return {
        "name": "reserve",
        "image": site.image,
        "command": [*argv, REQUEST_DIR],
        "env": env,
        "volumeMounts": [{"name": "shared", "mountPath": export.root}, request],
    }
