"""A user's reward function: where it may be, and what its file must define."""

import os
import sys
import warnings
from pathlib import Path

import pytest
from shared_fixtures import CONFIG, SPEC, record, write

pytestmark = pytest.mark.slow

GOOD = "def compute_score(**_):\n    return 0.0\n"
# verl 0.7.1 has both keys; any legacy key that is set replaces the whole new mapping.
BOTH = "custom_reward_function: {path: null, name: null}\nreward: {custom_reward_function: {path: null, name: compute_score}}\n"
NEW_FILE = "custom_reward_function: {path: null, name: compute_score}\n"


def test_sft_has_no_reward(submit, shared):
    path = write(shared.user_code / "reward.py", "")
    assert submit(spec=f"workload: sft\nreward_fn_path: {path}\n").is_refusal(
        f"reward_fn_path={path} (from my/ppo.yaml) is refused: sft has no reward; leave it out."
    )


@pytest.fixture
def with_reward(submit, shared):
    """A dry run of a job with a reward function whose file contains `source`."""
    config = shared.snapshots / "codeA" / "verl" / "trainer" / "config"
    write(config / "ppo_trainer.yaml", CONFIG + BOTH)
    write(config / "reward" / "reward.yaml", NEW_FILE)
    record(shared.snapshots / "codeA")

    def with_reward(source, *args, spec=SPEC):
        (shared.user_code / "r.py").write_bytes(source if isinstance(source, bytes) else source.encode())
        return submit("DRY_RUN=1", *args, spec=f"{spec}reward_fn_path: ${{shared_root}}/user/code/r.py\n")

    return with_reward


PYTHON = f"the head's Python {sys.version_info[0]}.{sys.version_info[1]}"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("x = 1\ndef compute_score(:\n", "invalid syntax (r.py, line 2)"),
        ("return 1\n", "'return' outside function (r.py, line 1)"),
    ],
)
def test_a_reward_function_that_does_not_parse_is_refused(with_reward, shared, source, problem):
    assert with_reward(source).is_refusal(
        f"reward_fn_path={shared.user_code}/r.py (from my/ppo.yaml) cannot be read by {PYTHON} ({problem}): fix it, or name another file."
    )


MINE = "OVERRIDES=reward.custom_reward_function.name=mine"


@pytest.mark.parametrize(
    ("source", "args", "name"),
    [
        ("", [], "compute_score"),
        ("class A:\n    def compute_score(self): ...\n", [], "compute_score"),
        (GOOD, [MINE], "mine"),
    ],
)
def test_a_file_without_the_function_that_the_config_names_is_refused(with_reward, shared, source, args, name):
    assert with_reward(source, *args).is_refusal(
        f"reward_fn_path={shared.user_code}/r.py (from my/ppo.yaml) does not define {name} at its top level: define it there, or name "
        "another function with reward.custom_reward_function.name."
    )
    assert with_reward("def mine(): ...\n", MINE).status == 0


# promise: runs a reward function to check it
@pytest.mark.parametrize(
    "source",
    [
        GOOD, "async def compute_score(): ...\n", "class compute_score: ...\n", "compute_score = len\n", "compute_score: object = len\n",
        "from math import sqrt as compute_score\n", "from math import *\n", "import compute_score\n", "a, compute_score = 1, len\n",
        "try:\n    import a\nexcept ImportError:\n    def compute_score(): ...\n", "def f():\n    global compute_score\n    compute_score = 1\n",
        "globals()['compute_score'] = len\n", "def __getattr__(name): ...\n", "# -*- coding: latin-1 -*-\n# \xff\ncompute_score = 1\n".encode("latin-1"),
        b"\xef\xbb\xbfdef compute_score(): ...\n", "x = '\\d'\n" + GOOD, "raise SystemExit(open('/canary', 'w'))\n" + GOOD,
    ],
)  # fmt: skip
def test_every_way_to_define_the_function_is_accepted_and_nothing_is_run(with_reward, source):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome = with_reward(source)
    assert (outcome.status, outcome.err) == (0, "")
    assert not Path("/canary").exists()


def test_a_legacy_name_that_would_switch_the_reward_function_off_is_refused(with_reward, shared):
    """verl 0.7.1 takes the legacy mapping whole, with its empty path: the job ran without the user's function, silently."""
    assert with_reward(GOOD, "OVERRIDES=custom_reward_function.name=compute_score").is_refusal(
        f"reward_fn_path={shared.user_code}/r.py (from my/ppo.yaml) would not be used, because an override empties "
        "reward.custom_reward_function.path or sets custom_reward_function.name, which replaces it: leave that override out, and "
        "name a function with reward.custom_reward_function.name."
    )


