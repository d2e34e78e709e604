"""Counts what test suites reported.

    count_tests.py [--expected-skips FILE] REPORTS SUITE...

Prints a line a suite, then `N passed, N failed`. Reads SUITE.tap (bats, lint) or SUITE.xml (pytest) and SUITE.status, the
runner's exit status. What failed, and passed in SUITE.again.tap, is flaky: it counts as failed, and is named in the last lines,
above the sum. What was
planned and has no result failed; a suite with no report, no test that ran, or a runner that failed without saying where,
counts one failure. With --expected-skips, a skipped test that FILE does not list with that reason failed, and is named in
a separate line. Each failed test follows its suite with the last lines of its report: a log of
thousands of lines may be cut where it failed. Exits 1 when anything failed.
"""

import argparse
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

import yaml

SHOWN_LINES = 12  # of a failed test's report, its last


@dataclass
class Counts:
    """What the tests of one suite ended in."""

    passed: int = 0
    failed: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)  # each test's name and reason
    failures: list[tuple[str, str]] = field(default_factory=list)  # each test's name and what its report says
    flaky: list[str] = field(default_factory=list)  # the names of those that passed when their file ran again


def count_tap(text: str, again: str = "") -> Counts:
    """The tests of a TAP report; bats writes how long one took between its name and the skip.

    `again` is the report of the files with failures, which ran once more; it says which of them are flaky.
    """
    planned = sum(int(plan) for plan in re.findall(r"^1\.\.(\d+)", text, re.MULTILINE))
    lines = re.findall(r"^ok \d+ (.*?)(?: in \d+ms)?(?: # (skip) ?(.*))?$", text, re.MULTILINE)
    skipped = [(name, reason) for name, skip, reason in lines if skip]
    passed = len(lines) - len(skipped)
    failures = re.findall(r"^not ok \d+ (.*?)(?: in \d+ms)?\n((?:#.*\n)*)", text, re.MULTILINE)
    failed = max(len(failures), planned - len(lines))
    counts = Counts(passed, failed, skipped, failures)
    if again and (second := count_tap(again)).failed == len(second.failures):  # that report is whole
        still = {name for name, _ in second.failures}
        counts.flaky = [name for name, _ in failures if name not in still]
    return counts


def count_junit(text: str) -> Counts:
    """The tests of a JUnit report, by the names that pytest takes: tests/base/test_ids.py::test_it."""
    cases = list(ET.fromstring(text).iter("testcase"))
    skipped, failures = [], []
    for case in cases:
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        if (skip := case.find("skipped")) is not None:
            skipped.append((name, skip.get("message", "")))
        elif found := [*case.findall("failure"), *case.findall("error")]:
            failures.append((name, found[0].text or ""))
    return Counts(len(cases) - len(failures) - len(skipped), len(failures), skipped, failures)


def _text(path: Path) -> str:
    """What it says; a test may have printed any bytes."""
    return path.read_text(encoding="utf-8", errors="replace")


def count_suite(reports: Path, suite: str) -> tuple[Counts, str]:
    """The tests of one suite, and what to say about it."""
    tap, again, junit, status = (reports / f"{suite}.{kind}" for kind in ("tap", "again.tap", "xml", "status"))
    counts = Counts()
    try:
        if tap.exists():
            counts = count_tap(_text(tap), _text(again) if again.exists() else "")
        elif junit.exists():
            counts = count_junit(junit.read_text())
    except ET.ParseError as error:
        return Counts(failed=1), f"{junit} is not a whole report ({error})"
    if counts.failed == 0 and counts.passed == 0:
        return Counts(failed=1, skipped=counts.skipped), "no test ran"
    if counts.failed == 0 and (not status.exists() or _text(status).strip() != "0"):
        return Counts(counts.passed, 1, counts.skipped), "its runner failed although no test did"
    return counts, f"{len(counts.skipped)} skipped" if counts.skipped else ""


def unexpected_skips(counts: Counts, expected_skips: Path | None) -> list[tuple[str, str]]:
    """The skipped tests that the file does not list with their reason; without a file, none."""
    if expected_skips is None:
        return []
    expected = yaml.safe_load(expected_skips.read_text())
    return [(test, reason) for test, reason in counts.skipped if expected.get(test) != reason]


def print_failures(suite: str, counts: Counts) -> None:
    """Print each failed test and the end of its report."""
    for test, report in counts.failures:
        print(f"{suite}: '{test}' failed:")
        print("".join(f"    {line}\n" for line in report.splitlines()[-SHOWN_LINES:]), end="")


def main(reports: Path, suites: list[str], expected_skips: Path | None = None) -> int:
    """Print the counts of the suites and their sum."""
    passed = failed = 0
    flaky = []
    for suite in suites:
        counts, said = count_suite(reports, suite)
        unexpected = unexpected_skips(counts, expected_skips)
        counts.failed += len(unexpected)
        passed += counts.passed
        failed += counts.failed
        flaky += [(suite, test) for test in counts.flaky]
        print(f"{suite}: {counts.passed} passed, {counts.failed} failed" + (f" ({said})" if said else ""))
        print_failures(suite, counts)
        for test, reason in unexpected:
            print(f"{suite}: '{test}' was skipped ('{reason}'): let it run here, or list it in {expected_skips}.")
    if not suites:
        failed = 1
    for suite, test in flaky:
        print(f"{suite}: '{test}' is flaky: it failed, and passed when its file ran again.")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--expected-skips", type=Path)
    parser.add_argument("reports", type=Path)
    parser.add_argument("suites", nargs="*")
    args = parser.parse_args()
    sys.exit(main(args.reports, args.suites, args.expected_skips))
