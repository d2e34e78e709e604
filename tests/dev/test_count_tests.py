"""scripts/dev/count_tests.py: what the reports of the suites count, and which skipped tests have failed."""

import pytest
import yaml
from hermetic import REPO

import count_tests

EXPECTED = REPO / "tests/expected/skips.yaml"
TAP = """1..4
ok 1 a cluster comes up in 12ms
# what it printed
ok 2 a user's own network in 3ms # skip only root may change it
ok 3 a test without a reason in 4ms # skip
ok 4 lint checked 3 files
"""
JUNIT = """<testsuites><testsuite>
<testcase classname="tests.base.test_a" name="test_one" time="0.1" />
<testcase classname="tests.base.test_a" name="test_two[x-1]"><skipped type="pytest.skip" message="no pyarrow">...</skipped></testcase>
</testsuite></testsuites>
"""


@pytest.fixture
def reports(tmp_path):
    write(tmp_path, "unit.tap", TAP)
    write(tmp_path, "py.xml", JUNIT)
    return tmp_path


def write(reports, name, text, status=0):
    (reports / name).write_text(text)
    (reports / name).with_suffix(".status").write_text(f"{status}\n")


def count(capsys, reports, *suites, expected=None):
    """Counts them; returns the exit status and the lines."""
    path = None
    if expected is not None:
        path = reports / "skips.yaml"
        path.write_text(yaml.safe_dump(expected))
    status = count_tests.main(reports, list(suites), path)
    return status, capsys.readouterr().out.splitlines()


def test_a_skip_is_counted_and_fails_nothing_without_a_list(reports, capsys):
    assert count(capsys, reports, "unit", "py") == (
        0,
        ["unit: 2 passed, 0 failed (2 skipped)", "py: 1 passed, 0 failed (1 skipped)", "3 passed, 0 failed"],
    )


def test_a_skip_that_is_not_listed_failed_and_is_named(reports, capsys):
    listed = {"a user's own network": "only root may change it", "another test": "which ran"}
    assert count(capsys, reports, "unit", "py", expected=listed) == (
        1,
        [
            "unit: 2 passed, 1 failed (2 skipped)",
            f"unit: 'a test without a reason' was skipped (''): let it run here, or list it in {reports}/skips.yaml.",
            "py: 1 passed, 1 failed (1 skipped)",
            f"py: 'tests/base/test_a.py::test_two[x-1]' was skipped ('no pyarrow'): let it run here, or list it in {reports}/skips.yaml.",
            "3 passed, 2 failed",
        ],
    )


def test_skips_that_are_listed_with_their_reasons_fail_nothing(reports, capsys):
    listed = {
        "a user's own network": "only root may change it",
        "a test without a reason": "",
        "tests/base/test_a.py::test_two[x-1]": "no pyarrow",
    }
    assert count(capsys, reports, "unit", "py", expected=listed)[0] == 0


def test_a_listed_test_that_was_skipped_for_another_reason_failed(reports, capsys):
    listed = {"tests/base/test_a.py::test_two[x-1]": "not in this season"}
    status, lines = count(capsys, reports, "py", expected=listed)
    assert (status, lines[-1]) == (1, "1 passed, 1 failed")


@pytest.mark.parametrize(
    ("name", "text", "status", "line"),
    [
        ("unit.tap", "1..3\nok 1 a in 1ms\nnot ok 2 b in 1ms\nok 3 c in 1ms\n", 1, "unit: 2 passed, 1 failed"),
        ("unit.tap", "1..3\nok 1 a in 1ms\nok 2 b in 1ms # skip why\n", 1, "unit: 1 passed, 1 failed (1 skipped)"),
        ("unit.tap", "1..1\nok 1 a in 1ms\n", 1, "unit: 1 passed, 1 failed (its runner failed although no test did)"),
        ("unit.tap", "1..0\n", 0, "unit: 0 passed, 1 failed (no test ran)"),
        ("py.xml", "<testsuites/>", 0, "py: 0 passed, 1 failed (no test ran)"),
        ("py.xml", JUNIT.replace("/>", "><failure/></testcase>", 1), 1, "py: 0 passed, 1 failed (1 skipped)"),
        ("py.xml", JUNIT.replace("/>", "><error/></testcase>", 1), 1, "py: 0 passed, 1 failed (1 skipped)"),
        ("other.tap", "", 0, "unit: 0 passed, 1 failed (no test ran)"),
    ],
)
def test_what_failed_or_is_missing_is_counted(tmp_path, capsys, name, text, status, line):
    write(tmp_path, name, text, status)
    suite = line.partition(":")[0]
    done, lines = count(
        capsys, tmp_path, suite, expected={"b": "why", "tests/base/test_a.py::test_two[x-1]": "no pyarrow"}
    )
    assert (done, lines[0]) == (1, line)


