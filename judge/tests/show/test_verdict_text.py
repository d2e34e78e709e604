"""A verdict as text and as JSON."""

import json

import pytest

from verl_verdict.decide.verdicts import Finding, Row, Verdict, Word
from verl_verdict.show import verdict_page, verdict_text


@pytest.mark.parametrize(
    ("how", "rule", "said"),
    [
        ("value by value", "opposite-sign", "value by value [rule: opposite-sign]"),
        ("value by value", "", "value by value"),
        ("", "b-failed", "[rule: b-failed]"),
    ],
)
def test_the_rule_is_said_with_how_it_was_decided(how, rule, said):
    verdict = Verdict("ppo", Word.REGRESSED, "B is worse", rule=rule, how=how)
    assert f"\nhow         {said}\n" in verdict_text.text([verdict], [])
    assert json.loads(verdict_text.as_json([verdict], []))["cases"][0]["rule"] == rule
    shown = page(verdict)
    assert ("<dt>by the rule</dt>" in shown) == bool(rule)
    assert f"<dd>{rule}</dd>" in shown or not rule


@pytest.mark.parametrize(("finding", "on_page"), [(Finding.WORSE, "worse"), (Finding.OPEN, "not known")])
def test_a_finding_is_said_in_a_word(finding, on_page):
    row = Row("actor/entropy, first update", a=1.0, b=1.5, margin=0.1, p=0.01, sameness_p=0.9, finding=finding)
    verdict = Verdict("ppo", Word.REGRESSED, "B is worse", rows=(row,))
    assert f", margin 0.1, {finding.value}\n" in verdict_text.text([verdict], [])
    assert f">{on_page} (margin 0.1, p 0.01)<" in page(verdict)


def page(verdict):
    return verdict_page.html(
        verdict_page.VerdictPage("ppo", "regressed", cases=[verdict_page.CaseCard("ppo", [verdict], [], [])])
    )
