"""Work in a child process: its result or error arrives, and a child that dies is reported."""

import os

import pytest

from verl_regress.base.errors import BadInput, Exit, RegressError
from verl_regress.submit import beside


def test_the_result_arrives_and_both_ran_at_once():
    # Each waits for the other's byte: run one after the other, neither would end.
    (to_parent, from_child), (to_child, from_parent) = os.pipe(), os.pipe()

    def work():
        os.write(from_child, b"c")
        return os.read(to_child, 1), os.getpid()

    def meanwhile():
        os.write(from_parent, b"p")
        assert os.read(to_parent, 1) == b"c"

    answer, pid = beside.in_child(work, meanwhile)
    assert answer == b"p"
    assert pid != os.getpid()


def test_an_error_keeps_its_sentence_and_its_status():
    def refuse():
        raise BadInput("WORKLOAD=x is unknown.")

    def fail():
        raise RegressError("It is so.", Exit.LOST)

    with pytest.raises(BadInput, match=r"^WORKLOAD=x is unknown\.$") as refused:
        beside.in_child(refuse, lambda: None)
    assert refused.value.status is Exit.BAD_INPUT
    with pytest.raises(RegressError, match=r"^It is so\.$") as failed:
        beside.in_child(fail, lambda: None)
    assert failed.value.status is Exit.LOST


def test_a_large_result_arrives_whole():
    assert beside.in_child(lambda: "x" * 1_000_000, lambda: None) == "x" * 1_000_000


def test_a_child_that_dies_is_an_error_and_leaves_nothing_behind():
    with pytest.raises(RegressError, match=r"^The process that plans the job died \(wait status 9\): run it again\.$"):
        beside.in_child(lambda: os.kill(os.getpid(), 9), lambda: None)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_an_error_in_the_parent_is_raised_after_the_child_ended():
    with pytest.raises(KeyboardInterrupt):
        beside.in_child(lambda: None, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
