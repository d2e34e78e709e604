"""tests/mutations/: each patch has an entry in the index and each entry a patch, and both are well formed."""

import re

import pytest
import yaml
from hermetic import REPO

from verl_verdict import metrics

HOME = REPO / "tests" / "mutations"
WORKLOADS = ("ppo", "grpo", "sft")
SHOWN_BY = ("harmless", "signal", "crash", "stops", "speed", "memory")
KEYS = {"title", "workload", "overrides", "steps", "continues", "perturbed", *SHOWN_BY}
STEPS = 10  # of a case of the suite rehearsal
RESUMED_STEPS = 2
HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


class OneOfEach(yaml.SafeLoader):
    """Refuses a name that is given twice."""

    def construct_mapping(self, node, deep=False):
        names = [self.construct_object(key, deep=deep) for key, _ in node.value]
        assert len(names) == len(set(names)), f"given twice: {[name for name in names if names.count(name) > 1]}"
        return super().construct_mapping(node, deep=deep)


def index():
    return yaml.load((HOME / "index.yaml").read_text(), Loader=OneOfEach)


def patches():
    return {path.stem: path.read_text() for path in HOME.glob("*.patch")}


def problems(name, entry):
    """What is wrong with an entry of the index."""
    shown_by = [key for key in SHOWN_BY if key in entry]
    yield from (f"unknown key {key}" for key in sorted(set(entry) - KEYS))
    if not re.fullmatch(r"\S.*[^.\s]", entry.get("title", "")):
        yield "no title, or a title that is not one sentence"
    if entry.get("workload") not in WORKLOADS:
        yield f"workload {entry.get('workload')}"
    if len(shown_by) != 1:
        yield f"shown by {shown_by}, not by one of {SHOWN_BY}"
    for key in {*shown_by, "continues", "perturbed"} - {"signal"}:
        if entry.get(key, True) is not True:
            yield f"{key} is {entry[key]}, not true"
    if ("harmless" in entry) != name.startswith("harmless-"):
        yield "harmless by its name or by its entry, not by both"
    steps = entry.get("steps", STEPS)
    most = 2 * STEPS if "memory" in entry else STEPS  # how memory grows shows in a longer run only
    if type(steps) is not int or not 1 <= steps <= most:
        yield f"steps {steps}"
    overrides = entry.get("overrides", [])
    if "overrides" in entry and not (overrides and all(re.fullmatch(r"[+~\w.]+=\S+", each) for each in overrides)):
        yield f"overrides {overrides}"
    if "signal" in entry:
        yield from problems_of_signal(entry, steps)


def problems_of_signal(entry, steps):
    signal = entry["signal"]
    if set(signal) != {"step", "metrics"} or not signal["metrics"]:
        yield f"signal {signal}"
        return
    first, last = (steps + 1, steps + RESUMED_STEPS) if entry.get("continues") else (1, steps)
    if not first <= signal["step"] <= last:
        yield f"step {signal['step']}, not {first} to {last}"
    known = [metric for stage in metrics.STAGES for metric in stage.metrics]
    for metric in signal["metrics"]:
        if not any(each.startswith(metric) or metric.startswith(each) for each in known):
            yield f"the judge does not know the metric {metric}"


class BrokenPatchError(Exception):
    """A patch that is no list of files below verl/ with hunks that change something."""


def need(condition, problem):
    if not condition:
        raise BrokenPatchError(problem)


def files_of(patch):
    """The files that a patch changes. Raises BrokenPatchError unless each has hunks, each hunk a change and the lines that it announces."""
    changed = {}
    lines = iter(patch.splitlines())
    name = ""
    for line in lines:
        if line.startswith("--- "):
            name = line.removeprefix("--- a/")
            need(next(lines, "") == f"+++ b/{name}", f"{line}: not one file")
            need(name.startswith("verl/"), f"{line}: not below verl/")
            changed[name] = 0
            continue
        announced = HUNK.match(line) if name else None
        need(announced, f"neither a file nor a hunk: {line!r}")
        old, new = (int(count or 1) for count in announced.groups())
        kinds = ""
        while kinds.count(" ") + kinds.count("-") < old or kinds.count(" ") + kinds.count("+") < new:
            kinds += next(lines, "?")[:1] or "?"
            need(set(kinds) <= set(" +-"), f"{name}: a hunk without its lines")
        need(kinds.strip(), f"{name}: a hunk without a change")
        changed[name] += 1
    need(any(changed), "no file")
    need(all(changed.values()), f"no hunks: {changed}")
    return set(changed)


