import errno
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from wording import THEIRS, said

from verl_regress import cli
from verl_regress.base import layout
from verl_regress.base.errors import Exit

REPO = Path(__file__).parents[1]


@pytest.mark.parametrize("subcommand", cli.SUBCOMMANDS)
def test_every_subcommand_has_help(subcommand, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main([subcommand, "--help"])
    assert caught.value.code == 0
    assert f"usage: run.py {subcommand}" in capsys.readouterr().out


def test_the_help_names_every_subcommand(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    out = capsys.readouterr().out
    for name, subcommand in cli.SUBCOMMANDS.items():
        assert re.search(rf"^    {name}\s+{re.escape(subcommand.help)}$", out, re.MULTILINE)


def test_the_exit_statuses_are_those_of_the_scripts():
    table = re.search(r"CLI_STATUS=\(\n(.*?)\n\)", (REPO / "scripts/lib/cli.bash").read_text(), re.DOTALL)[1]
    assert re.findall(r"\[(\d+)\]='", table) == [str(int(one)) for one in Exit]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["where"], f"run.py where: {THEIRS} job (see --help)."),
        (["layout", "--no-such"], f"run.py: {THEIRS} --no-such (see --help)."),
    ],
)
def test_a_wrong_command_line_is_one_sentence(run, args, sentence):
    assert run(*args).is_refusal(sentence)


def test_an_unknown_subcommand(run):
    outcome = run("nonsense")
    assert outcome.status == 2
    assert outcome.err == said(f"error   run.py: {THEIRS} 'nonsense' {THEIRS} (see --help).\n")


def test_an_error_of_the_file_system_is_one_sentence(run, shared):
    shutil.rmtree(shared.jobs)
    shared.jobs.write_text("a file in its place")
    outcome = run("layout")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == (f"error   layout: [Errno 17] File exists: '{shared.jobs}': fix that, then run it again.\n")


SPACE = "free some space and some inodes there ('make gc' removes old checkpoints)"


@pytest.mark.parametrize(
    ("number", "cure"),
    [(errno.EROFS, "mount it read-write"), (errno.ENOSPC, SPACE), (errno.EDQUOT, SPACE), (errno.EIO, "fix that")],
)
def test_a_file_system_that_takes_no_change_is_named_with_its_cure(run, shared, monkeypatch, number, cure):
    """Before: 'fix that'."""
    error = OSError(number, os.strerror(number), str(shared.jobs))

    def fail(_args):
        raise error

    monkeypatch.setattr(layout, "run", fail)
    assert run("layout").err == f"error   layout: {error}: {cure}, then run it again.\n"


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, 130)])
def test_an_interrupt(run, monkeypatch, error, status):
    def interrupted(_args):
        raise error

    monkeypatch.setattr(layout, "run", interrupted)
    outcome = run("layout")
    assert (outcome.status, outcome.out, outcome.err) == (status, "", "")


@pytest.mark.parametrize("subcommand", ["logs", "where"])
def test_a_closed_pipe_gives_no_traceback(shared, make_job, subcommand):
    make_job("job").driver_log.write_text("one line")
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, REPO / "py/run.py", "--shared-root", shared.path, subcommand, "job"],
        stdout=write,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_what_the_helper_makes_only_its_owner_can_change_whatever_the_umask(tmp_path):
    argv = [sys.executable, "-S", REPO / "py/run.py", "--shared-root", tmp_path, "layout", "--cluster=c"]
    subprocess.run(argv, umask=0, check=True)
    made = {path: path.stat().st_mode for path in tmp_path.rglob("*")}
    assert tmp_path / "jobs" in made
    assert [path for path, mode in made.items() if mode & 0o022 and not mode & stat.S_ISVTX] == []


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["jobs"], "job  ppo "),
        (["logs", "job"], "one line\n"),
        (["logs", "--metrics", "job"], '"step"'),
        (["where", "job"], "/jobs/job\n"),
    ],
)
def test_commands_that_only_read_files_need_only_the_standard_library(shared, make_job, args, expected):
    job = make_job("job")
    job.driver_log.write_text("one line\n")
    job.metrics.write_text('{"step": 1, "data": {}}\n')
    argv = [sys.executable, "-S", REPO / "py/run.py", "--shared-root", shared.path, "--no-ray", *args]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (ended.returncode, expected in ended.stdout) == (0, True), ended.stderr


def test_a_missing_package_is_one_sentence(shared):
    ended = subprocess.run(
        [sys.executable, "-S", REPO / "py/run.py", "--shared-root", shared.path, "submit"],
        stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert re.fullmatch(
        "error   This node's Python has no package '[a-z]+': bring it with 'scripts/12_install_py_deps.sh'.\n",
        ended.stderr,
    )
