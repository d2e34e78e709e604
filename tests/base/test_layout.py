"""Paths that lead out of the shared root are refused, no matter who names them or who planted the link."""

import os
import re
import shutil
import stat
from pathlib import Path

import pytest
from shared_fixtures import SPEC, write

from verl_regress.base.files import write_atomically
from verl_regress.base.layout import SharedRoot

FILE = "my/ppo.yaml"
DOCS = Path(__file__).parents[2] / "docs" / "shared-root.md"


@pytest.fixture
def outside(tmp_path):
    """A directory outside the shared root with everything that a model, a data set and a snapshot need."""
    for name in ("config.json", "train.parquet", "test.parquet", "snapshot.json", "verl/__init__.py"):
        write(tmp_path / "outside" / name, "{}")
    return tmp_path / "outside"


def test_links_inside_the_root_and_a_root_that_is_a_link_are_accepted(shared, tmp_path):
    (shared.user_code / "link").symlink_to(shared.models / "tiny")
    (tmp_path / "alias").symlink_to(shared.path)
    for root in (shared, SharedRoot(tmp_path / "alias")):
        for path in (
            root.models / "tiny",
            root.models / "not there",
            root.user_code / "link" / "config.json",
            root.path,
        ):
            assert root.escape_of(path) is None


def test_a_path_that_leads_out_is_refused_with_its_target(shared, outside):
    (shared.models / "planted").symlink_to(outside)
    (shared.path / "common" / "loop").symlink_to(shared.path / "common" / "loop")
    for path, escape in (
        ("/etc/passwd", f"it is not under {shared.path}, and other nodes may not have it"),
        (f"{shared.path}X", f"it is not under {shared.path}, and other nodes may not have it"),
        (f"{shared.models}/../../..", "it must do without '..'"),
        (
            f"{shared.models}/planted/config.json",
            f"it is a link to {outside}/config.json, which leaves {shared.path}, and other nodes may not have it",
        ),
    ):
        assert shared.escape_of(type(shared.path)(path)) == escape
    assert shared.escape_of(shared.path / "common" / "loop") is None  # it leads nowhere, so not outside


@pytest.mark.parametrize(("kind", "home"), [("model", "models"), ("dataset", "datasets")])
def test_a_model_or_data_set_that_leads_out_is_a_warning(submit, shared, outside, kind, home):
    (getattr(shared, home) / "planted").symlink_to(outside)
    for given in (str(outside), "planted"):
        for outcome, origin in (
            (submit(spec=f"{SPEC}{kind}: {given}\n"), FILE),
            (submit(**{kind: given}), f"the knob {kind.upper()}"),
        ):
            warning = f"warning {kind}={given} (from {origin}): not under {shared.path}, so every worker must have the same there"
            assert outcome.status == 0
            assert outcome.err.startswith(warning)
    sentence = f"{kind}=../outside (from %s) is refused: it must do without '..'."
    assert submit(spec=f"{SPEC}{kind}: ../outside\n").is_refusal(sentence % FILE)
    assert submit(**{kind: "../outside"}).is_refusal(sentence % f"the knob {kind.upper()}")


def test_a_snapshot_that_leads_out(submit, shared, outside):
    (shared.snapshots / "planted").symlink_to(outside)
    write(shared.snapshots / "half" / "snapshot.json", "{}")
    (shared.snapshots / "half" / "verl").symlink_to(outside / "verl")
    for code_id, real in (("planted", outside), ("half", outside / "verl")):
        escape = f"it is a link to {real}, which leaves {shared.path}, and other nodes may not have it"
        sentence = f"CODE_ID={code_id} (from %s) is refused: {escape}; name another snapshot."
        assert submit(f"CODE_ID={code_id}").is_refusal(sentence % "the command line")
        for key in (f"code_id: {code_id}", f"code_path: ${{shared_root}}/common/code/verl/{code_id}"):
            assert submit(spec=f"{SPEC}{key}\n").is_refusal(sentence % FILE)


# promise: deletes or overwrites what a job wrote
@pytest.mark.parametrize("points_to", ["outside", "nowhere"])
def test_a_job_directory_that_is_a_planted_link_is_taken_and_is_no_job(submit, run, shared, outside, points_to):
    (shared.jobs / "mine").symlink_to(outside.parent / points_to)
    assert submit("SUBMISSION_ID=mine").is_refusal(
        f"submission_id 'mine' is taken: {shared.jobs}/mine exists and is never reused; give another one, or leave it out to get a generated one."
    )
    assert run("where", "mine").status == run("where", "latest").status == 2


def test_a_link_planted_between_check_and_reservation_is_not_followed(submit, shared, outside, monkeypatch):
    """mkdir(2) fails if the name exists, even as a link: the first one has it."""
    mine, lexists = shared.jobs / "mine", os.path.lexists
    monkeypatch.setattr(
        os.path, "lexists", lambda path: mine.symlink_to(outside / "new") if path == mine else lexists(path)
    )
    outcome = submit("SUBMISSION_ID=mine")
    assert (outcome.status, outcome.err) == (
        2,
        f"error   {shared.jobs}/mine was made a moment ago by another submission: see 'make jobs'.\n",
    )
    assert outcome.created == ["jobs", "jobs/mine"]  # what was planted
    assert not (outside / "new").exists()


def test_the_directory_of_all_jobs_that_leads_out(submit, shared, outside):
    shutil.rmtree(shared.jobs)
    shared.jobs.symlink_to(outside)
    assert submit().is_refusal(
        f"{shared.jobs} cannot take a job's directory: it is a link to {outside}, which leaves {shared.path}, and other "
        "nodes may not have it; make it a directory of its own."
    )


def test_a_file_is_written_in_the_place_of_a_planted_link_not_through_it(tmp_path):
    target, temporary = tmp_path / "started", tmp_path / f".started.{os.getpid()}.tmp"
    target.symlink_to(tmp_path / "victim")
    write_atomically(target, "text")
    assert not target.is_symlink()
    assert target.read_text() == "text"
    temporary.symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        write_atomically(target, "other")
    assert target.read_text() == "text"
    assert not (tmp_path / "victim").exists()


def test_the_lock_of_another_user_is_left_as_it_is(shared):
    os.utime(shared.jobs_lock, (1, 1))
    shared.ensure()
    assert shared.jobs_lock.stat().st_mtime == 1


def test_a_group_may_write_in_every_place_where_members_make_entries(shared):
    """docs/shared-root.md has the list."""
    group = os.getgid()
    shared.ensure(group)
    listed = re.search(r"^\| the shared root itself, (.+?) \|", DOCS.read_text(), re.M)[1].replace("`", "").split(", ")
    modes = {name: stat.S_IMODE((shared.path / name).stat().st_mode) for name in listed}
    assert modes == dict.fromkeys(modes, 0o3775)
    assert "acceptance/" in modes