def test_a_failed_test_is_named_with_the_end_of_its_report(tmp_path, capsys):
    said = "".join(f"# line {n}\n" for n in range(1, 20))
    write(tmp_path, "unit.tap", f"1..2\nnot ok 1 a cluster in 1ms\n{said}ok 2 b in 1ms\n# other\n", 1)
    write(tmp_path, "py.xml", JUNIT.replace(" />", "><failure>a\nE assert 1 == 2\n</failure></testcase>", 1), 1)
    assert count(capsys, tmp_path, "unit", "py")[1] == [
        "unit: 1 passed, 1 failed",
        "unit: 'a cluster' failed:",
        *(f"    # line {n}" for n in range(8, 20)),
        "py: 0 passed, 1 failed (1 skipped)",
        "py: 'tests/base/test_a.py::test_one' failed:",
        "    a",
        "    E assert 1 == 2",
        "1 passed, 2 failed",
    ]


FIRST = "1..3\nok 1 a in 1ms\nnot ok 2 setup_file failed\n# no Ray\n"


@pytest.mark.parametrize(
    ("first", "again", "flaky"),
    [
        (FIRST, "1..2\nok 1 b in 1ms\nok 2 c in 1ms # skip why\n", ["setup_file failed"]),
        (FIRST, "1..2\nnot ok 1 setup_file failed\n", []),
        (FIRST, "1..2\nok 1 b in 1ms\n", []),  # cut off
        (FIRST, "", []),
        (
            "1..3\nok 1 a in 1ms\nnot ok 2 b in 1ms\nnot ok 3 c in 1ms\n",
            "1..2\nok 1 b in 2ms\nnot ok 2 c in 1ms\n",
            ["b"],
        ),
    ],
)
def test_what_passes_when_its_file_runs_again_is_flaky_and_failed(tmp_path, capsys, first, again, flaky):
    write(tmp_path, "container.tap", first)
    (tmp_path / "container.again.tap").write_text(again)
    write(tmp_path, "unit.tap", "1..1\nok 1 z in 1ms\n")
    done, said = count(capsys, tmp_path, "container", "unit")
    assert (done, said[0], said[-1]) == (1, "container: 1 passed, 2 failed", "2 passed, 2 failed")
    assert said[said.index("unit: 1 passed, 0 failed") + 1 : -1] == [
        f"container: '{name}' is flaky: it failed, and passed when its file ran again." for name in flaky
    ]


@pytest.mark.parametrize("name", ["container.tap", "container.again.tap"])
def test_a_byte_that_is_not_utf_8_costs_no_count(tmp_path, capsys, name):
    write(tmp_path, "container.tap", FIRST, 1)
    (tmp_path / "container.again.tap").write_text("1..2\nok 1 b in 1ms\nnot ok 2 c in 1ms\n")
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes() + b"# \xff\n")
    status, lines = count(capsys, tmp_path, "container")
    assert (status, lines[0], lines[-1]) == (1, "container: 1 passed, 2 failed", "1 passed, 2 failed")
    write(tmp_path, "unit.tap", "1..1\nok 1 a in 1ms\n")
    (tmp_path / "unit.status").write_bytes(b"\xff\n")
    assert count(capsys, tmp_path, "unit")[1][0].endswith("(its runner failed although no test did)")


def test_a_report_that_is_cut_off_failed(tmp_path, capsys):
    write(tmp_path, "py.xml", JUNIT[:120])
    status, lines = count(capsys, tmp_path, "py")
    assert (status, lines[-1]) == (1, "0 passed, 1 failed")
    assert lines[0].startswith(f"py: 0 passed, 1 failed ({tmp_path}/py.xml is not a whole report (")


def test_no_suite_is_a_failure(tmp_path, capsys):
    assert count(capsys, tmp_path) == (1, ["0 passed, 1 failed"])


def test_every_listed_skip_is_a_test_of_ours_that_can_be_skipped_so():
    texts = {path: path.read_text() for path in (REPO / "tests/bats").rglob("*.bats")}
    for test, reason in yaml.safe_load(EXPECTED.read_text()).items():
        path, is_pytest, function = test.partition("::")
        if is_pytest:
            found = [text for text in [(REPO / path).read_text()] if f"\ndef {function}(" in text]
        else:
            found = [text for text in texts.values() if f'\n@test "{test}" {{' in text]
        assert len(found) == 1, test
        assert reason in found[0], test


def test_ci_counts_with_that_list():
    assert "count_tests.py --expected-skips tests/expected/skips.yaml build/reports " in (REPO / ".ci/run").read_text()
