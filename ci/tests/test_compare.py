"""`ci/compare.py` on a real repository; training is replaced by a function that writes records."""

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hermetic import REPO
from shared_fixtures import write

import compare

pytestmark = pytest.mark.slow

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
    commit(**{"verl__version__version": "0.9.1\n", "verl__core.py": "a = 1\n", "verl__data.py": "b = 1\n"})
    git("checkout", "--quiet", "-b", "change")
    commit(**{"verl__core.py": "a = 2\n"})
    return path, commit


@pytest.fixture
def compared(repository, tmp_path, monkeypatch):
    """Runs compare; `compared.outcomes` maps (case, side) to a record or to why the trainer failed, `trained` lists what trained,
    `overrides` with what, and `loads` maps a case to the modules of verl that it loads."""
    path, _ = repository

    def train(argv, code, output, limit):
        folder = Path(argv[7])
        case = folder.name
        side = code.name
        compared.trained.append(f"{case} of {side}")
        compared.overrides[f"{case} of {side}"] = argv[8:]
        compared.code[side] = (code / "verl" / "core.py").read_text()
        for module in compared.loads.get(case, ["core"]):
            write(code / "verl" / "__pycache__" / f"{module}.cpython-311.pyc", "")
        outcome = compared.outcomes.get((case, side), record(case))
        if outcome.startswith("{"):
            write(folder / "metrics.jsonl", outcome)
            return None
        return outcome

    def compared(*words):
        compared.trained, compared.code, compared.overrides = [], {}, {}
        folders = ["--verl", str(path), "--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
        return compare.main(["--base=main", "--head=change", *folders, *words])

    compared.outcomes, compared.loads, compared.out = {}, {}, tmp_path / "out"
    compared.report = lambda name: (compared.out / name).read_text()
    monkeypatch.setattr(compare, "_train", train)
    monkeypatch.setattr(compare, "_unfaithful", lambda *_: None)
    monkeypatch.setattr(compare, "_make_inputs", lambda *_: None)
    monkeypatch.setattr(compare.signal, "signal", lambda *_: None)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return compared


def test_equal_runs_of_every_case_are_identical(compared, capsys):
    assert compared() == 0
    assert compared.trained == [f"{case} of {side}" for case in compare.CASES for side in ("base", "head")]
    assert compared.code == {"base": "a = 1\n", "head": "a = 2\n"}
    assert capsys.readouterr().out.endswith("verdict     identical (exit status 0)\n")
    assert {path.name for path in compared.out.iterdir()} >= {"report.md", "report.html", "report.json", "junit.xml"}
    assert ET.parse(compared.out / "junit.xml").getroot().attrib["failures"] == "0"


def test_files_of_a_commit_are_those_of_a_checkout(compared, repository):
    repository[1](**{".gitattributes": "verl/core.py export-ignore\n"})
    assert compared("sft") == 0
    assert compared.code["head"] == "a = 2\n"


def test_base_trains_once_unless_its_cached_run_is_cut_off(compared, tmp_path):
    compared("sft")
    assert (compared("sft"), compared.trained) == (0, ["sft of head"])
    metrics = next((tmp_path / "cache" / "runs").glob("*/sft/metrics.jsonl"))
    whole = metrics.read_text()
    for cut_off in (metrics.unlink, lambda: metrics.write_text(whole[:-50]), (metrics.parent / "complete").unlink):
        cut_off()
        assert (compared("sft"), compared.trained) == (0, ["sft of base", "sft of head"])


def test_a_model_that_is_cut_off_is_made_again(tmp_path, monkeypatch):
    def made(argv, **_):
        write(Path(argv[-1]) / "file", "whole")
        return subprocess.CompletedProcess(argv, 0)

    monkeypatch.setattr(compare.subprocess, "run", made)
    compare._make_inputs(tmp_path / "inputs")
    write(tmp_path / "inputs" / "model" / "file", "")
    compare._make_inputs(tmp_path / "inputs")
    assert (tmp_path / "inputs" / "model" / "file").read_text() == "whole"


def test_runs_of_the_ten_latest_bases_are_kept(compared, tmp_path):
    for number in range(12):
        write(tmp_path / "cache" / "runs" / str(number) / "x", "")
        os.utime(tmp_path / "cache" / "runs" / str(number), (number, number))
    compared("sft")
    assert {"2", "3"} & {path.name for path in (tmp_path / "cache" / "runs").iterdir()} == {"3"}


def test_only_cases_that_load_a_changed_file_train(compared, capsys):
    compared.loads["sft"] = ["data"]
    assert compared("--changed") == 0
    assert "sft of head" not in compared.trained
    assert compared("--changed") == 0
    assert compared.trained == ["ppo of head", "grpo of head", "resume of head"]
    said = capsys.readouterr()
    assert "Only cases that load verl/core.py ran: ppo, grpo, resume; not touched: sft." in said.err
    assert "sft         not touched: base loads nothing that differs\n" in said.out
    assert "| sft | not touched |" in compared.report("report.md")
    assert json.loads(compared.report("report.json"))["not_touched"] == ["sft"]
    assert json.loads(compared.report("verdict.json")) == {
        "ppo": "identical", "grpo": "identical", "resume": "identical", "sft": "not touched",
    }  # fmt: skip
    assert ET.parse(compared.out / "junit.xml").find("testcase[@name='sft']/skipped") is not None


def test_a_resumed_run_continues_base_where_what_it_continues_is_not_touched(compared, tmp_path):
    compared.loads["ppo"] = ["data"]
    assert compared("--changed", "resume") == 0
    assert compared.trained == ["ppo of base", "resume of base", "resume of head"]
    assert compared.overrides["resume of head"] == compared.overrides["resume of base"]


def test_head_does_not_train_where_no_file_of_verl_differs(compared, repository, capsys):
    repository[1](README="x")
    assert compared("--changed", "--base=change~1") == 0
    assert compared.trained == [f"{case} of base" for case in compare.CASES]
    assert set(json.loads(compared.report("verdict.json")).values()) == {"not touched"}
    out = capsys.readouterr().out
    assert out.endswith("verdict     not touched (exit status 0)\n")
    assert "identical" not in compared.report("report.md") + compared.report("report.json") + out


def test_a_run_without_a_record_may_load_what_changed(compared):
    compared.loads["sft"] = []
    compared("--changed", "sft")
    assert compared.trained == ["sft of base", "sft of head"]


@pytest.mark.parametrize("path", ["verl/new.py", "verl/trainer.yaml", "setup.py", ".verl-regress.yaml"])
def test_every_case_trains_where_what_a_change_touches_is_not_recorded(compared, repository, capsys, path):
    compared.loads["sft"] = ["data"]
    repository[1](**{path.replace("/", "__"): "{}"})
    compared("--changed", "sft")
    assert compared.trained == ["sft of base", "sft of head"]
    assert f"Every case ran: {path} is new, gone or no module of verl" in capsys.readouterr().err


def test_every_case_trains_where_a_module_is_gone_or_renamed(compared, repository):
    (repository[0] / "verl" / "data.py").rename(repository[0] / "verl" / "renamed.py")
    repository[1]()
    compared("--changed", "sft")
    assert compared.trained == ["sft of base", "sft of head"]


def test_the_repository_says_what_trains_and_what_is_allowed(compared, repository):
    own = "cases: [sft]\nallow: [changed]\noverrides:\n  sft: [optim.lr=0.1]\n"
    repository[1](**{".verl-regress.yaml": own})
    repository[1](**{"verl__core.py": "a = 3\n", ".verl-regress.yaml": "cases: [grpo]\nallow: []\n"})
    compared.outcomes["sft", "head"] = record("sft").replace('"train/grad_norm": 3.0', '"train/grad_norm": 3.1')
    assert compared("--base=change~1") == 0
    assert compared.overrides == {"sft of base": ["optim.lr=0.1"], "sft of head": ["optim.lr=0.1"]}
    assert compared("--base=change~1", "--allow=inconclusive") == 10
    assert (compared("--base=change~1", "grpo"), compared.trained) == (0, ["grpo of base", "grpo of head"])


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("cases: [ppp]", "cases[0] in .verl-regress.yaml of --base=change is not usable, because 'ppp' is not one of"),
        ("case: [ppo]", "has the unknown key 'case' in the document: did you mean 'cases'?"),
        ("allow: [regressed]", "'regressed' is not one of ['changed', 'inconclusive']"),
        ("overrides: {ppo: [--print]}", "overrides.ppo[0] in .verl-regress.yaml of --base=change is not usable"),
        ("cases: [ppo]\ncases: [sft]", "the key 'cases' occurs twice"),
    ],
)
def test_a_wrong_file_of_the_repository_is_one_sentence(compared, repository, capsys, own, said):
    repository[1](**{".verl-regress.yaml": own})
    assert compared("--base=change") == 2
    assert said in capsys.readouterr().err
    assert not compared.trained


