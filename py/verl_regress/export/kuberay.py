"""TO=kuberay: a RayJob (ray.io/v1) and the ConfigMap with its request, for KubeRay 1.6 or later.

Facts from ray-project/kuberay at feeaf72f (2026-08): HTTPMode submits when all Pods of the cluster are ready
(rayjob_controller.go), over Ray's API with the token, while K8sJobMode passes runtime_env and metadata through a shell
(common/job.go), which would fill in what follows a `$`. `authOptions.mode: token` makes a token for each cluster, and
passes it as RAY_AUTH_TOKEN (common/pod.go); it needs `rayVersion`. `resources` of a group becomes what the node declares
to Ray, GPU and CPU in any case (updateRayStartParamsResources).
"""

import json
from typing import Any

from verl_regress.export.job import REQUEST_DIR, Export, as_yaml
from verl_regress.export.node_scripts import secrets_on_stdin

LONGEST = 47  # MaxRayJobNameLength


def render(export: Export) -> str:
    """Both documents as a file, with a comment that says how it is run and what it lacks."""
    files = export.request_files()
    request = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": export.name}, "data": files}
    return "\n".join([_header(export), as_yaml(request) + "---", as_yaml(ray_job(export))])


def ray_job(export: Export) -> dict[str, Any]:
    """The RayJob as plain data."""
    planned, site = export.planned, export.site
    head, worker = _pod(export), _pod(export)
    head["initContainers"] = [_reserve(export)]
    head["volumes"].append({"name": "request", "configMap": {"name": export.name}})
    count, declared = len(site.workers), {name: f"{amount:g}" for name, amount in site.resources.items()}
    for name, amount in (("CPU", site.cpus), ("GPU", site.gpus)):
        if amount is not None:
            declared[name] = str(amount)
    if export.vendor is not None:
        [container] = worker["containers"]
        container["resources"] = {"limits": {export.vendor.kubernetes: str(site.gpus_per_worker)}}
        if export.vendor.ids and not export.vendor.numbered:
            unconfined = {"seccompProfile": {"type": "Unconfined"}}
            container["securityContext"] = {"capabilities": {"add": ["SYS_PTRACE"]}, **unconfined}
        container["env"] += [{"name": name, "value": value} for name, value in site.environment.items()]
    store = {"object-store-memory": str(site.object_store_bytes)}
    workers = {
        "groupName": "worker",
        **dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), count),
        "rayStartParams": store,
        "resources": declared,
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
            "entrypointNumCpus": planned.driver.num_cpus,
            "entrypointResources": json.dumps(dict(planned.driver.resources)),
            "metadata": {"submitted_via": "kuberay", **planned.metadata()},
            "runtimeEnvYAML": as_yaml(planned.environment.runtime_env()),
            "rayClusterSpec": {
                "rayVersion": export.ray_version,
                "authOptions": {"mode": "token"},
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0", "num-gpus": "0", **store},
                    "template": {"spec": head},
                },
                "workerGroupSpecs": [workers],
            },
        },
    }


def _pod(export: Export) -> dict[str, Any]:
    site = export.site
    user, _, group = site.user.partition(":")
    container = {
        "name": "ray",
        "image": site.image,
        "env": [
            {"name": name, "value": value} for name, value in export.environment.items() if name != "RAY_AUTH_MODE"
        ],
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
    devices = len(site.workers) * (site.gpus_per_worker if site.gpus is None else site.gpus)
    argv = ["python3", export.helper, "--shared-root", export.root, "submit-exported", f"--reserve={devices}"]
    env: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in export.environment.items()]
    if export.secrets:
        values = secrets_on_stdin({name: f'"${name}"' for name in export.secrets})
        argv = ["bash", "-c", f'{values} | "$0" "$@"', *argv, "--secrets"]
        env += [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": f"{export.name}-secrets", "key": name}}}
            for name in export.secrets
        ]
    return {
        "name": "reserve",
        "image": export.site.image,
        "command": [*argv, REQUEST_DIR],
        "env": env,
        "volumeMounts": [
            {"name": "shared", "mountPath": export.root},
            {"name": "request", "mountPath": REQUEST_DIR, "readOnly": True},
        ],
    }


def _header(export: Export) -> str:
    before = [
        f"A PersistentVolumeClaim {export.site.volume} (ReadWriteMany) in the same namespace has the shared root. Another name: EXPORT_VOLUME.",
        "KubeRay 1.6 or later. Its token is made for this cluster, and goes with it.",
    ]
    if export.secrets:
        literals = " ".join(f"--from-file={name}=FILE" for name in export.secrets)
        before.append(f"The job's secrets: kubectl create secret generic {export.name}-secrets {literals}")
    lost = [
        "Requests and limits for CPU and memory, node selectors, tolerations and network policies: add what your cluster wants.",
        "The queue's and the status commands' knobs: PENDING_TIMEOUT, START_TIMEOUT, STALL_TIMEOUT, UNREACHABLE_TIMEOUT.",
        "The token as a file: KubeRay passes it as RAY_AUTH_TOKEN, so processes of the job have it in their environment.",
        "The comparison of the nodes' packages with the snapshot's requirements, which 'make submit' makes.",
        "Which GPUs a worker has, the group video and /dev/infiniband: the device plugins decide. The limits memlock and stack: the container runtime's.",
    ]
    return export.header(
        "a RayJob for KubeRay",
        run=["kubectl create -f FILE", f"kubectl get rayjob {export.name} --watch"],
        before=before,
        lost=lost,
    )
