import re

import pytest

from verl_regress.base import ids
from verl_regress.base.errors import BadInput


@pytest.mark.parametrize("good", ["a", "0", "A.b_c-d", "a..", "a" * 100])
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
        ids.check(one, "itself")


def test_the_longest_code_id_still_makes_a_usable_id():
    ids.check(ids.make("grpo", "c" * 64), "itself")


def test_latest_is_not_an_id():
    with pytest.raises(BadInput) as caught:
        ids.check("latest", "here")
    assert str(caught.value) == "submission_id 'latest' (from here) is not usable: that word stands for the latest job."


@pytest.mark.parametrize("bad", ["x.a2", "ppo-codeA.a10", "a.a0", "a.a1"])
def test_an_id_that_would_name_an_attempt(bad):
    with pytest.raises(BadInput) as caught:
        ids.check(bad, "here")
    assert str(caught.value) == (
        f"submission_id {bad!r} (from here) is not usable: an id that ends in .a and a number names an attempt of a job; end it differently, or leave it out to get a generated one."
    )


@pytest.mark.parametrize("good", ["x.a", "x.a2b", "x.A2", "xa2"])
def test_an_id_that_only_looks_like_an_attempt(good):
    assert ids.check(good, "here") == good
