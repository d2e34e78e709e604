"""The commands that messages name, such as their cures: each is one that can be typed."""

import re

import pytest
from hermetic import REPO

PLACES = ("scripts/*.sh", "scripts/lib/**/*.bash", "py/verl_regress/**/*.py", "py/run.py", "py/hooks/*.py")
QUOTED = re.compile(r"'((?:make |scripts/)[^'\n]*)'")


def named():
    """Each command between quotes in a line that is no comment, up to what the message fills in."""
    found = {}
    for path in sorted(path for place in PLACES for path in REPO.glob(place)):
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line.lstrip().startswith("#"):
                for command in QUOTED.findall(line):
                    found.setdefault(command, path.relative_to(REPO))
    return found


def targets():
    """Of the Makefile here, and of the maintainers' one."""
    menus = [(REPO / name).read_text(encoding="utf-8") for name in ("Makefile", "maintain/Makefile")]
    return {name for menu in menus for name in re.findall(r"^([a-z][a-z-]*):.*## ", menu, re.MULTILINE)}


def readers():
    """By knob the targets that read it, as its tag in env/defaults.env names them; `all` is every target."""
    tags = re.findall(
        r"^#: .*, for (.*)\n([A-Z][A-Z0-9_]*)=", (REPO / "env/defaults.env").read_text(encoding="utf-8"), re.MULTILINE
    )
    return {knob: set(re.sub(r"\[[^]]*\]", "", tag).split()) for tag, knob in tags}


def problem_of(command):
    """What keeps the command from being typed; None if nothing does. Words with a placeholder in them are the user's."""
    program, *words = command.split()
    if program != "make":
        return None if (REPO / program).is_file() else f"{program} is not there"
    known, menu = readers(), targets()
    if words[:2] == ["-C", "maintain"]:
        words, known = words[2:], known | {"ARGS": {"all"}}
    goals = {word for word in words if word in menu}
    for word in words:
        knob, _, value = word.partition("=")
        if value or word.endswith("="):
            if knob not in known:
                return f"{knob} is no knob"
            if known[knob].isdisjoint({*goals, "all"}):
                return f"{knob} is not read by {' '.join(sorted(goals))}"
        elif re.fullmatch(r"[a-z-]+", word) and word not in menu:
            return f"{word} is no target"
    return None


def test_each_command_that_a_message_names_can_be_typed():
    commands = named()
    assert len(commands) > 50
    assert {f"{path}: {command}": why for command, path in commands.items() if (why := problem_of(command))} == {}


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("make up prepare PROFILE={profile}", None),
        ("make stop JOB=…", None),
        ("make -C maintain releases ARGS=x", None),
        ("make verify ARGS=x", "ARGS is no knob"),
        ("make cleanup", "cleanup is no target"),
        ("make down FORSE=1", "FORSE is no knob"),
        ("make snapshot DATASET=sums", "DATASET is not read by snapshot"),
        ("scripts/12_deps.sh", "scripts/12_deps.sh is not there"),
    ],
)
def test_a_command_that_went_is_noticed(command, problem):
    assert problem_of(command) == problem
