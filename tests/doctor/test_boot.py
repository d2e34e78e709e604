import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

PY = Path(__file__).resolve().parents[2] / "py"
KNOBS = {"CLUSTER_NAME": "c", "PROFILE": "cpu", "GCS_PORT": "6379"}


def test_node_runs_the_doctor_from_stdin_with_nothing_of_ours_there(tmp_path):
    sent = io.BytesIO()
    with tarfile.open(fileobj=sent, mode="w") as archive:
        for part in ("__init__.py", "base", "cluster", "doctor"):
            archive.add(PY / "verl_regress" / part, f"verl_regress/{part}")
    knobs = json.dumps({name: [value, "test"] for name, value in KNOBS.items()})
    words = ["judge", f"--knobs={knobs}", "head=127.0.0.1", "worker-0=127.0.0.2"]
    boot = (PY / "verl_regress/doctor/boot.py").read_text()
    asked = subprocess.run(
        [sys.executable, "-I", "-c", boot, *words],
        input=b"head\tlost\nworker-0\tno answer\n\n" + sent.getvalue(),
        capture_output=True,
        cwd=tmp_path,
        check=False,
    )
    assert asked.returncode == 9, (asked.stdout, asked.stderr)
    assert b"VR-NODE-01  alarm    head " in asked.stdout
    assert b"VR-NODE-01  alarm    worker-0" in asked.stdout
