"""Progress messages, with our own clock: how often they are printed in a log, and what a terminal shows."""

import time

import pytest

from verl_regress.base import pulse, say
from verl_regress.base.pulse import Pulse


@pytest.fixture(autouse=True)
def as_it_was():
    yield
    say.configure()


def printed(capsys):
    return [line.strip() for line in capsys.readouterr().err.splitlines()]


def test_a_log_gets_a_line_within_ten_seconds_and_fewer_later(capsys):
    beats = Pulse(0)
    for second in range(8 * 3600):
        beats.beat("loading the model on 2 workers", second)
    lines = printed(capsys)
    seconds = [int(line.rpartition(", ")[2].removesuffix(" s")) for line in lines]
    assert lines[0] == "… loading the model on 2 workers, 9 s"
    assert seconds[:3] == [9, 18, 27]
    early = [second for second in seconds if second <= 300]
    assert max(b - a for a, b in zip([0, *early], early, strict=False)) < 10
    assert seconds[-1] > 8 * 3600 - 601
    assert len(lines) == 33 + 55 + 42


def test_other_output_counts_as_a_sign_of_life(capsys):
    beats = Pulse(0)
    for second in range(30):
        if second % 5 == 0:
            say.info(f"step {second}")
        beats.beat("training", second)
    assert [line for line in printed(capsys) if line.startswith("…")] == []


def test_news_is_printed_at_once_and_other_changes_when_they_last(capsys):
    beats = Pulse(0)
    beats.beat("reading the data", 1, is_news=True)
    beats.beat("starting Ray workers (0 of 2 actors alive)", 2, is_news=True)
    beats.beat("starting Ray workers (1 of 2 actors alive)", 3, is_news=True)
    beats.beat("training step 1", 4)
    for second in range(5, 14):
        beats.beat("training step 1", second)
    assert printed(capsys) == [
        "… reading the data",
        "… starting Ray workers (0 of 2 actors alive)",
        "… training step 1, 7 s",
    ]


def test_a_terminal_has_one_live_line_that_the_next_one_is_written_over(capsys):
    say.configure(columns=40)
    beats = Pulse(0)
    for second in (1, 2):
        beats.beat("loading the model on 2 workers", second, is_news=True)
    say.ok("done")
    assert capsys.readouterr().err == (
        "\x1b[K        … loading the model on 2 worker\r"
        "\x1b[K        … loading the model on 2 worker\r"
        "\x1b[Kok      done\n"
    )


@pytest.mark.slow
def test_a_block_that_does_not_report_progress_itself(capsys, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(bytes(3 * 10**6))
    monkeypatch.setattr(pulse, "_INTERVALS", ((float("inf"), 2.0),))
    with pulse.during("fetching it", lambda: pulse.size_of(tmp_path)):
        time.sleep(5.2)
    lines = printed(capsys)
    assert lines
    assert all(line.startswith("… fetching it, 3 MB so far, ") for line in lines)


def test_an_exception_in_the_block_passes_through():
    with pytest.raises(ZeroDivisionError), pulse.during("dividing"):
        raise ZeroDivisionError