def test_each_patch_has_an_entry_and_each_entry_a_patch():
    assert sorted(index()) == sorted(patches())
    assert {path.suffix for path in HOME.iterdir()} == {".patch", ".yaml", ".md"}


def test_there_are_enough_regressions_and_harmless_changes():
    entries = index()
    harmless = [name for name, entry in entries.items() if entry.get("harmless")]
    assert len(entries) - len(harmless) >= 28
    assert len(harmless) >= 8
    assert {entry["workload"] for entry in entries.values()} == set(WORKLOADS)


@pytest.mark.parametrize("name", sorted(index()))
def test_an_entry_is_well_formed(name):
    assert list(problems(name, index()[name])) == []


@pytest.mark.parametrize("name", sorted(patches()))
def test_a_patch_changes_files_of_verl(name):
    assert files_of(patches()[name])


def test_no_two_patches_are_equal():
    assert len(set(patches().values())) == len(patches())


GOOD = {"title": "A fault", "workload": "ppo", "signal": {"step": 1, "metrics": ["critic/advantages"]}}


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("fault", {"metric": "x"}, "unknown key metric"),
        ("fault", {"title": "A fault."}, "no title, or a title that is not one sentence"),
        ("fault", {"workload": "dpo"}, "workload dpo"),
        ("fault", {"crash": True}, f"shown by ['signal', 'crash'], not by one of {SHOWN_BY}"),
        ("fault", {"continues": 1}, "continues is 1, not true"),
        ("harmless-fault", {}, "harmless by its name or by its entry, not by both"),
        ("fault", {"steps": 11}, "steps 11"),
        ("fault", {"memory": True, "steps": 21}, "steps 21"),
        ("fault", {"overrides": []}, "overrides []"),
        ("fault", {"overrides": ["trainer.test_freq"]}, "overrides ['trainer.test_freq']"),
        ("fault", {"signal": {"step": 1}}, "signal {'step': 1}"),
        ("fault", {"signal": {"step": 11, "metrics": ["actor/lr"]}}, "step 11, not 1 to 10"),
        ("fault", {"continues": True}, "step 1, not 11 to 12"),
        ("fault", {"signal": {"step": 1, "metrics": ["loss"]}}, "the judge does not know the metric loss"),
    ],
)
def test_a_bad_entry_is_found(name, change, problem):
    assert list(problems("fault", GOOD)) == []
    assert problem in problems(name, {**GOOD, **change})


HEAD = "--- a/verl/a.py\n+++ b/verl/a.py\n"


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        ("", "no file"),
        (HEAD, "no hunks: {'verl/a.py': 0}"),
        ("--- a/verl/a.py\n+++ b/verl/b.py\n@@ -1 +1 @@\n-a\n+b\n", "--- a/verl/a.py: not one file"),
        (f"{HEAD}@@ -1,2 +1,2 @@\n a\n b\n", "verl/a.py: a hunk without a change"),
        (f"{HEAD}@@ -1,2 +1,2 @@\n a\n-b\n", "verl/a.py: a hunk without its lines"),
        (f"{HEAD}@@ -1 +1 @@\n-a\n+b\n+c\n", "neither a file nor a hunk: '+c'"),
        ("--- a/setup.py\n+++ b/setup.py\n@@ -1 +1 @@\n-a\n+b\n", "--- a/setup.py: not below verl/"),
    ],
)
def test_a_broken_patch_is_found(patch, problem):
    assert files_of(f"{HEAD}@@ -1 +1,2 @@\n a\n+b\n") == {"verl/a.py"}
    with pytest.raises(BrokenPatchError) as found:
        files_of(patch)
    assert str(found.value) == problem
