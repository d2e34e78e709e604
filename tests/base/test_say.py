import sys

import pytest

from verl_regress.base import say


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


@pytest.fixture
def on_host():
    say.configure(shared_root="/private", shown_root="/home/a b/workdir/shared")
    yield
    say.configure()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("outputs: /private/jobs/a", "outputs: /home/a b/workdir/shared/jobs/a"),
        (
            "it (/private/jobs/a) and '/private/x'",
            "it (/home/a b/workdir/shared/jobs/a) and '/home/a b/workdir/shared/x'",
        ),
        ("it is not under /private, and", "it is not under /private, and"),  # the root itself: jobs call it that
        ("model=/private/x (from a.yaml)", "model=/private/x (from a.yaml)"),  # a value, as the user wrote it
        ("from path:/private/x", "from path:/private/x"),
        ("/mnt/private/x /privateer/x", "/mnt/private/x /privateer/x"),
    ],
)
def test_paths_are_shown_as_on_the_users_machine(on_host, capsys, said, shown):
    for say_it in (say.ok, say.info, say.error):
        say_it(said)
        assert capsys.readouterr().err[8:] == f"{shown}\n"
    assert say.shown(said) == shown


def test_lines_of_a_log_stay_as_they_are(on_host, capsys):
    say.quote("MVP_PRECHECK_VERL_FILE: /private/common/code/verl/codeA/verl/__init__.py")
    assert (
        capsys.readouterr().err == "        MVP_PRECHECK_VERL_FILE: /private/common/code/verl/codeA/verl/__init__.py\n"
    )
