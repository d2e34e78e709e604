"""Verdicts, and further tests, as a JUnit file."""

import xml.etree.ElementTree as ET
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from verl_verdict.decide import verdicts
from verl_verdict.decide.verdicts import Verdict, Word
from verl_verdict.show import verdict_text


@dataclass(frozen=True)
class Test:
    """A test case. It passed, if there is no `failure` (the lines that say why, the most important one first) and it was not `skipped`."""

    kind: str
    name: str
    failure: Sequence[str] = ()
    skipped: str = ""


def verdict_tests(found: Sequence[Verdict], allow: Collection[Word], skipped: str = "") -> list[Test]:
    """A test per verdict. One that is not allowed is a failure; `skipped` is why the others do not pass, if they do not."""
    return [
        Test("verdict", one.case, [f"{one.word.value}: {one.reason}", *verdict_text.text([one], allow).splitlines()])
        if verdicts.status([one], allow)
        else Test("verdict", one.case, skipped=skipped)
        for one in found
    ]


def document(suite: str, tests: Sequence[Test]) -> str:
    """The file. XML cannot contain control characters, which a job's error may."""
    failed, skipped = (sum(map(bool, of)) for of in ([one.failure for one in tests], [one.skipped for one in tests]))
    root = ET.Element("testsuite", name=suite, tests=str(len(tests)), failures=str(failed), skipped=str(skipped))
    for one in tests:
        case = ET.SubElement(root, "testcase", classname=one.kind, name=one.name)
        if one.failure:
            lines = [verdict_text.printable(line) for line in one.failure]
            ET.SubElement(case, "failure", message=lines[0]).text = "\n".join(lines)
        elif one.skipped:
            ET.SubElement(case, "skipped", message=verdict_text.printable(one.skipped))
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
