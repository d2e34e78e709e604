import hashlib
import json
import os
import re
import shutil
import threading

import pytest
from streams import state_of, whole

import verl_regress
from verl_regress.base.errors import BadInput, RegressError
from verl_regress.store import artefact
from verl_regress.store.artefact import Origin

ORIGIN = Origin("synthetic", "0123456789abcdef", 1)


def build(directory):
    (directory / "sub").mkdir()
    (directory / "train.parquet").write_bytes(b"rows")
    (directory / "sub" / "more").write_bytes(b"more rows")
    return {"train_rows": 4}


def make(target, origin=ORIGIN, build=build):
    artefact.ensure(target, origin, build, knob="DATASET")


def refusal(target, origin=ORIGIN):
    def never(_):
        raise AssertionError("built although the target cannot be used")

    with pytest.raises(BadInput) as caught:
        make(target, origin, never)
    return str(caught.value)


def test_the_manifest_says_what_it_was_made_from_and_what_it_holds(tmp_path, capsys):
    make(tmp_path / "datasets" / "sums")
    stored = json.loads((tmp_path / "datasets/sums/manifest.json").read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", stored.pop("created"))
    assert stored == {
        "name": "sums",
        "source": "synthetic",
        "revision": "0123456789abcdef",
        "seed": 1,
        "builder": f"verl-regress {verl_regress.__version__}",
        "facts": {"train_rows": 4},
        "files": {
            "sub/more": {"bytes": 9, "sha256": hashlib.sha256(b"more rows").hexdigest()},
            "train.parquet": {"bytes": 4, "sha256": hashlib.sha256(b"rows").hexdigest()},
        },
    }
    whole(tmp_path / "datasets/sums")
    assert capsys.readouterr().err == (
        f"changed {tmp_path}/datasets/sums made from synthetic (revision 0123456789ab, seed 1), train rows 4\n"
    )


def test_a_second_run_changes_no_byte_and_no_time(tmp_path, capsys):
    make(tmp_path / "sums")
    before = state_of(tmp_path)
    capsys.readouterr()
    make(tmp_path / "sums", build=None)
    assert state_of(tmp_path) == before
    assert capsys.readouterr().err == f"skip    {tmp_path}/sums (exists, same source)\n"


def test_everyone_can_read_it_and_the_owner_can_remove_it_whatever_the_umask(tmp_path):
    umask = os.umask(0o077)
    try:
        make(tmp_path / "sums")
    finally:
        os.umask(umask)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "sums").rglob("*") if path.is_file()}
    assert modes == {0o644}
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("sums", "sums/sub")} == {0o755}


def test_another_source_is_an_error_that_names_both(tmp_path):
    make(tmp_path / "sums")
    before = state_of(tmp_path)
    assert refusal(tmp_path / "sums", Origin("synthetic", "fedcba9876543210", 2)) == (
        f"{tmp_path}/sums was made from synthetic (revision 0123456789ab, seed 1), and DATASET_SOURCE now asks for "
        "synthetic (revision fedcba987654, seed 2): remove that directory, or choose another name with DATASET=NAME."
    )
    assert state_of(tmp_path) == before


def test_a_directory_we_did_not_make_is_left_alone(tmp_path):
    (tmp_path / "sums").mkdir()
    assert refusal(tmp_path / "sums") == (
        f"{tmp_path}/sums has no manifest.json of verl-regress ([Errno 2] No such file or directory: '{tmp_path}/sums/manifest.json'): move it "
        "away, or choose another name."
    )


def test_a_missing_or_short_file_is_noticed(tmp_path):
    make(tmp_path / "sums")
    (tmp_path / "sums/train.parquet").write_bytes(b"row")
    assert refusal(tmp_path / "sums") == (
        f"{tmp_path}/sums is damaged, train.parquet missing or of another size than its manifest.json says: "
        "remove that directory and run the step again."
    )


def test_a_build_that_fails_leaves_nothing(tmp_path):
    def fail(directory):
        (directory / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "sums", build=fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_one_sentence(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(RegressError) as caught:
        make(tmp_path / "sums")
    assert str(caught.value) == (
        f"{tmp_path} cannot be written by uid {os.getuid()} (Permission denied): "
        "give that directory to the user who runs verl-regress, or set another WORKDIR."
    )


def race(target, sources):
    """Build from all `sources` at once, each as if it were the only one; returns what each raised."""
    barrier = threading.Barrier(len(sources))
    errors = [None] * len(sources)

    def one(index, source):
        def build_together(directory):
            barrier.wait(timeout=10)
            return build(directory)

        try:
            make(target, source, build_together)
        except BadInput as error:
            errors[index] = error

    threads = [threading.Thread(target=one, args=item) for item in enumerate(sources)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@pytest.mark.parametrize("second", [ORIGIN, Origin("synthetic", "fedcba", 2)])
def test_of_two_concurrent_builders_the_first_wins_and_another_source_is_refused(tmp_path, capsys, second):
    errors = race(tmp_path / "sums", [ORIGIN, second])
    assert [type(error) for error in errors].count(BadInput) == (second != ORIGIN)
    whole(tmp_path / "sums")
    assert [path.name for path in tmp_path.iterdir()] == ["sums"]
    lines = [line.split()[0] for line in capsys.readouterr().err.splitlines()]
    assert sorted(lines) == (["changed", "skip"] if second == ORIGIN else ["changed"])


def test_one_build_can_make_two_artefacts(tmp_path):
    def both(directories):
        for directory in directories:
            (directory / "config.json").write_text(directory.name)
        return {"seconds": 1.0}

    targets = [tmp_path / "actor", tmp_path / "critic"]
    artefact.ensure_all(targets, ORIGIN, both, knob="MODEL")
    assert [whole(target).facts for target in targets] == [{"seconds": 1.0}] * 2
    # One is gone: both are built, the remaining one is not touched.
    before = state_of(tmp_path / "actor")
    for path in targets[1].iterdir():
        path.unlink()
    targets[1].rmdir()
    artefact.ensure_all(targets, ORIGIN, both, knob="MODEL")
    assert state_of(tmp_path / "actor") == before
    whole(targets[1])
    shutil.rmtree(targets[0])
    with pytest.raises(BadInput, match="critic was made from synthetic"):  # although the actor is gone
        artefact.ensure_all(targets, Origin("other", "1"), None, knob="MODEL")
    assert [path.name for path in tmp_path.iterdir()] == ["critic"]


def test_a_copy_of_an_artefact_gets_its_own_manifest(tmp_path):
    def copy(directory):
        (directory / "config.json").write_text("{}")
        (directory / "manifest.json").write_text("another's")
        return {}

    make(tmp_path / "copy", build=copy)
    assert set(whole(tmp_path / "copy").files) == {"config.json"}
    make(tmp_path / "copy")
