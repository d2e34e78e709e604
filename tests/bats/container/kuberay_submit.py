"""In the head: does with an exported RayJob (on stdin) what KubeRay does: runs the head's init container, then submits over HTTP.

Prints the job's last status and its log.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from ray.job_submission import JobSubmissionClient

request, job = yaml.safe_load_all(sys.stdin)
directory = Path(tempfile.mkdtemp())
for name, text in request["data"].items():
    (directory / name).write_text(text)
spec = job["spec"]
[init] = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["initContainers"]
subprocess.run([*init["command"][:-1], str(directory)], check=True, stdout=subprocess.DEVNULL)
client, submission_id = JobSubmissionClient("http://127.0.0.1:8265"), spec["jobId"]
client.submit_job(
    entrypoint=spec["entrypoint"],
    submission_id=submission_id,
    runtime_env=yaml.safe_load(spec["runtimeEnvYAML"]),
    metadata=spec["metadata"],
    entrypoint_num_cpus=spec["entrypointNumCpus"],
    entrypoint_resources=json.loads(spec["entrypointResources"]),
)
end = time.monotonic() + 400
while not client.get_job_status(submission_id).is_terminal() and time.monotonic() < end:
    time.sleep(1)
print(client.get_job_status(submission_id).value)
print(client.get_job_logs(submission_id))
