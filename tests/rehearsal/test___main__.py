"""`python -m verl_rehearsal`: bad arguments and what cannot be made are one sentence, and `data -` prints the rows."""

import json
import sys

import pytest

from verl_rehearsal import __main__ as command
from verl_rehearsal import sums


def test_data_prints_the_rows_of_both_splits(capsys):
    command.main(["data", "-", "--seed=3"])
    printed = json.loads(capsys.readouterr().out)
    assert printed == {
        "train": sums.rows(3, sums.TRAIN_ROWS, "train"),
        "test": sums.rows(3, sums.TEST_ROWS, "test"),
    }


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"Not a directory: .*/file/data"):
        command.main(["data", str(tmp_path / "file" / "data")])


def test_a_package_that_is_missing_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    with pytest.raises(SystemExit) as ended:
        command.main(["data", str(tmp_path / "data")])
    assert ended.value.code == "This Python (/venv/bin/python) has no pyarrow: install verl, which brings it."


@pytest.mark.parametrize("argv", [[], ["model"], ["data", "d", "--seed=x"], ["model", "d", "--cri=d"]])
def test_other_arguments_are_refused(argv):
    with pytest.raises(SystemExit) as ended:
        command.main(argv)
    assert ended.value.code == 2
