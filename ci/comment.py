"""The comment on a pull request with the verdicts of its last run: what ci/workflows/comment.yml does on `workflow_run`. Needs `gh`.

Whoever opens a pull request decides what is in its artifact. So it is read in memory up to a limit, it may hold one file, and only names of
cases and verdicts that are known get into the comment. Which pull request it is, GitHub's event says.

Exit statuses: 0 commented, or a comment is not possible; 2 the artifact is refused.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CASES = ("ppo", "grpo", "sft", "resume")
WORDS = ("identical", "same", "improved", "changed", "regressed", "inconclusive", "incomparable", "not touched")
_ARTIFACT, _FILE = "verl-regress-verdict", "verdict.json"  # of action.yml
_MOST = 10_000  # bytes, of the artifact and of its file
_MARK = "<!-- verl-regress -->"
_OURS = f'.[] | select(.user.login == "github-actions[bot]" and (.body | startswith("{_MARK}"))) | .id'


class _Refused(Exception):
    """The artifact is not what a run leaves: one sentence."""


class _Impossible(Exception):
    """There is nothing to comment, or no right to: one sentence."""


def main() -> int:
    """Comment on the pull request of the event in GITHUB_EVENT_PATH; returns the exit status."""
    repository = os.environ["GITHUB_REPOSITORY"]
    run = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_bytes())["workflow_run"]
    try:
        number = _pull_request(repository, run)
        found = verdicts(_artifact(repository, run["id"]))
        _comment(repository, number, _body(found, run["head_sha"], f"{repository}/actions/runs/{run['id']}"))
    except _Refused as error:
        print(f"error   The artifact {_ARTIFACT} of run {run['id']} {error}: it is not used.", file=sys.stderr)
        return 2
    except _Impossible as error:
        print(f"skip    {error}", file=sys.stderr)
    return 0


def verdicts(artifact: bytes) -> dict[str, str]:
    """The verdict on each case, from an artifact that anything may be in. Raises _Refused."""
    if len(artifact) > _MOST:
        raise _Refused(f"has more than {_MOST} bytes")
    try:
        with zipfile.ZipFile(io.BytesIO(artifact)) as archive:
            if (names := archive.namelist()) != [_FILE]:
                raise _Refused(f"has {ascii(names)[:100]} and not {_FILE} alone")
            with archive.open(_FILE) as file:
                content = file.read(_MOST + 1)
        found = json.loads(content) if len(content) <= _MOST else None
    except _Refused:
        raise
    except Exception as error:  # whatever zipfile and json raise for invented bytes
        raise _Refused(f"cannot be read ({type(error).__name__})") from None
    if not isinstance(found, dict) or not found or any(each not in CASES or found[each] not in WORDS for each in found):
        raise _Refused(f"has a {_FILE} with something else than a verdict for each case")
    return found


def _artifact(repository: str, run: int) -> bytes:
    listed = json.loads(_gh("-X", "GET", f"repos/{repository}/actions/runs/{run}/artifacts", "-f", f"name={_ARTIFACT}"))
    if not listed["artifacts"]:
        raise _Impossible(f"Run {run} has no artifact {_ARTIFACT}: it ended before its verdict.")
    newest = max(listed["artifacts"], key=lambda each: int(each["id"]))  # a run that was started again has several
    if newest["size_in_bytes"] > _MOST:
        raise _Refused(f"has {newest['size_in_bytes']} bytes, more than {_MOST}")
    return _gh(f"repos/{repository}/actions/artifacts/{newest['id']}/zip")


def _pull_request(repository: str, run: Mapping[str, Any]) -> int:
    """The open pull request of the run's commit. The event does not name those of forks."""
    owner = ((run["head_repository"] or {}).get("owner") or {}).get("login", "")
    head = f"head={owner}:{run['head_branch']}"
    pulls = json.loads(_gh("-X", "GET", f"repos/{repository}/pulls", "-f", "state=open", "-f", head))
    numbers = [int(each["number"]) for each in pulls if each["head"]["sha"] == run["head_sha"]]
    if len(numbers) != 1:
        raise _Impossible(f"{len(numbers)} open pull requests have the commit {run['head_sha'][:12]}: no comment.")
    return numbers[0]


def _body(found: Mapping[str, str], commit: str, run: str) -> str:
    server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
    rows = [f"| {case} | {found[case]} |" for case in CASES if case in found]
    table = ["| case | verdict |", "| --- | --- |", *rows]
    return "\n".join([_MARK, f"Does {commit[:12]} still train?", "", *table, "", f"[Why]({server}/{run})"])


def _comment(repository: str, number: int, body: str) -> None:
    comments = f"repos/{repository}/issues/{number}/comments"
    ours = _gh("--paginate", comments, "--jq", _OURS).split()
    if ours:
        _gh("-X", "PATCH", f"repos/{repository}/issues/comments/{int(ours[0])}", "-f", f"body={body}")
    else:
        _gh("-X", "POST", comments, "-f", f"body={body}")


def _gh(*arguments: str) -> bytes:
    """What `gh api` prints, up to a megabyte. Raises _Impossible if GitHub refuses."""
    with subprocess.Popen(["gh", "api", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        printed = process.stdout.read(1_000_000)
        process.stdout.close()  # what prints more ends here
        why = process.stderr.read().decode("utf-8", "replace").strip()
    if "HTTP 403" in why:
        raise _Impossible(
            f"GitHub gives no permission to comment ({ascii(why)[:200]}): the workflow needs pull-requests: write."
        )
    if process.returncode and len(printed) < 1_000_000:
        raise _Impossible(f"'gh api' failed: {ascii(why)[:200]}.")
    return printed


if __name__ == "__main__":
    sys.exit(main())
