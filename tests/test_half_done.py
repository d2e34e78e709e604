"""Every place of the helper that publishes a file or a directory by a rename, killed right before each of its changes.

Nobody sees a half then, and the same command, given again, leaves what it leaves when nothing kills it.
"""

import ast
import re
import tarfile
from pathlib import Path
from types import SimpleNamespace

import at_every_step
import pytest
from hermetic import REPO
from shared_fixtures import write
from streams import tar

import deps
import job_report
import process_memory
from redaction import Redactor
from verl_regress.base import files
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.jobs import debug
from verl_regress.store import artefact, retention, snapshot

LONG = "a line\n" * 2000
# Of a time, of a process.
_ITS_OWN = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|\"pid\": \d+|process \d+")


def a_record(place, _monkeypatch):
    write(place / "ended.json", "{}")
    return lambda: files.write_atomically(place / "ended.json", LONG)


def a_record_with_reserved_space(place, monkeypatch):
    """The disk is full, so it is written into that space."""
    write(place / "ended.json", "{}")

    def full(path, text):
        raise OSError(28, "No space left on device", str(path))

    def act():
        files.reserve(place / "ended.json")
        files.write_reserved(place / "ended.json", LONG)

    monkeypatch.setattr(files, "write_atomically", full)
    return act


def data_and_model(place, _monkeypatch):
    def build(directories):
        for directory in directories:
            (directory / "train.parquet").write_text(LONG)
        return {"rows": 2000}

    origin = artefact.Origin("synthetic", "0123456789abcdef", 1)
    return lambda: artefact.ensure_all([place / "sums", place / "sums_sft"], origin, build, knob="DATASET")


def a_snapshot(place, _monkeypatch):
    tree = {"verl/__init__.py": b"", "verl/more.py": LONG.encode().replace(b"a line", b"pass")}
    return lambda: snapshot.create(SharedRoot(place), "codeA", "pypi:1", "1", tar(tree)) and None


def what_gc_removes(place, _monkeypatch):
    job = JobDir(place / "jobs" / "job")
    for step in (1, 2):
        write(job.checkpoints / f"global_step_{step}" / "actor" / "model.pt", LONG)
    write(job.state / "collected.json", "{}")

    def act():
        retention._finish(SharedRoot(place), [job])
        left = [path for path in job.checkpoints.iterdir() if not path.name.startswith(".")]
        retention.Waste("checkpoints", left, None).remove()

    return act


def a_bundle(place, _monkeypatch):
    texts = {"bundle.json": "{}", "logs/head/raylet.err": LONG}

    def act():
        if not (place / "bundle").exists():
            debug._write(place / "bundle", texts, Redactor({}))

    return act


def a_tar_of_bundles(place, _monkeypatch):
    job = JobDir(place / "jobs" / "job")
    bundle = write(job.debug / "bundle" / "bundle.json", LONG).parent
    return lambda: debug._tar(job, bundle) and None


def packages(place, monkeypatch):
    """One set over another one, which lacks something."""
    write(place / "packages" / "old.py", LONG)

    def pip(argv, check):
        target = Path(argv[argv.index("--target") + 1])
        for name in ("one.py", "two.py"):
            (target / name).write_text(LONG)

    monkeypatch.setattr(deps, "packages", lambda of: place / "packages")
    monkeypatch.setattr(deps, "_pip", lambda scratch: ["pip"])
    monkeypatch.setattr("subprocess.run", pip)
    return lambda: deps.install("helper", None)


def a_report_of_a_process(place, monkeypatch):
    monkeypatch.setattr(job_report, "job_dir", lambda: place)
    monkeypatch.setattr(job_report, "process", lambda: "worker-0-7")
    monkeypatch.setattr(job_report, "_started", lambda: 1)
    return lambda: job_report.write("identity", {"modules": LONG})


def the_stacks_of_a_process(place, monkeypatch):
    write(place / "stacks_asked", "2026")
    monkeypatch.setattr(job_report, "process", lambda: "worker-0-7")
    monkeypatch.setattr(
        process_memory, "faulthandler", SimpleNamespace(dump_traceback=lambda stream: stream.write(LONG))
    )
    return lambda: process_memory.write_stacks(place, "Worker")


PUBLISHED = {
    "base/files.py write_atomically": a_record,
    "base/files.py write_reserved": a_record_with_reserved_space,
    "store/artefact.py _finish": data_and_model,
    "store/snapshot.py create": a_snapshot,
    "store/retention.py remove": what_gc_removes,
    "jobs/debug.py _write": a_bundle,
    "jobs/debug.py _tar": a_tar_of_bundles,
    "deps.py _put": packages,
    "hooks/job_report.py write": a_report_of_a_process,
    "hooks/process_memory.py write_stacks": the_stacks_of_a_process,
}
NOT_PUBLISHED = {
    "doctor/shared_root.py _see_alone": "tries what the file system does",
    "doctor/shared_root.py _meet": "tries what the file system does",
    "hooks/debugger.py _waiting": "counts only while its process has locked it (tests/hooks/test_debugger.py)",
}


