"""Replaces secrets in text: each value, in the forms in which programs write it, becomes ``<secret NAME>``.

The password in a URL becomes ``<password>``, whoever it belongs to, unless a stream brings it in two pieces.
"""

import base64
import html
import json
import re
import urllib.parse
from collections.abc import Iterable, Mapping

_URL_PASSWORD = re.compile(rb"""(://[^\s/:@"']*:)[^\s/@"']+@""")


def forms(value: str) -> set[str]:
    """The value itself, and as JSON, Python, HTML, URLs, hex and base64 write it."""
    quoted = urllib.parse.quote(value, safe="", errors="surrogateescape")
    written = {
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        html.escape(value),
        quoted,
        quoted.replace("%20", "+"),
        re.sub("%[0-9A-F]{2}", lambda byte: byte[0].lower(), quoted),
        urllib.parse.quote(value, errors="surrogateescape"),
    }
    content = value.encode("utf-8", "surrogateescape")
    for before in range(3):  # base64 depends on the offset in a longer text; a form lacks what its neighbours change
        first, end = -(-8 * before // 6), 8 * (before + len(content)) // 6
        for encode in (base64.standard_b64encode, base64.urlsafe_b64encode):
            written.add(encode(bytes(before) + content).decode("ascii")[first:end])
    return written | {content.hex(), content.hex().upper()}


class Redactor:
    """Replaces the secrets ``(name, value)`` in texts, and in a stream that comes in pieces; overlapping ones by the name of the first."""

    def __init__(self, secrets: Mapping[str, str] | Iterable[tuple[str, str]]) -> None:
        self._names = {
            form.encode("utf-8", errors): name
            for name, value in (secrets.items() if isinstance(secrets, Mapping) else secrets)
            if value
            for form in forms(value)
            for errors in ("surrogateescape", "surrogatepass")  # bytes that are not UTF-8: in a stream, and in `text`
        }
        longest_first = sorted(self._names, key=len, reverse=True)
        # Ahead of each position, so that what overlaps is found, too. Without secrets, nothing is.
        self._pattern = re.compile(b"(?=(" + (b"|".join(map(re.escape, longest_first)) or b"(?!)") + b"))")
        self._held = b""

    def text(self, text: str) -> str:
        """The text without the secrets."""
        return self._clean(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def feed(self, chunk: bytes) -> bytes:
        """Return what can be written so far: all but an end that may be the start of a secret."""
        content = self._held + chunk
        kept = self._beginning(content)
        kept = next((start for start, end, _ in self._found(content) if start < kept < end), kept)
        self._held = content[kept:]
        return self._clean(content[:kept])

    def end(self) -> bytes:
        """What was held back: the stream has ended."""
        held, self._held = self._held, b""
        return self._clean(held)

    def _clean(self, content: bytes) -> bytes:
        out, done = [], 0
        for start, end, name in self._found(content):
            out += [content[done:start], f"<secret {name}>".encode()]
            done = end
        return _URL_PASSWORD.sub(rb"\1<password>@", b"".join((*out, content[done:])))

    def _found(self, content: bytes) -> list[tuple[int, int, str]]:
        """Where the secrets begin and end, and the name of each; overlapping ones are merged."""
        spans: list[tuple[int, int, str]] = []
        for found in self._pattern.finditer(content):
            start, end = found.span(1)
            if spans and start < spans[-1][1]:
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]), spans[-1][2])
            else:
                spans.append((start, end, self._names[found[1]]))
        return spans

    def _beginning(self, content: bytes) -> int:
        """Return where the longest end of ``content`` begins that may be the start of a secret."""
        first = len(content)
        for form in self._names:
            at = content.find(form[:1], max(0, len(content) - len(form) + 1))
            while at != -1 and not form.startswith(content[at:]):
                at = content.find(form[:1], at + 1)
            first = min(first, at) if at != -1 else first
        return first
