"""Counts what test suites reported: count_tests.py REPORTS SUITE... prints a line a suite, then `N passed, N failed`.

Reads SUITE.tap (bats, lint) or SUITE.xml (pytest) and SUITE.status, the runner's exit status. What was planned and has
no result failed; a suite with no report, no test that ran, or a runner that failed without saying where, counts one
failure. Exits 1 when anything failed.
"""

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def count_tap(text: str) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of a TAP report."""
    plans = re.findall(r"^1\.\.(\d+)", text, re.MULTILINE)
    skipped = len(re.findall(r"^ok .*# skip", text, re.MULTILINE))
    passed = len(re.findall(r"^ok ", text, re.MULTILINE)) - skipped
    failed = len(re.findall(r"^not ok ", text, re.MULTILINE))
    planned = sum(int(plan) for plan in plans)
    return passed, max(failed, planned - passed - skipped), skipped


def count_junit(text: str) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of a JUnit report."""
    cases = list(ET.fromstring(text).iter("testcase"))
    skipped = sum(case.find("skipped") is not None for case in cases)
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    return len(cases) - failed - skipped, failed, skipped


def count_suite(reports: Path, suite: str) -> tuple[int, int, str]:
    """Passed and failed tests of one suite, and what to say about it."""
    tap, junit, status = (reports / f"{suite}.{kind}" for kind in ("tap", "xml", "status"))
    passed = failed = skipped = 0
    try:
        if tap.exists():
            passed, failed, skipped = count_tap(tap.read_text())
        elif junit.exists():
            passed, failed, skipped = count_junit(junit.read_text())
    except ET.ParseError as error:
        return 0, 1, f"{junit} is not a whole report ({error})"
    said = f"{skipped} skipped" if skipped else ""
    if failed == 0 and passed == 0:
        return 0, 1, "no test ran"
    if failed == 0 and (not status.exists() or status.read_text().strip() != "0"):
        return passed, 1, "its runner failed although no test did"
    return passed, failed, said


def main(reports: Path, suites: list[str]) -> int:
    """Print the counts of the suites and their sum."""
    total_passed = total_failed = 0
    for suite in suites:
        passed, failed, said = count_suite(reports, suite)
        total_passed += passed
        total_failed += failed
        print(f"{suite}: {passed} passed, {failed} failed" + (f" ({said})" if said else ""))
    if not suites:
        total_failed = 1
    print(f"{total_passed} passed, {total_failed} failed")
    return 1 if total_failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
