"""action.yml and ci/workflows: what keeps a stranger's pull request harmless. scripts/dev/lint.sh checks them against GitHub's schemas."""

import os
import re
import subprocess

import pytest
import yaml
from hermetic import REPO
from shared_fixtures import write

ACTION = yaml.safe_load((REPO / "action.yml").read_text())
WORKFLOWS = {path.name: yaml.load(path.read_text(), yaml.BaseLoader) for path in (REPO / "ci" / "workflows").iterdir()}
STEPS = [
    *ACTION["runs"]["steps"],
    *(step for each in WORKFLOWS.values() for job in each["jobs"].values() for step in job["steps"]),
]


def test_no_shell_has_an_expression_in_it():
    shells = [step["run"] for step in STEPS if "run" in step]
    assert len(shells) == 2
    assert not [each for each in shells if "${{" in each]


def test_every_action_is_of_a_fixed_version():
    assert not [step for step in STEPS if "uses" in step and not re.search(r"@v\d", step["uses"])]


def test_the_heads_code_runs_where_there_is_nothing_to_take():
    verdict = WORKFLOWS["verdict.yml"]
    assert set(verdict["on"]) == {"pull_request", "push"}
    assert verdict["permissions"] == {"contents": "read"}
    assert verdict["jobs"]["train"]["steps"][0]["with"]["persist-credentials"] == "false"
    assert "secrets." not in (REPO / "ci" / "workflows" / "verdict.yml").read_text()


def test_what_may_comment_runs_our_code_alone():
    workflow = WORKFLOWS["comment.yml"]
    assert set(workflow["on"]) == {"workflow_run"}
    assert workflow["on"]["workflow_run"]["workflows"] == [WORKFLOWS["verdict.yml"]["name"]]
    checkout, last = workflow["jobs"]["comment"]["steps"]
    assert checkout["with"]["repository"] == "OWNER/verl-regress"
    assert (REPO / last["run"].split()[-1]).is_file()


def test_every_job_has_a_limit():
    assert not [job for each in WORKFLOWS.values() for job in each["jobs"].values() if "timeout-minutes" not in job]


@pytest.mark.parametrize(("changed", "then"), [("true", ["--changed", "--", "ppo,sft"]), ("", ["--", "ppo,sft"])])
def test_the_action_gives_its_inputs_to_the_script(tmp_path, changed, then):
    script = tmp_path / "ci" / "compare.sh"
    write(script, "#!/usr/bin/env bash\nprintf '%s\\n' \"$@\"\n")
    script.chmod(0o755)
    step = next(step for step in STEPS if "run" in step)
    given = {"BASE": "$(id)", "HEAD": "HEAD", "CASES": "ppo,sft", "ALLOW": "", "LIMIT": "9", "CHANGED": changed}
    assert {*given} <= {*step["env"]}
    done = subprocess.run(
        ["bash", "-ec", step["run"]], env={**os.environ, **given, "GITHUB_ACTION_PATH": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["--base=$(id)", "--head=HEAD", "--allow=", "--limit=9", *then]
