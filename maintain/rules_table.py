"""Writes the rules of the judge (decide/table.py) as tables into docs/verdict.md: when each applies is what its function says of itself."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import page
from verl_verdict.decide import table
from verl_verdict.decide.rules import EVERY, Regime, Rule

PAGE = Path(__file__).resolve().parents[1] / "docs" / "verdict.md"
# What each table decides, in the order of the page.
TABLES: dict[str, Sequence[Rule[Any]]] = {
    "May the records be judged, and did a run of B fail?": table.RECORDS,
    "Is a difference wrong on its face?": table.EVIDENT,
    "All else:": table.CASE,
    "Other devices:": table.DEVICES,
    "Speed and memory:": table.COST,
    "Invariants:": table.INVARIANTS,
    "Resumed runs. If no rule applies, the verdict on A's against B's resumed runs stays.": table.RESUMED,
    "Rollouts, what B samples itself in a replayed case:": table.ROLLOUT,
    "Cases without runs:": table.UNRUN,
}
_REGIMES = {Regime.EXACT: "exact", Regime.REPLAYED: "replay", Regime.SAMPLED: "noise"}


def written(text: str) -> str:
    """The page with the tables of today."""
    return page.put(
        text, "rules", "".join(f"\n{caption}\n\n{_table(rules)}" for caption, rules in TABLES.items()) + "\n"
    )


def _table(rules: Sequence[Rule[Any]]) -> str:
    rows = ["| rule | where | verdict | it applies if |", "| --- | --- | --- | --- |"]
    rows += [f"| `{each.id}` | {where(each.regime)} | {each.word.value} | {when(each)} |" for each in rules]
    return "\n".join(rows) + "\n"


def where(regime: Regime) -> str:
    """The regimes in which a rule is tried."""
    if regime in (Regime.ONE_SIDED, EVERY):
        return "any"
    return ", ".join(word for one, word in _REGIMES.items() if one & regime)


def when(rule: Rule[Any]) -> str:
    """When the rule applies, as its function says, in one line of a table."""
    said = " ".join((inspect.getdoc(rule.when) or "").split())
    return said.replace("|", "\\|").removesuffix(".")


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
