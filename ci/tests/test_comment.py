"""`ci/comment.py` with a `gh` that answers as GitHub's API does."""

import io
import json
import sys
import zipfile

import pytest
from shared_fixtures import write

import comment
import compare
from verl_verdict.decide.verdicts import Word

GH = f"""#!{sys.executable}
import json, os, pathlib, sys
here, path = pathlib.Path(__file__).parent, next(each for each in sys.argv if each.startswith("repos/"))
with (here / "log").open("a") as log:
    log.write(json.dumps(sys.argv[2:]) + "\\n")
answer = here / path.rsplit("/", 1)[-1]
if ("-X" in sys.argv and sys.argv[sys.argv.index("-X") + 1] != "GET" and (here / "refuses").exists()):
    sys.exit("gh: Resource not accessible by integration (HTTP 403)")
sys.stdout.buffer.write(answer.read_bytes() if answer.exists() else b"")
"""
SHA = "0123456789abcdef"


def artifact(**files):
    """A zip of these files; `__` in a name is a slash, and `up` the folder above."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name.replace("up", "..").replace("__", "/").replace("_json", ".json"), content)
    return made.getvalue()


def verdict(found):
    return artifact(verdict_json=json.dumps(found))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Comments what an artifact says; `run.calls()` lists what GitHub was asked."""
    pulls = [{"number": 7, "head": {"sha": SHA}}, {"number": 6, "head": {"sha": "another"}}]
    write(tmp_path / "gh", GH)
    (tmp_path / "gh").chmod(0o755)
    write(tmp_path / "pulls", json.dumps(pulls))
    head = {"head_sha": SHA, "head_branch": "a branch", "head_repository": {"owner": {"login": "stranger"}}}
    write(tmp_path / "event", json.dumps({"workflow_run": {"id": 5, **head}}))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("GITHUB_REPOSITORY", "us/verl")
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(tmp_path / "event"))

    def run(content, size=None):
        size = len(content) if size is None else size
        artifacts = [{"id": 1, "size_in_bytes": 10**9}, {"id": 2, "size_in_bytes": size}]
        write(tmp_path / "artifacts", json.dumps({"artifacts": artifacts}))
        (tmp_path / "zip").write_bytes(content)
        return comment.main()

    run.folder = tmp_path
    run.calls = lambda: [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    return run


def test_the_cases_and_words_are_those_of_a_comparison():
    assert tuple(compare.CASES) == comment.CASES
    assert set(comment.WORDS) == {each.value for each in Word} | {compare._NOT_TOUCHED}


def test_the_first_run_of_a_pull_request_gets_a_comment(run):
    assert run(verdict({"sft": "regressed", "ppo": "not touched"})) == 0
    assert ["-X", "GET", "repos/us/verl/pulls", "-f", "state=open", "-f", "head=stranger:a branch"] in run.calls()
    assert run.calls()[-1] == [
        "-X", "POST", "repos/us/verl/issues/7/comments", "-f",
        "body=<!-- verl-regress -->\nDoes 0123456789ab still train?\n\n| case | verdict |\n| --- | --- |\n| ppo | not touched |\n"
        "| sft | regressed |\n\n[Why](https://github.com/us/verl/actions/runs/5)",
    ]  # fmt: skip


def test_the_next_run_updates_the_comment(run):
    write(run.folder / "comments", "31\n32\n")
    assert run(verdict({"sft": "same"})) == 0
    assert run.calls()[-1][:3] == ["-X", "PATCH", "repos/us/verl/issues/comments/31"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (artifact(up__up__verdict_json='{"sft": "same"}'), "has ['../../verdict.json'] and not verdict.json alone"),
        (artifact(verdict_json='{"sft": "same"}', x="x"), "and not verdict.json alone"),
        (artifact(), "has [] and not verdict.json alone"),
        (verdict({"<img src=x>": "same"}), "with something else than a verdict for each case"),
        (verdict({"sft": "[@all](https://example.com)"}), "with something else than a verdict for each case"),
        (verdict({"sft": ["same"]}), "with something else than a verdict for each case"),
        (verdict({}), "with something else than a verdict for each case"),
        (artifact(verdict_json=b" " * 5_000_000), "with something else than a verdict for each case"),
        (artifact(verdict_json="[" * 9_999), "cannot be read (RecursionError)"),
        (b"PK\x03\x04", "cannot be read (BadZipFile)"),
        (b"x" * 50_000_000, "has more than 10000 bytes"),
    ],
    ids=range(11),
)
def test_an_invented_artifact_is_refused(run, capsys, content, why):
    assert run(content, size=100) == 2
    said = capsys.readouterr().err
    assert said.startswith("error   The artifact verl-regress-verdict of run 5 ")
    assert f"{why}: it is not used.\n" in said
    assert said.count("\n") == 1
    assert not [call for call in run.calls() if "POST" in call or "PATCH" in call]


def test_a_large_artifact_is_not_downloaded(run, capsys):
    assert run(verdict({"sft": "same"}), size=50_000_000) == 2
    assert "has 50000000 bytes, more than 10000" in capsys.readouterr().err
    assert not [call for call in run.calls() if call[0].endswith("/zip")]


def test_without_permission_a_sentence_says_so_and_nothing_fails(run, capsys):
    write(run.folder / "refuses", "")
    assert run(verdict({"sft": "same"})) == 0
    assert "skip    GitHub gives no permission to comment" in capsys.readouterr().err


def test_a_pull_request_that_moved_on_gets_no_comment(run, capsys):
    write(run.folder / "pulls", "[]")
    assert run(verdict({"sft": "same"})) == 0
    assert capsys.readouterr().err == "skip    0 open pull requests have the commit 0123456789ab: no comment.\n"


def test_a_run_that_ended_without_a_verdict_gets_no_comment(run, capsys, monkeypatch):
    write(run.folder / "artifacts", '{"artifacts": []}')
    assert comment.main() == 0
    assert "has no artifact verl-regress-verdict" in capsys.readouterr().err
