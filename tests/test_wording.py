import pytest
from wording import THEIRS, said


@pytest.mark.parametrize("text", ["ours (anything): ours", "ours ((): ours"])
def test_a_quotation_equals_our_words_around_any_of_theirs(text):
    assert text == said(f"ours ({THEIRS}): ours")


@pytest.mark.parametrize(
    "text", ["ours (): ours", "ours (two\nlines): ours", "ours (anything): theirs", "x ours (y): ours"]
)
def test_a_quotation_equals_no_other_text(text):
    assert text != said(f"ours ({THEIRS}): ours")


def test_a_sentence_without_a_quotation_is_compared_letter_by_letter():
    assert type(said("a.c")) is str
