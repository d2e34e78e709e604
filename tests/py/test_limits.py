"""The limits of a submission, compared with the kernel: what is accepted can be started, what is just too long cannot."""

import errno
import subprocess

import pytest

from verl_regress.base.errors import BadInput
from verl_regress.spec import limits
from verl_regress.spec.overrides import Override

ORIGINS = {"A": "my.yaml"}


def is_accepted(texts=(), env_vars=None):
    try:
        limits.check([Override(text, "my.yaml") for text in texts], env_vars or {}, ORIGINS)
    except BadInput:
        return False
    return True


def can_be_started(texts=(), env_vars=None):
    """Does Linux start a program with these arguments and variables, and pass them complete?"""
    try:
        subprocess.run(["/bin/true", *texts], env=env_vars or {}, check=True)
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise
        return False
    return True


@pytest.mark.parametrize("character", ["x", "é", "💥"])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_kernel_agrees_on_the_longest_word(character, more):
    size = 131071 + more
    text = character * (size // len(character.encode()))
    text += "x" * (size - len(text.encode()))
    assert is_accepted([text]) is can_be_started([text]) is (more <= 0)


def test_everything_accepted_fits_beside_a_nodes_own_environment():
    words = ["x" * 100_000] * 30
    most = max(count for count in range(31) if is_accepted(words[:count]))
    assert 15 <= most < 30
    assert can_be_started(words[:most], {f"NODE{number}": "y" * 1000 for number in range(100)})


def test_rays_env_vars_json_is_measured_as_ray_writes_it():
    """é is six bytes in JSON: \\u00e9."""
    assert is_accepted(env_vars={"A": "x" * 100_000})
    assert not is_accepted(env_vars={"A": "é" * 25_000})
    assert is_accepted(env_vars={"A": "é" * 20_000})