def test_the_schema_has_the_cases_that_there_are():
    properties = json.loads((REPO / "py" / "verl_regress" / "ci.schema.json").read_text())["properties"]
    assert (
        properties["cases"]["items"]["enum"] == properties["overrides"]["propertyNames"]["enum"] == list(compare.CASES)
    )


def test_a_head_that_trains_worse_is_regressed(compared, monkeypatch, tmp_path):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    compared.outcomes["sft", "head"] = record("sft", better=4.0)
    assert compared("sft") == 9
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


@pytest.mark.parametrize(
    ("option", "python", "said"),
    [
        ("--cache=", sys.executable, "error   --cache names no folder: give one, or leave it out.\n"),
        (
            "--base=main",
            "false",
            "error   PYTHON=false is not Python 3.11, for which docker/requirements.lock names the packages: install it, or name it in "
            "PYTHON.\n",
        ),
    ],
)
def test_the_script_says_what_it_needs_before_it_installs_anything(tmp_path, option, python, said):
    done = subprocess.run(
        [REPO / "ci" / "compare.sh", option], cwd=tmp_path, env={**os.environ, "PYTHON": python}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, said)
    assert not list(tmp_path.iterdir())


def test_the_script_starts_python_without_the_variables_of_others(tmp_path):
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\n[ "$1" != -c ] || exec echo True\nenv | grep -E "^(GIT_|LC_|PYTHON|RAY_)" >&2\nexit 3\n'
    )
    python.chmod(0o755)
    others = {
        "GIT_DIR": "/odd",
        "LC_NUMERIC": "odd",
        "PYTHONHOME": "/odd",
        "RAY_ADDRESS": "odd",
        "POSIXLY_CORRECT": "1",
    }
    done = subprocess.run(
        [REPO / "ci" / "compare.sh", "--base=main"],
        cwd=tmp_path,
        env={**os.environ, **others, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert sorted(done.stderr.splitlines()[1:]) == ["LC_ALL=C.UTF-8", f"PYTHON={python}"]


def test_a_repository_that_git_refuses_is_named_with_gits_reason(compared, repository, capsys, monkeypatch):
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert compared("sft") == 2
    assert "(fatal: detected dubious ownership in repository at " in capsys.readouterr().err


@pytest.mark.parametrize("version", ["0.7.0", ""])
def test_a_verl_that_is_too_old_is_refused(compared, repository, capsys, version):
    repository[1](**{"verl__version__version": version})
    assert compared("sft") == 2
    assert f"is verl {version}: a rehearsal supports 0.7.1 and later" in capsys.readouterr().err


CHILD = "import subprocess, time; subprocess.Popen(['sleep', '97.531']); time.sleep(100)"


def are_left():
    return subprocess.run(["pgrep", "-f", "^sleep 97.531"], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_a_run_that_takes_too_long_leaves_no_process(tmp_path):
    with (tmp_path / "log").open("wb") as log:
        said = compare._train([sys.executable, "-c", CHILD], tmp_path, log.fileno(), 1.0)
    assert said == "the trainer did not end in 1 s (--limit)"
    assert not are_left()


def test_a_cancelled_comparison_leaves_no_process(tmp_path):
    program = f"""import compare, sys
compare._compare = lambda _: compare._train([sys.executable, "-c", {CHILD!r}], compare.Path("."), 1, 60)
compare.main(["--base=main"])"""
    comparison = subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
    )
    until = time.monotonic() + 30
    while not are_left() and time.monotonic() < until:
        time.sleep(0.05)
    comparison.terminate()
    assert comparison.wait(30) == 143
    assert not are_left()


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
