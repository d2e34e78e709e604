import re

import pytest

from verl_regress.base import ids
from verl_regress.base.errors import BadInput


@pytest.mark.parametrize("good", ["a", "0", "A.b_c-d", "a..", "a" * 100, "x.a", "x.a2b", "x.A2", "xa2"])
def test_a_valid_id(good):
    assert ids.check(good, "here") == good


@pytest.mark.parametrize("bad", ["", "a" * 101, "-a", "_a", "a/b", "a b", "a\n", "ä", "a\0"])
def test_an_invalid_id(bad):
    with pytest.raises(BadInput, match=re.escape("(from here) is not usable: it must match")):
        ids.check(bad, "here")


def test_made_ids_say_what_runs_and_are_never_the_same():
    made = {ids.make("ppo", "codeA") for _ in range(20)}
    assert len(made) > 15  # four hex digits: two alike in twenty would be luck, five would not
    for one in made:
        assert re.fullmatch(r"ppo-codeA-\d{8}T\d{6}Z-[0-9a-f]{4}", one)
    ids.check(ids.make("grpo", "c" * 64), "itself")  # of the longest code id


@pytest.mark.parametrize("bad", ["latest", "x.a2", "ppo-codeA.a10", "a.a0"])
def test_an_id_that_means_something_else(bad):
    with pytest.raises(BadInput) as caught:
        ids.check(bad, "here")
    assert str(caught.value) == (
        f"submission_id '{bad}' (from here) is not usable: 'latest' and names that end in .a and a number name jobs that exist, so "
        "choose another one."
    )