def renames(source):
    """The functions that rename something: `path.rename(other)`, `path.replace(other)`, `os.replace(path, other)`."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            is_os = isinstance(call.func.value, ast.Name) and call.func.value.id in ("os", "shutil")
            is_path = call.func.attr == "replace" and len(call.args) == 1 and not call.keywords
            if call.func.attr == "rename" or is_path or (is_os and call.func.attr in ("replace", "move")):
                yield function.name


def test_each_place_that_renames_something_is_here():
    found = {
        f"{str(path.relative_to(REPO / 'py')).removeprefix('verl_regress/')} {name}"
        for path in (REPO / "py").rglob("*.py")
        if re.search(r"\.(rename|replace|move)\(", source := path.read_text())
        for name in renames(source)
    }
    assert found == PUBLISHED.keys() | NOT_PUBLISHED.keys()


def test_the_rule_can_fail():
    source = "def a(): p.rename(q)\ndef b(): p.replace(q)\ndef c(): os.replace(p, q)\ndef d(): 'x'.replace('x', 'y')\n"
    assert list(renames(source + "def e(): replace(p, q=1)\n")) == ["a", "b", "c"]


def seen(place):
    """What others see, by the name below which it is published: what begins with a dot, or is named .tmp, is not finished."""
    found = {}
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place)
        if not any(part.startswith(".") or part.endswith(".tmp") for part in name.parts):
            content = _content(path) if path.is_file() else None
            found.setdefault(_published(name), {})[str(name)] = content
    return found


def _content(path):
    """Its bytes without what differs between two runs; of a tar, its members."""
    if path.name.endswith(".tar.gz"):
        with tarfile.open(path) as archive:
            return sorted(archive.getnames())
    # Bytecode names the path of its source.
    return b"" if path.suffix == ".pyc" else _ITS_OWN.sub(b"", path.read_bytes())


def _published(name):
    """Of `jobs/job/checkpoints/global_step_1/actor` the checkpoint, of `common/code/verl/codeA/verl` the snapshot."""
    homes = ("checkpoints", "verl", "debug")
    at = next((at for at, part in enumerate(name.parts[:-1]) if part in homes), -1)
    return Path(*name.parts[: at + 2])


def is_empty(entry):
    """Only directories, which are made when they are missing."""
    return set(entry.values()) <= {None}


SLOW = (a_snapshot, data_and_model)


@pytest.mark.parametrize(
    "prepare",
    [pytest.param(one, marks=[pytest.mark.slow] if one in SLOW else [], id=one.__name__) for one in PUBLISHED.values()],
)
def test_a_process_that_is_killed_at_any_change(prepare, tmp_path, monkeypatch):
    whole = tmp_path / "whole"
    act = prepare(whole, monkeypatch)
    before = seen(whole)
    assert at_every_step.interrupted(act, 10_000, by=at_every_step.kill) == (0, False)
    after, number, kills = seen(whole), 0, True
    assert after != before
    while kills:
        place = tmp_path / str(number)
        act = prepare(place, monkeypatch)
        is_step = at_every_step.changes_below(place)
        status, kills = at_every_step.interrupted(act, number, by=at_every_step.kill, is_step=is_step)
        assert status == (-9 if kills else 0)
        halves = {
            name: entry for name, entry in seen(place).items() if entry not in (before.get(name), after.get(name))
        }
        assert [name for name, entry in halves.items() if not is_empty(entry)] == [], f"killed before change {number}"
        assert at_every_step.interrupted(act, 10_000, by=at_every_step.kill)[0] == 0
        assert seen(place) == after, f"killed before change {number}"
        number += 1
    assert number >= 2


# What nobody holds a lock for.
@pytest.mark.parametrize("prepare", [a_record, a_tar_of_bundles, packages], ids=lambda prepare: prepare.__name__)
def test_another_process_does_the_same_before_any_change(prepare, tmp_path, monkeypatch):
    act = prepare(tmp_path / "alone", monkeypatch)
    assert at_every_step.interrupted(act, 10_000, by=at_every_step.kill) == (0, False)
    after, number, meets = seen(tmp_path / "alone"), 0, True
    while meets:
        place = tmp_path / str(number)
        act = prepare(place, monkeypatch)

        def rival(act=act):
            assert at_every_step.interrupted(act, 10_000, by=at_every_step.kill) == (0, False)

        is_step = at_every_step.changes_below(place)
        status, meets = at_every_step.interrupted(act, number, by=rival, is_step=is_step)
        assert (status, seen(place)) == (0, after), f"both at once, before change {number}"
        number += 1
    assert number >= 2
