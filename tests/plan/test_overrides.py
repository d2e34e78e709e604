"""Overrides as they are typed."""

import pytest

from verl_regress.plan.overrides import of_command_line


@pytest.mark.parametrize(
    ("knob", "wanted"),
    [
        ("", []),
        (" \t\n", []),
        ("a=1  b=2\nc=3\t", ["a=1", "b=2", "c=3"]),
        ("a='x y' b=1", ["a='x y'", "b=1"]),
        ('a="x \' y"\nb=1', ['a="x \' y"', "b=1"]),
        ("a='it\\'s one' b", ["a='it\\'s one'", "b"]),
        ("a='ends in \\\\' b", ["a='ends in \\\\'", "b"]),
        ("a='line\nline' b=[x,'y z']", ["a='line\nline'", "b=[x,'y z']"]),
        ("a=x\\ y b=1", ["a=x\\ y", "b=1"]),
        ("a='without end b=1", ["a='without end b=1"]),
        ("a=1 b=\\", ["a=1", "b=\\"]),
        ("a=$(touch x) `id`", ["a=$(touch", "x)", "`id`"]),
    ],
)
def test_spaces_separate_overrides_in_the_knob_except_inside_quotes(knob, wanted):
    assert [override.text for override in of_command_line(None, "", knob)] == wanted
