import io
import os
import tarfile

import pytest
from streams import special, tar

from verl_regress.base.errors import BadInput
from verl_regress.store import tarball


def refusal(tmp_path, stream):
    target = tmp_path / "inner" / "tree"
    target.mkdir(parents=True)
    with pytest.raises(BadInput) as caught:
        tarball.unpack(stream, target, "path:/home/me/verl")
    return str(caught.value)


def test_files_directories_modes_and_inner_links_arrive(tmp_path):
    script = special("bin/run", tarfile.REGTYPE)
    script.mode = 0o4775
    link = special("bin/again", tarfile.SYMTYPE, "../verl/a.py")
    tarball.unpack(tar({"./verl/a.py": b"a = 1\n"}, members=[script, link]), tmp_path, "tree")
    assert (tmp_path / "bin/again").read_bytes() == b"a = 1\n"
    assert [(tmp_path / name).stat().st_mode & 0o7111 for name in ("bin/run", "verl/a.py")] == [0o111, 0]


@pytest.mark.parametrize("name", ["../evil", "verl/../../evil"])
def test_a_name_outside_the_tree_is_refused(tmp_path, name):
    assert f"tar: {name}: Member name contains '..'; " in refusal(tmp_path, tar({name: b"x"}))
    assert [path.name for path in tmp_path.rglob("*")] == ["inner", "tree"]


def test_a_pipe_is_refused(tmp_path):
    assert refusal(tmp_path, tar(members=[special("verl/odd", tarfile.FIFOTYPE)])) == (
        "'verl/odd' in path:/home/me/verl is neither a file, a directory nor a link: leave it out."
    )


@pytest.mark.parametrize("points_to", ["/etc/passwd", "../../outside", ".."])
def test_a_link_out_of_the_tree_is_refused(tmp_path, points_to):
    assert refusal(tmp_path, tar(members=[special("link", tarfile.SYMTYPE, points_to)])) == (
        f"The link 'link' in path:/home/me/verl points out of the tree, to '{points_to}': "
        "leave it out, or copy what it points to."
    )


def test_nothing_is_written_through_a_link(tmp_path):
    members = [special("door", tarfile.SYMTYPE, ".."), special("door/evil", tarfile.REGTYPE)]
    refusal(tmp_path, tar(members=members))
    assert not (tmp_path / "inner/evil").exists()


def test_a_stream_that_stops_between_two_files_is_refused(tmp_path):
    whole = tar({"a": b"1"}).getvalue()
    assert refusal(tmp_path, io.BytesIO(whole[:1024])) == (
        "The tar stream of path:/home/me/verl cannot be unpacked (it ends before the archive does): run the step again."
    )


@pytest.mark.parametrize("data", [b"", b"no tar at all" * 100, tar({"a": bytes(5000)}).getvalue()[:2000]])
def test_a_stream_that_is_no_tar_or_is_cut_inside_a_file_is_refused(tmp_path, data):
    assert refusal(tmp_path, io.BytesIO(data)).startswith("The tar stream of path:/home/me/verl cannot be unpacked (")


def test_names_that_are_not_utf8_arrive(tmp_path):
    name = os.fsdecode(b"caf\xe9.txt")
    tarball.unpack(tar({name: b"1"}), tmp_path, "tree")
    assert [path.name for path in tmp_path.iterdir()] == [name]
