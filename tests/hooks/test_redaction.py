"""Secrets are removed in all their forms, from texts and from streams split at any byte."""

import base64
import html
import json
import os
import urllib.parse

import pytest

from redaction import Redactor, forms

VALUE = 'k/ey+Ü"1 &x\\Z=='
BYTES = VALUE.encode()
WRITTEN = {
    "as it is": VALUE,
    "JSON": json.dumps({"key": VALUE}),
    "JSON in UTF-8": json.dumps(VALUE, ensure_ascii=False),
    "Python": repr({"key": VALUE}),
    "HTML": html.escape(VALUE),
    "a URL": urllib.parse.quote(VALUE),
    "a query": urllib.parse.urlencode({"key": VALUE}),
    "a URL with small escapes": "k%2fey%2b%c3%9c%221%20%26x%5cZ%3d%3d",
    "hex": BYTES.hex(),
    "HEX": BYTES.hex().upper(),
    **{
        f"base64 behind {before!r}": base64.b64encode(before + BYTES).decode() for before in (b"", b":", b"a:", b"api:")
    },
    "base64 in the middle": base64.b64encode(b"user:" + BYTES + b"@host").decode(),
    "base64 of URLs": base64.urlsafe_b64encode(b">>" + BYTES + b"??").decode(),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_each_form_is_found(name):
    clean = Redactor({"KEY": VALUE}).text(f"before {WRITTEN[name]} behind")
    assert "<secret KEY>" in clean
    assert not any(form in clean for form in forms(VALUE))
    assert clean.startswith("before ")
    assert clean.endswith(" behind")


def test_a_value_that_is_no_utf8_is_found():
    """As Python reads it from the environment, and as programs write it."""
    value = os.fsdecode(b"\xff\xfeabc 12345678")
    redactor = Redactor({"KEY": value})
    for text in (value, repr(value), json.dumps(value), "%FF%FEabc%2012345678", b"\xff\xfeabc 12345678".hex()):
        clean = redactor.text(f"before {text} behind \ud800")
        assert "<secret KEY>" in clean
        assert "12345678" not in clean
        assert clean.endswith(" behind \ud800")
    assert redactor.feed(b"before " + os.fsencode(value) + b" behind\n") == b"before <secret KEY> behind\n"


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_a_stream_in_pieces_is_as_clean_as_in_one(size):
    redactor = Redactor({"KEY": VALUE, "OTHER": VALUE[:9] + "tail"})
    stream = "".join(f"line {text} {VALUE[:5]}\n" for text in WRITTEN.values()) + VALUE[:9] + "tail" + VALUE[:-1]
    content = stream.encode()
    pieces = [redactor.feed(content[at : at + size]) for at in range(0, len(content), size)]
    assert b"".join([*pieces, redactor.end()]).decode() == Redactor({"KEY": VALUE, "OTHER": VALUE[:9] + "tail"}).text(
        stream
    )


OVERLAPPING = [
    ({"SHORT": "sk-abcdefgh", "LONG": "sk-abcdefgh-ijklmnop"}, "sk-abcdefgh-ijklmnop", "<secret LONG>"),
    ({"SHORT": "sk-abcdefgh", "LONG": "sk-abcdefgh-ijklmnop"}, "sk-abcdefgh-ijkl.", "<secret SHORT>-ijkl."),
    ({"SHORT": "sk-abcdefgh", "LONG": "sk-abcdefgh-ijklmnop"}, "sk-abcdefgh", "<secret SHORT>"),
    ({"INNER": "cdefghij", "OUTER": "sk-abcdefghijkl"}, "sk-abcdefghijkl", "<secret OUTER>"),
    ({"FIRST": "sk-abcdefgh", "SECOND": "efgh-ijklmnop"}, "sk-abcdefgh-ijklmnop", "<secret FIRST>"),
    ({"FIRST": "abcdefgh", "SECOND": "ghijklmn", "THIRD": "mnopqrst"}, "abcdefghijklmnopqrst", "<secret FIRST>"),
    ({"FIRST": "sk-abcdefgh", "SECOND": "ijklmnop"}, "sk-abcdefghijklmnop", "<secret FIRST><secret SECOND>"),
    ({"SELF": "abcabcab"}, "abcabcabcabcabc", "<secret SELF>c"),
    ({"SELF": "abcabcab"}, "abcabcab\nabcabca\n", "<secret SELF>\nabcabca\n"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 11, 64])
@pytest.mark.parametrize(("secrets", "text", "clean"), OVERLAPPING)
def test_values_that_overlap_are_replaced_whole(secrets, text, clean, size):
    """Before: the tail of the longer or the later value was written, in a text or in the pieces of a stream."""
    redactor, content = Redactor(secrets), f"a {text}".encode()
    pieces = [redactor.feed(content[at : at + size]) for at in range(0, len(content), size)]
    assert b"".join([*pieces, redactor.end()]).decode() == f"a {clean}"
    assert Redactor(secrets).text(f"a {text}") == f"a {clean}"


def test_what_cannot_be_a_secret_is_not_held_back():
    redactor = Redactor({"KEY": "sk-abcdefgh"})
    assert redactor.feed(b"step 1: loss 0.5\n") == b"step 1: loss 0.5\n"
    assert redactor.feed(b"progress sk") == b"progress "
    assert redactor.feed(b"y\n") == b"sky\n"
    assert redactor.feed(b"sk-abc") == b""
    assert redactor.end() == b"sk-abc"
    assert redactor.end() == b""
    assert redactor.feed(b"step 2\n") == b"step 2\n"


def test_without_secrets_nothing_changes():
    redactor = Redactor({})
    assert (redactor.text("a\udc80"), redactor.feed(b"\xff\x00"), redactor.end()) == ("a\udc80", b"\xff\x00", b"")
    assert Redactor({"EMPTY": ""}).text("abc") == "abc"


URLS = [
    ("http://me:pw-1@proxy:3128 redis://:x@h/0", "http://me:<password>@proxy:3128 redis://:<password>@h/0"),
    ('["http://h:8000","a@b"] tcp://10.0.0.1:29500 http://h/a:b@c', '["http://h:8000","a@b"] tcp://10.0.0.1:29500 http://h/a:b@c'),
    ("http://me:sk-abcdefgh@proxy", "http://me:<secret KEY>@proxy"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "clean"), URLS)
def test_the_password_in_a_url_is_replaced_whoevers_it_is(text, clean):
    redactor = Redactor({"KEY": "sk-abcdefgh"})
    assert (redactor.text(text), redactor.feed(text.encode()) + redactor.end()) == (clean, clean.encode())
    without = clean.replace("<secret KEY>", "<password>")
    assert (Redactor({}).text(text), Redactor({}).feed(text.encode())) == (without, without.encode())


@pytest.mark.parametrize("before", range(3))
@pytest.mark.parametrize("behind", range(1, 4))
def test_what_is_left_of_base64_says_nothing_of_the_value(before, behind):
    """Only the characters that its neighbours change are left."""
    one, other = (
        base64.b64encode(fill * before + BYTES + fill * behind).decode().rstrip("=") for fill in (b"\0", b"\xff")
    )
    same = [at for at, character in enumerate(one) if character == other[at]]
    first, end = same[0], same[-1] + 1
    assert same == list(range(first, end))
    assert Redactor({"KEY": VALUE}).text(f" {one} ") == f" {one[:first]}<secret KEY>{one[end:]} "


def test_secrets_may_come_as_pairs_and_two_may_have_one_name():
    redactor = Redactor(pair for pair in [("KEY", "first-value"), ("KEY", "second-value"), ("EMPTY", "")])
    assert redactor.text("first-value, second-value") == "<secret KEY>, <secret KEY>"
