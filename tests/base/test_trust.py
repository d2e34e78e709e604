"""The one rule of trust: whose a file is, and who can write it."""

import itertools
import os
import stat
import subprocess
from pathlib import Path

import pytest

from verl_regress.base import trust
from verl_regress.base.errors import BadInput

REPO = Path(__file__).parents[2]


def asked(mode, uid, gid, whom):
    return trust.foreign(os.stat_result((mode, 1, 1, 1, uid, gid, 0, 0, 0, 0)), whom, Path("/nowhere/a file"))


@pytest.fixture
def user(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return monkeypatch


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize(
    ("uid", "gid", "whom", "cure"),
    [
        (1000, 42000, [], None),
        (0, 0, [], None),
        (4242, 42000, ["4242"], None),
        (4242, 42000, [":42000"], None),
        (4242, 4242, [], "set TRUSTED_UIDS=4242 if you trust that user"),
        (4242, 4242, [":42000"], "set TRUSTED_UIDS=4242 if you trust that user"),
        (4242, 1000, [":42000"], "set TRUSTED_UIDS=4242 if you trust that user, or TRUSTED_UIDS=group if you trust all of SHARED_GROUP"),
        (4242, 42000, ["42000"], "set TRUSTED_UIDS=4242 if you trust that user, or TRUSTED_UIDS=group if you trust all of SHARED_GROUP"),
    ],
)  # fmt: skip
def test_whose_a_file_may_be(uid, gid, whom, cure):
    for mode in (stat.S_IFREG | 0o644, stat.S_IFDIR | 0o755, stat.S_IFLNK | 0o777, stat.S_IFDIR | 0o1777):
        found = asked(mode, uid, gid, whom)
        assert (found and (found.why, found.cure)) == (cure and ("belongs to user 4242", cure))


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "who"),
    [
        (stat.S_IFREG | 0o644, 1001, 42000, None),
        (stat.S_IFREG | 0o666, 1001, 1001, "every user (mode 0666)"),
        (stat.S_IFREG | 0o622, 0, 0, "every user (mode 0622)"),
        (stat.S_IFREG | 0o664, 1001, 42000, "the group 42000 (mode 0664)"),
        (stat.S_IFREG | 0o664, 1001, 1001, None),  # the user's own group
        (stat.S_IFREG | 0o664, 1001, 0, None),  # root's
        (stat.S_IFREG | 0o664, 0, 100, "the group 100 (mode 0664)"),
        (stat.S_IFREG | 0o1664, 1001, 100, "the group 100 (mode 1664)"),  # sticky means something only for a directory
        (stat.S_IFDIR | 0o755, 1001, 42000, None),
        (stat.S_IFDIR | 0o777, 1001, 1001, "every user (mode 0777)"),
        (stat.S_IFDIR | 0o2775, 1001, 42000, "the group 42000 (mode 2775)"),
        (stat.S_IFDIR | 0o2775, 1001, 1001, None),
        (stat.S_IFDIR | 0o1777, 0, 0, None),  # as common/ and user/ are without SHARED_GROUP
        (stat.S_IFDIR | 0o3775, 1001, 42000, None),  # … and with it
        (stat.S_IFLNK | 0o777, 1001, 42000, None),
        (stat.S_IFCHR | 0o666, 0, 0, None),
    ],
)
@pytest.mark.parametrize("us", [0, 1001])
def test_who_else_can_change_a_file_or_a_directory_by_its_mode(mode, uid, gid, who, us, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: us)
    found = asked(mode, uid, gid, [str(uid)])
    assert (found and found.why) == (who and f"can be changed by {who}")
    types = "type" if us in (0, uid) else f"ask user {uid} to type"
    cure = f"{types} 'chmod go-w '/nowhere/a file''"
    if who and who.startswith("the group"):
        cure += ", or set TRUSTED_UIDS=group if that is SHARED_GROUP and you trust its members"
    assert found is None or found.cure == cure


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize("mode", [stat.S_IFREG | 0o664, stat.S_IFDIR | 0o2775])
def test_a_group_may_write_if_it_is_trusted_or_a_users_own(mode):
    assert asked(mode, 1000, 42000, [":42000"]) is None
    assert asked(mode, 0, 1000, []) is None  # the group of the same number as we
    assert asked(mode, 0, 4242, ["4242"]) is None
    assert asked(mode, 1000, 42000, [":42001", "1001"]).why.startswith("can be changed by the group 42000 ")
    assert asked(mode | stat.S_IWOTH, 1000, 42000, [":42000"]).why.startswith("can be changed by every user ")


def test_the_knob_names_users_by_number_and_a_group_as_the_node_knows_it(user):
    user.setenv("VERL_REGRESS_TRUSTED_UIDS", "1001 :root :42000")
    assert trust.trusted() == sorted(["0", "1000", "1001", ":0", ":42000"])
    user.setenv("VERL_REGRESS_TRUSTED_UIDS", ":nosuchgroup")
    with pytest.raises(BadInput, match=r"^SHARED_GROUP=nosuchgroup is not a group of "):
        trust.trusted()


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path, monkeypatch):
    closed = PermissionError(13, "Permission denied", str(tmp_path / "inner"))
    monkeypatch.setattr(os, "walk", lambda _place, onerror: onerror(closed) or ())
    with pytest.raises(BadInput) as caught:
        trust.need(tmp_path, "X=x", "or name one of your own")
    assert str(caught.value) == (
        f"X=x is not usable, because {tmp_path}/inner cannot be read (Permission denied): make it readable, or name one of your own."
    )


@pytest.mark.usefixtures("user")
def test_the_guard_in_shell_refuses_what_the_rule_refuses():
    """scripts/lib/helper.bash asks before our Python may run, so it has the rule once more."""
    guard = subprocess.run(
        ["bash", "-c", 'source "$1" && printf %s "$HELPER_GUARD"', "-", REPO / "scripts/lib/helper.bash"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    kinds = (stat.S_IFREG, stat.S_IFDIR | stat.S_ISVTX, stat.S_IFLNK)
    modes = [kind | mode for kind in kinds for mode in (0o755, 0o775, 0o757)]
    cases = list(itertools.product(modes, (1000, 4242), (1000, 42000), ("", "4242", ":42000")))
    lines = [f"{uid}|{gid}|{mode & 0o7777:o}|{stat.filemode(mode)}|{who}\n" for mode, uid, gid, who in cases]
    script = f"""
        stat() {{ echo "$uid $gid $letters $mode /a/file"; }}
        id() {{ echo 1000; }}
        while IFS='|' read -r uid gid mode letters whom; do
          (set -- "$whom" true; {guard}) 2>/dev/null </dev/null; echo "$?"
        done"""
    ran = subprocess.run(
        ["sh", "-c", script, "/nowhere/helper"], input="".join(lines), capture_output=True, text=True, check=True
    )
    refused = [status == "77" for status in ran.stdout.split()]
    assert refused == [asked(mode, uid, gid, who.split()) is not None for mode, uid, gid, who in cases]
    assert 0 < sum(refused) < len(cases)
