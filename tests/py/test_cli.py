import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from verl_regress import cli
from verl_regress.errors import Exit

REPO = Path(__file__).parents[2]


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
    for name, (text, _, _) in cli.SUBCOMMANDS.items():
        assert re.search(rf"^    {name}\s+{re.escape(text)}$", out, re.MULTILINE)


def test_the_exit_statuses_are_those_of_the_scripts():
    table = re.search(r"CLI_STATUS=\(\n(.*?)\n\)", (REPO / "scripts/lib/cli.bash").read_text(), re.DOTALL)[1]
    assert re.findall(r"\[(\d+)\]='(.*)'", table) == [(str(int(one)), one.meaning) for one in Exit]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["where"], "run.py where: the following arguments are required: job (see --help)."),
        (["layout", "--no-such"], "run.py: unrecognized arguments: --no-such (see --help)."),
    ],
)
def test_a_wrong_command_line_is_one_sentence(run, args, sentence):
    assert run(*args).is_refusal(sentence)


def test_an_unknown_subcommand(run):
    outcome = run("nonsense")
    assert outcome.status == 2
    assert outcome.err.startswith("error   run.py: argument subcommand: invalid choice: 'nonsense' (choose from ")
    assert outcome.err.count("\n") == 1


def test_what_the_file_system_refuses_is_one_sentence(run, shared):
    shared.jobs.rmdir()
    shared.jobs.write_text("a file in its place")
    outcome = run("layout")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == (
        f"error   layout: [Errno 17] File exists: '{shared.jobs}': mend what stands in the way, then run it again.\n"
    )


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, 130)])
def test_an_interrupt(run, monkeypatch, error, status):
    def interrupted(_args):
        raise error

    monkeypatch.setitem(cli.SUBCOMMANDS, "layout", ("", lambda _parser: None, interrupted))
    outcome = run("layout")
    assert (outcome.status, outcome.out, outcome.err) == (status, "", "")


@pytest.mark.parametrize("subcommand", ["logs", "where"])
def test_a_reader_that_goes_away_is_no_traceback(shared, make_job, subcommand):
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
