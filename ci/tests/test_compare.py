"""`ci/compare.py` on a real repository; training is replaced by a function that writes records."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from shared_fixtures import write

import compare

STEPS = range(1, 11)


def record(case, better=0.0):
    """The record of a run that ended: SFT or RL, by the trainer's name for the loss."""
    if case == "sft":
        rows = [{"train/loss": 5.0 - step / 10 + better, "train/grad_norm": 3.0, "train/lr": 1e-4} for step in STEPS]
    else:
        rows = [
            {"critic/score/mean": 0.1 + step / 50 - better, "actor/grad_norm": 1.0 + step / 10, "actor/pg_loss": 0.1}
            for step in STEPS
        ]
    return "".join(json.dumps({"step": step, "data": row}) + "\n" for step, row in zip(STEPS, rows, strict=True))


@pytest.fixture
def repository(tmp_path):
    """A repository of verl with the branches main and change; `commit` makes another commit on change."""
    path = tmp_path / "verl"

    def git(*words):
        subprocess.run(["git", "-C", str(path), "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)

    def commit(**files):
        for name, text in files.items():
            write(path / name.replace("__", "/"), text)
        git("add", "--all")
        git("commit", "--quiet", "--message=c")

    path.mkdir()
    git("init", "--quiet", "--initial-branch=main")
    commit(**{"verl__version__version": "0.9.1\n", "verl__core.py": "a = 1\n"})
    git("checkout", "--quiet", "-b", "change")
    commit(**{"verl__core.py": "a = 2\n"})
    return path, commit


@pytest.fixture
def compared(repository, tmp_path, monkeypatch):
    """Runs compare; `compared.outcomes` maps (case, side) to a record or to why the trainer failed, `trained` lists what trained."""
    path, _ = repository

    def train(argv, code, output, limit):
        folder = Path(argv[7])
        case = folder.name
        side = code.name
        compared.trained.append(f"{case} of {side}")
        compared.code[side] = (code / "verl" / "core.py").read_text()
        outcome = compared.outcomes.get((case, side), record(case))
        if outcome.startswith("{"):
            write(folder / "metrics.jsonl", outcome)
            return None
        return outcome

    def compared(*words):
        compared.trained, compared.code = [], {}
        folders = ["--verl", str(path), "--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
        return compare.main(["--base=main", "--head=change", *folders, *words])

    compared.outcomes, compared.out = {}, tmp_path / "out"
    monkeypatch.setattr(compare, "_train", train)
    monkeypatch.setattr(compare, "_unfaithful", lambda *_: None)
    monkeypatch.setattr(compare, "_make", lambda *_: None)
    monkeypatch.setattr(compare.signal, "signal", lambda *_: None)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    return compared


def test_equal_runs_of_every_case_are_identical(compared, capsys):
    assert compared() == 0
    assert compared.trained == [f"{case} of {side}" for case in compare.CASES for side in ("base", "head")]
    assert compared.code == {"base": "a = 1\n", "head": "a = 2\n"}
    assert capsys.readouterr().out.endswith("verdict     identical (exit status 0)\n")
    assert {path.name for path in compared.out.iterdir()} >= {"report.md", "report.html", "report.json", "junit.xml"}
    assert ET.parse(compared.out / "junit.xml").getroot().attrib["failures"] == "0"


def test_base_trains_once_and_a_damaged_run_of_it_again(compared, tmp_path):
    compared("sft")
    assert (compared("sft"), compared.trained) == (0, ["sft of head"])
    next((tmp_path / "cache" / "runs").glob("*/sft/complete")).unlink()
    assert (compared("sft"), compared.trained) == (0, ["sft of base", "sft of head"])


def test_a_head_that_trains_worse_is_regressed_and_annotated(compared, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    compared.outcomes["sft", "head"] = record("sft", better=4.0)
    assert compared("sft") == 9
    assert re.search(r"^::error file=verl/core.py,line=1::sft regressed: ", capsys.readouterr().out, re.MULTILINE)
    assert "| sft | **regressed** |" in (tmp_path / "summary").read_text()
    assert json.loads((compared.out / "report.json").read_text())["status"] == 9
    assert ET.parse(compared.out / "junit.xml").find("testcase/failure") is not None


def test_a_head_that_fails_is_regressed_and_its_resumed_run_is_not_tried(compared):
    compared.outcomes["ppo", "head"] = "the trainer ended with exit status 1"
    assert compared("resume") == 9
    assert compared.trained == ["ppo of base", "ppo of head", "resume of base"]
    reasons = {each["case"]: each["reason"] for each in json.loads((compared.out / "report.json").read_text())["cases"]}
    assert "the trainer ended with exit status 1" in reasons["ppo"]
    assert "ppo, whose checkpoint it continues, failed" in reasons["resume"]


def test_a_base_that_fails_says_nothing_of_the_head(compared):
    compared.outcomes["sft", "base"] = "the trainer ended with exit status 1"
    assert compared("sft") == 12


def test_a_change_of_packages_is_noted(compared, repository):
    repository[1](**{"setup.py": "x"})
    compared("sft")
    assert "although setup.py changed" in (compared.out / "report.md").read_text()


def test_text_of_a_run_is_no_markup_in_the_report(compared):
    compared.outcomes["sft", "head"] = "<img src=x> | [a](b) @all"
    compared("sft")
    table = (compared.out / "report.md").read_text()
    assert "<img" not in table
    assert "@all" not in table


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ppp"], "'ppp' is not a case: use ppo, grpo, sft, resume."),
        (["--base=nope"], "--base=nope is not a commit of "),
        (["--base=--help"], "--base=--help is not a commit of "),
        (["--allow=regressed"], "only changed and inconclusive can be allowed"),
        (["--bas=main"], "The command line is wrong"),
    ],
)
def test_bad_input_is_one_sentence(compared, capsys, words, said):
    assert compared(*words) == 2
    assert said in capsys.readouterr().err
    assert not compared.trained


@pytest.mark.parametrize("version", ["0.7.0", ""])
def test_a_verl_that_is_too_old_is_refused(compared, repository, capsys, version):
    repository[1](**{"verl__version__version": version})
    assert compared("sft") == 2
    assert f"is verl {version}: a rehearsal supports 0.7.1 and later" in capsys.readouterr().err


def test_a_run_that_takes_too_long_leaves_no_process(tmp_path):
    child = "import subprocess, sys, time; subprocess.Popen(['sleep', '97.531']); time.sleep(100)"
    with (tmp_path / "log").open("wb") as log:
        said = compare._train([sys.executable, "-c", child], tmp_path, log.fileno(), 1.0)
    assert said == "the trainer did not end in 1 s (--limit)"
    assert subprocess.run(["pgrep", "-f", "sleep 97.531"], stdout=subprocess.DEVNULL, check=False).returncode == 1


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        ("", "it printed nothing"),
        ("a\nb\n", "b"),
        ("ValueError: no\n\nSet HYDRA_FULL_ERROR=1\n  a warning\n", "ValueError: no"),
        (
            "\x1b[36m(WorkerDict pid=7, ip=10.0.0.2)\x1b[0m ray.exceptions.RayTaskError: x\n",
            "ray.exceptions.RayTaskError: x",
        ),
    ],
)
def test_the_last_exception_of_the_log_says_why(printed, why):
    assert compare._why(printed) == why