def test_a_function_that_only_overrides_name_is_checked_on_the_shared_root(with_reward, submit, shared):
    with_reward("def other(): ...\n")
    path = shared.user_code / "r.py"
    assert submit("DRY_RUN=1", f"OVERRIDES=custom_reward_function.path={path}").is_refusal(
        f"custom_reward_function.path={path} (from OVERRIDES) is used with an empty custom_reward_function.name: write the name of its function there."
    )
    assert submit("DRY_RUN=1", f"OVERRIDES=reward.custom_reward_function.path=file://{path}").is_refusal(
        f"reward.custom_reward_function.path={path} (from OVERRIDES) does not define compute_score at its top level: define it there, or name "
        "another function with reward.custom_reward_function.name."
    )
    none = f"reward.custom_reward_function.path={shared.user_code}/none.py"
    assert submit("DRY_RUN=1", f"OVERRIDES={none}").is_refusal(
        f"{none} (from OVERRIDES) is not usable, because {shared.user_code}/none.py is missing: name one that is there."
    )
    for elsewhere in ("pkg://verl.utils.mine", "/opt/mine.py"):
        assert submit("DRY_RUN=1", f"OVERRIDES=reward.custom_reward_function.path={elsewhere}").status == 0


def test_a_large_reward_function_is_refused_and_not_parsed(with_reward, shared):
    """Python takes nearly a minute and 4 GB for 10 MB of it."""
    assert with_reward("x = 1\n" * 1_700_000).is_refusal(
        f"reward_fn_path={shared.user_code}/r.py (from my/ppo.yaml) has more than 1,000,000 bytes, too many to check it before each job: "
        "keep its data in another file."
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("foreign", ["r.py", "link.py", "__pycache__", "__pycache__/r.cpython-312.pyc"])
def test_a_reward_function_that_another_user_can_change_is_refused(with_reward, submit, shared, monkeypatch, foreign):
    """Before: it ran, and so did bytecode that another user had put next to one's own file."""
    home = shared.user_code
    (home / "link.py").symlink_to("r.py")
    write(home / "__pycache__" / "r.cpython-312.pyc", "")
    os.chown(write(home / "__pycache__" / "another.cpython-312.pyc", ""), 4242, 4242)
    assert with_reward(GOOD).status == 0
    os.chown(home / foreign, 4242, 4242, follow_symlinks=False)
    why = (
        f"because {home / foreign} belongs to user 4242, and what is there decides what your job does: set TRUSTED_UIDS=4242 if you trust that user, "
        "or name one of your own."
    )
    name = "link.py" if foreign == "link.py" else "r.py"
    spec = f"{SPEC}reward_fn_path: ${{shared_root}}/user/code/{name}\n"
    assert submit("DRY_RUN=1", spec=spec).is_refusal(
        f"reward.custom_reward_function.path={home}/{name} (from my/ppo.yaml) is refused, {why}"
    )
    assert submit("DRY_RUN=1", f"OVERRIDES=reward.custom_reward_function.path={home}/{name}").is_refusal(
        f"reward.custom_reward_function.path={home}/{name} (from OVERRIDES) is refused, {why}"
    )
    monkeypatch.setenv("VERL_REGRESS_TRUSTED_UIDS", "4242")
    assert submit("DRY_RUN=1", spec=spec).status == 0


@pytest.mark.parametrize(
    ("part", "mode", "cure"),
    [
        ("mine/r.py", 0o666, "go-w"),
        ("mine", 0o777, "-R go-w"),
        ("mine/__pycache__", 0o777, "-R go-w"),
        ("mine/__pycache__/r.cpython-312.pyc", 0o666, "go-w"),
    ],
)
def test_a_reward_function_whose_mode_lets_others_change_it_is_refused(with_reward, submit, shared, part, mode, cure):
    """Before: only owners were checked."""
    with_reward(GOOD)  # records the snapshot
    home = shared.user_code
    path = write(home / "mine" / "r.py", GOOD)
    write(home / "mine" / "__pycache__" / "r.cpython-312.pyc", "")
    write(home / "mine" / "another.py", "").chmod(0o666)
    home.chmod(0o1777)
    spec = f"{SPEC}reward_fn_path: {path}\n"
    assert submit("DRY_RUN=1", spec=spec).status == 0
    (home / part).chmod(mode)
    assert submit("DRY_RUN=1", spec=spec).is_refusal(
        f"reward.custom_reward_function.path={path} (from my/ppo.yaml) is refused, because {home / part} can be changed by every user (mode "
        f"{mode:04o}), and what is there decides what your job does: type 'chmod {cure} {home / part}', or name one of your own."
    )
