"""Makes the failures of tests/recorded/failures/cases.yaml happen again, on a cluster that is up, and keeps what was recorded.

record_failures.py [NAME...]    these cases, by default all; knobs as for `make`

Each job is submitted by `make`, followed to its end and must be FAILED. Keeps the exceptions that its processes recorded as NAME.json.
Prints the cause that was found, for cases.yaml.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

REPO = Path(__file__).resolve().parents[1]
HOME = REPO / "tests" / "recorded" / "failures"
JOB_FAILED = "exit 3 (job failed)"


def main(names: list[str]) -> int:
    """Record the named cases; 1 where one did not fail."""
    cases = yaml.safe_load((HOME / "cases.yaml").read_text(encoding="utf-8"))
    unknown = set(names) - {case["name"] for case in cases}
    if unknown:
        print(f"{', '.join(sorted(unknown))} is not a case of {HOME}/cases.yaml", file=sys.stderr)
        return 2
    problems = [problem for case in cases if not names or case["name"] in names for problem in record(case)]
    print("\n".join(problems) or f"recorded {len(names or cases)} failures")
    return 1 if problems else 0


def record(case: Mapping[str, Any]) -> list[str]:
    """Provoke one failure, and keep what was recorded of it; what went wrong with that."""
    name, job_id = case["name"], f"failure-{case['name'].replace('_', '-')}-{time.strftime('%m%dT%H%M%S')}"
    shared = Path(os.environ.get("WORKDIR", REPO / "workdir")) / "shared"
    knobs = {"SUBMISSION_ID": job_id, "WORKLOAD": case["workload"], "WAIT": "1"}
    overrides = ["trainer.total_training_steps=2", *case.get("overrides", [])]
    if "edits" in case:
        knobs["CODE_ID"] = snapshot(case, shared)
    if "reward_fn" in case:
        knobs["JOBSPEC"] = str(reward_spec(case, shared))
    if "model" in case:
        overrides.append(f"actor_rollout_ref.model.path={model(case, shared)}")
    knobs["OVERRIDES"] = " ".join(overrides)
    said = make("submit", knobs)
    job = shared / "jobs" / job_id
    if JOB_FAILED not in said:
        return [f"{name} did not fail: {said.strip().splitlines()[-1:]}"]
    cause = json.loads((job / "state" / "ended").read_text(encoding="utf-8"))["cause"]
    kept = []
    for path in sorted((job / "state" / "reports").glob("exceptions-*.json")):
        for one in json.loads(path.read_text(encoding="utf-8"))["exceptions"]:
            for each in one[
                "chain"
            ]:  # the last frames in verl's or the user's code; a file of the case should be small
                each["frames"] = [frame for frame in each["frames"] if frame[0].startswith("/private/")][-2:]
            kept.append(json.dumps({**one, "lines": one["lines"][-1:]}))
    (HOME / f"{name}.json").write_text('{"exceptions": [\n' + ",\n".join(kept) + "\n]}\n", encoding="utf-8")
    print(f"- name: {name}\n  cause:", *(f"    {key}: {json.dumps(value)}" for key, value in cause.items()), sep="\n")
    return []


def make(target: str, knobs: Mapping[str, str]) -> str:
    """What `make TARGET` said, with the knobs in its environment."""
    words = ["make", "--no-print-directory", target] + ([f"JOBSPEC={knobs['JOBSPEC']}"] if "JOBSPEC" in knobs else [])
    done = subprocess.run(
        words,
        cwd=REPO,
        env={**os.environ, **knobs},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.stdout


def snapshot(case: Mapping[str, Any], shared: Path) -> str:
    """The code id of verl with the case's edits, made from the snapshot codeA."""
    home = REPO / "build" / "failures" / case["name"]
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(shared / "common" / "code" / "verl" / "codeA" / "verl", home / "verl")
    for edit in case["edits"]:
        path = home / edit["file"]
        path.chmod(0o644)
        lines = path.read_text(encoding="utf-8").splitlines()
        [at] = [number for number, line in enumerate(lines) if line.strip() == edit["line"]]
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        lines[at : at + 1] = [indent + line for line in edit["becomes"]]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    code_id = f"failure-{case['name'].replace('_', '-')}"
    remove(shared / "common" / "code" / "verl" / code_id)
    said = make("snapshot", {"CODE_ID": code_id, "VERL_SOURCE": f"path:{home}"})
    if code_id not in said.splitlines():
        raise SystemExit(said)
    return code_id


def remove(earlier: Path) -> None:
    """A snapshot is never changed: one of an earlier recording has to go."""
    for directory in (path for path in [earlier, *earlier.rglob("*")] if path.is_dir()):
        directory.chmod(0o755)
    shutil.rmtree(earlier, ignore_errors=True)


def reward_spec(case: Mapping[str, Any], shared: Path) -> Path:
    """A JobSpec with the case's reward function, which lies under user/code/ of the shared root."""
    home = shared / "user" / "code" / "failures"
    home.mkdir(parents=True, exist_ok=True)
    (home / f"{case['name']}.py").write_text(case["reward_fn"], encoding="utf-8")
    spec = REPO / "build" / "failures" / f"{case['name']}.yaml"
    spec.parent.mkdir(parents=True, exist_ok=True)
    path = f"${{shared_root}}/user/code/failures/{case['name']}.py"
    spec.write_text(json.dumps({"workload": case["workload"], "reward_fn_path": path}), encoding="utf-8")
    return spec


def model(case: Mapping[str, Any], shared: Path) -> str:
    """The path, on the nodes, of a copy of the rehearsal's model with the case's files."""
    home = shared / "common" / "models" / f"failure-{case['name']}"
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(shared / "common" / "models" / "tiny-qwen2", home)
    for name, text in case["model"].items():
        (home / name).unlink()
        (home / name).write_text(text, encoding="utf-8")
    return f"/private/common/models/{home.name}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
