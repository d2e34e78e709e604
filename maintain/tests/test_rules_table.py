"""The rules of the judge in docs/verdict.md."""

from typing import Any

import pytest

import rules_table
from verl_verdict.decide import table
from verl_verdict.decide.rules import Regime, Rule


def test_the_page_has_the_rules_of_today() -> None:
    page = rules_table.PAGE.read_text(encoding="utf-8")
    assert page == rules_table.written(page), "run make -C maintain rules"


def test_each_row_of_a_table_is_a_line_of_its_own() -> None:
    lines = rules_table.PAGE.read_text(encoding="utf-8").splitlines()
    rows = {line for line in lines if line.startswith("| `")}
    assert [line for line in lines if line.startswith("|") and "||" in line] == []
    assert all(
        sum(row.startswith(f"| `{rule.id}` |") for row in rows) == 1
        for rules in rules_table.TABLES.values()
        for rule in rules
    )


def test_no_table_is_left_out() -> None:
    every = [each for name, each in vars(table).items() if name.isupper() and _is_rules(each)]
    assert list(rules_table.TABLES.values()) == every


def _is_rules(each: Any) -> bool:
    return isinstance(each, tuple) and all(isinstance(rule, Rule) for rule in each)


@pytest.mark.parametrize(
    ("regime", "words"),
    [
        (Regime.ONE_SIDED, "any"),
        (Regime.EXACT | Regime.REPLAYED | Regime.SAMPLED, "any"),
        (Regime.SAMPLED | Regime.EXACT, "exact, noise"),
        (Regime.REPLAYED, "replay"),
    ],
)
def test_where_a_rule_is_tried(regime: Regime, words: str) -> None:
    assert rules_table.where(regime) == words


def test_each_rule_says_when_it_applies() -> None:
    assert all(len(rules_table.when(rule)) > 10 for rules in rules_table.TABLES.values() for rule in rules)
