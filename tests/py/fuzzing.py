"""Shared by the property tests (test_fuzz_*.py): how many cases of each class, hostile input, and what must be true of
every case.

A run is reproducible: FUZZ_SEED (default below) decides all cases, and FUZZ_SCALE=10 tries ten times as many. What was
tried is printed at the end of the run and written to build/reports/fuzz.json. hypothesis shrinks a failing case and
prints it.
"""

import json
import os
from functools import wraps
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

SEED = int(os.environ.get("FUZZ_SEED") or "20261121")
SCALE = int(os.environ.get("FUZZ_SCALE") or "1")
REPORT = Path(__file__).parents[2] / "build" / "reports" / "fuzz.json"

# The classes of bad input and the number of cases per run; cases that need Hydra cost ten times as much as others.
CASES = {
    "JobSpec, any text": 260,
    "JobSpec, any structure": 450,
    "JobSpec, hostile values": 30,
    "Ray base config, any text": 200,
    "Ray base config, any structure": 260,
    "secrets, names and files": 100,
    "overrides, OVERRIDES and OVERRIDES_FILE": 80,
    "ids and names on the command line": 300,
    "paths": 250,
    "sizes of overrides and env_vars": 100,
    "reward functions, any text": 200,
    "env files, read by Bash": 150,
    "knob values, by type": 500,
    "script arguments": 350,
    "make command lines": 250,
}
tried = dict.fromkeys(CASES, 0)


def fuzz(name, **strategies):
    """Decorates a test with drawn values by name; it runs once per case, and fails if fewer cases ran than planned. It
    is one of the slow tests.
    """

    def decorate(test):
        @wraps(test)
        def counted(*args, **kwargs):
            tried[name] += 1
            return test(*args, **kwargs)

        drawn = seed(SEED)(
            settings(
                max_examples=CASES[name] * SCALE,
                database=None,
                deadline=None,
                phases=(Phase.explicit, Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
            )(given(**strategies)(counted))
        )

        @wraps(drawn)
        def whole(*args, **kwargs):
            drawn(*args, **kwargs)
            wanted = CASES[name] * SCALE
            assert tried[name] >= wanted, f"{name}: {tried[name]} cases were tried, not {wanted}"

        return pytest.mark.slow(whole)

    return decorate


def write_report():
    """Write the counts to a file; returns the line that summarises them."""
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    cases = {name: count for name, count in tried.items() if count}
    REPORT.write_text(json.dumps({"seed": SEED, "cases": cases}, indent=2) + "\n", encoding="utf-8")
    return f"fuzz: {sum(cases.values())} cases of {len(cases)} classes, seed {SEED} (FUZZ_SEED), see {REPORT.name}"


# What a shell, Python, YAML, Hydra, a terminal or a file system could interpret. CANARY must never be created.
CANARY = "fuzz-canary"
PIECES = [
    f"$(touch {CANARY})", f"`touch {CANARY}`", f";touch {CANARY};", f"|touch {CANARY}", f"$(touch${{IFS}}{CANARY})",
    f"\ntouch {CANARY}\n", f"!!python/object/apply:os.system ['touch {CANARY}']", f"__import__('os').system('touch {CANARY}')",
    "$HOME", "${HOME}", "$$", "${", "${oc.env:HOME}", "${shared_root}", "%s", "{0}", "\\", "'", '"', "''", " ", "  ", "\t", "\n", "\r\n",
    "-", "--", "--help", "-rf", "=", "==", ",", ":", ": ", "#", " # ", "~", "+", "++", "?", "*", "&a", "*a", "<<", "!", "@", "|", ">", "[", "]",
    "{", "}", "(", ")", "..", "../", "/", "/etc/passwd", ".", "\x00", "\x07", "\x1b[2J", "\x7f", "\x85", "\u2028", "\u202e", "\ufeff",
    "\ud800", "é", "💥", "null", "NO", "1e999", "0x1F", ".nan", "1:30", "2026-01-01", "a", "trainer.save_freq",
]  # fmt: skip
hostile = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=6).map("".join)
long = st.builds(lambda piece, times: piece * times, st.sampled_from(PIECES), st.sampled_from([100, 5_000]))
numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([0, -1, 1, 10**30, -(10**400), 1e308, 5e-324, float("inf"), float("nan"), -0.0]),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, hostile, long)


def structures(keys):
    """Any JSON value; its objects prefer `keys`."""
    names = st.one_of(st.sampled_from(keys), hostile)
    return st.recursive(
        scalars,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=5)),
        max_leaves=12,
    )


def is_refused(outcome, *names):
    """Was it refused: one printable sentence with one of `names`, status 2, nothing on stdout and nothing created?
    False if accepted.
    """
    assert outcome.created == []
    assert "Traceback" not in outcome.err
    if outcome.status == 0:
        return False
    lines = outcome.err.split("\n")
    details = f"status {outcome.status}, stderr {outcome.err[:2000]!r}"
    assert (outcome.status, outcome.out) == (2, ""), details
    assert len(lines) == 2, details
    assert lines[1] == "", details
    sentence = lines[0].removeprefix("error   ")
    assert lines[0] != sentence, details
    assert sentence.isprintable(), details
    assert sentence.endswith("."), details
    assert any(name in sentence for name in names), details
    assert len(sentence) <= 1_000, f"{len(sentence)} characters: {details}"
    return True
