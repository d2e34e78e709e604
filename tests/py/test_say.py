import sys

import pytest

from verl_regress import say


@pytest.mark.parametrize("word", ["ok", "skip", "changed"])
def test_a_line_goes_to_stderr_with_the_word_in_a_column_of_eight(word, capsys):
    getattr(say, word)("datasets/sums (exists, same source)")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"{word:<8}datasets/sums (exists, same source)\n"


def test_a_terminal_gets_the_word_in_colour_unless_it_asks_for_none(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    say.ok("coloured")
    monkeypatch.setenv("NO_COLOR", "1")
    say.ok("plain")
    assert capsys.readouterr().err == "\x1b[32mok      \x1b[0mcoloured\nok      plain\n"
