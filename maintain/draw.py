"""Draws by lot on which of verl's silent faults the suites are tried, before there is a suite that could be fitted to them.

Reads and writes `silent_fixes.yaml`, fixes on verl's main that need no GPU: what each needs of a run (`needs`), and whether it was drawn.
"""

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

FIXES = Path(__file__).with_name("silent_fixes.yaml")
DRAWN = 40
SEED = 55


def draw(fixes: Sequence[dict[str, Any]]) -> set[int]:
    """The pull requests that are drawn: of each kind of run its share of DRAWN, at least one, by a fixed seed.

    The kind is the first word of `needs`. The largest kind takes what rounding leaves.
    """
    kinds: dict[str, list[int]] = {}
    for fix in fixes:
        kinds.setdefault(fix["needs"][0], []).append(fix["pr"])
    places = {kind: max(1, round(DRAWN * len(prs) / len(fixes))) for kind, prs in kinds.items()}
    largest = max(places, key=lambda kind: (len(kinds[kind]), kind))
    places[largest] += DRAWN - sum(places.values())
    lot = random.Random(SEED)
    return {pr for kind in sorted(kinds) for pr in lot.sample(sorted(kinds[kind]), places[kind])}


def read() -> list[dict[str, Any]]:
    """The fixes as they are in the file."""
    fixes: list[dict[str, Any]] = yaml.safe_load(FIXES.read_text(encoding="utf-8"))["fixes"]
    return fixes


def main() -> int:
    """Write into the file which fixes are drawn, and print how many of each kind."""
    head = FIXES.read_text(encoding="utf-8").partition("fixes:\n")[0]
    fixes = read()
    drawn = draw(fixes)
    rows = [{**fix, "drawn": fix["pr"] in drawn} for fix in fixes]
    text = yaml.safe_dump({"fixes": rows}, sort_keys=False, width=1000, default_flow_style=None, allow_unicode=True)
    FIXES.write_text(head + text, encoding="utf-8")
    sys.stdout.write(f"drew {len(drawn)} of {len(fixes)} fixes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
