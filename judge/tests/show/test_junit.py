"""Verdicts and further tests as a JUnit file."""

from xml.etree import ElementTree

from verl_verdict.decide.verdicts import Verdict, Word
from verl_verdict.show import junit

BROKEN = Verdict(case="ppo", word=Word.REGRESSED, reason="KeyError: \x1b[31mno", how="B failed")
FINE = Verdict(case="sft", word=Word.CHANGED, reason="other", how="bit by bit")


def read(tests):
    suite = ElementTree.fromstring(junit.document("mine", tests))
    counts = tuple(suite.get(name) for name in ("name", "tests", "failures", "skipped"))
    return counts, {case.get("name"): [(child.tag, child.get("message")) for child in case] for case in suite}


def test_a_verdict_that_is_not_allowed_fails_and_no_control_character_is_in_the_file():
    counts, said = read(junit.verdict_tests([BROKEN, FINE], {Word.CHANGED}))
    assert counts == ("mine", "2", "1", "0")
    assert said == {"ppo": [("failure", "regressed: KeyError: \\x1b[31mno")], "sft": []}
    assert read(junit.verdict_tests([FINE], set()))[0] == ("mine", "1", "1", "0")


def test_what_would_pass_is_skipped_for_a_reason():
    tests = [
        *junit.verdict_tests([BROKEN, FINE], {Word.CHANGED}, "a check failed"),
        junit.Test("verify", "head", ["it moved"]),
    ]
    counts, said = read(tests)
    assert counts == ("mine", "3", "2", "1")
    assert (said["sft"], said["head"]) == ([("skipped", "a check failed")], [("failure", "it moved")])
