"""Knobs, script arguments and make command lines: known ones are taken byte for byte, others get one sentence and
status 2.

For types with a short rule, what they accept is defined here a second time, in Python.
"""

import os
import re
import shutil
import subprocess

import pytest
from conftest import Outcome
from fuzzing import CANARY, PIECES, fuzz, hostile, is_refused
from hypothesis import strategies as st
from test_fuzz_env import KNOBS, REPO, Reader

TYPES = dict(
    reversed(pair)
    for pair in re.findall(r"^#: (.*)\n([A-Z0-9_]+)=", (REPO / "env" / "defaults.env").read_text(), re.MULTILINE)
)
TARGETS = re.findall(r"^([a-z][a-z-]*):.*## ", (REPO / "Makefile").read_text(), re.MULTILINE)
SECRET = "geheim-4711"


class Words(Reader):
    """One Bash that checks knobs and arguments for each case in a subshell."""

    def __init__(self, directory):
        super().__init__(directory, "words_reader.bash")
        shutil.copy(REPO / "Makefile", self.repo)

    def ask(self, kind, *fields):
        """Its exit status, and the fields as the script got them."""
        before = sorted(self.box.iterdir())
        for field in (kind.encode(), b"%d" % len(fields), *fields):
            self.process.stdin.write(field + b"\0")
        self.process.stdin.flush()
        status = int(self.field())
        created = [] if sorted(self.box.iterdir()) == before else ["something"]
        captured = type("Captured", (), {"out": "", "err": self.said.read_text(encoding="ascii", errors="replace")})
        return Outcome(status, captured, created), self.said.with_name("said.out").read_bytes().split(b"\0")[:-1]


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    one = Words(tmp_path_factory.mktemp("words"))
    yield one
    one.process.stdin.close()
    one.process.wait()
    assert not list(one.repo.rglob(CANARY))


def as_bytes(text):
    """The bytes that an environment variable or an argument can hold."""
    return text.replace("\0", "").encode("utf-8", "surrogatepass")


def spoilt(word, at, piece):
    """`word` with one letter removed or something inserted, as by a typo or an attacker."""
    at %= len(word) + 1
    return word[:at] + piece + word[at + (piece == "") :]


def typed(known):
    """Known words, words close to them, and anything."""
    near = st.builds(
        spoilt, st.sampled_from(known), st.integers(0, 30), st.sampled_from(["", "", "_", "-", "X", "s", *PIECES])
    )
    return st.one_of(st.sampled_from(known), near, near, hostile)


GOOD = [
    "1", "true", "Yes", "ON", "0", "false", "no", "OFF", "", "2", "99", "100", "1023", "1024", "65535", "65536", "-1", "08", "2gb", "512m",
    "1.5g", "memory", "ppo", "cpu", "container", "synthetic", "path:/a b", "pypi:0.7.1", "git:x@y", "hub:a/b@c", "codeA", "1:1", "head,rules",
    '{"worker_node": 1}', '{"worker_node": 0}', "/private", "/dev/kfd /dev/dri", "A B", "https://x", "WARN", "Simple", "78643200",
    f"a[$(touch {CANARY})]", f"x;touch {CANARY}", "x" * 5_000,
]  # fmt: skip


def is_taken(kind, value):
    """Does that type accept the value? None if it has no short rule."""
    if kind.endswith(" or empty"):
        return value == "" or is_taken(kind.removesuffix(" or empty"), value)
    name, _, rest = kind.partition(" ")
    if kind == "free":
        return True
    if kind == "boolean":
        return value.lower() in {"1", "true", "yes", "on", "0", "false", "no", "off", ""} and value.isascii()
    if kind == "path":
        return value != ""
    if name in ("whole", "port"):
        low, _, high = (rest or "1024..65535").partition("..")
        is_whole = re.fullmatch(r"0|-?[1-9][0-9]{0,14}", value, re.ASCII) is not None
        return is_whole and int(low) <= int(value) <= int(high)
    if name == "one":
        return value in rest.removeprefix("of ").split()
    if name == "list":
        chosen = re.split(r" *, *| +", value.strip(" "))
        return value.strip(" ") != "" and set(chosen) <= set(rest.removeprefix("of ").split())
    return None


@fuzz("knob values, by type", knob=st.sampled_from(KNOBS), value=st.one_of(typed(GOOD), typed(GOOD), hostile))
def test_knob_values(words, knob, value):
    given = as_bytes(value)
    outcome, fields = words.ask("knobs", f"{knob}={value}".encode("utf-8", "surrogatepass").replace(b"\0", b""))
    kind = TYPES[knob]
    expected = is_taken(kind, given.decode("utf-8", "surrogateescape"))
    if is_refused(outcome, knob):
        assert expected in (False, None), f"{knob} ({kind}) refused {given!r}"
        return
    assert expected in (True, None), f"{knob} ({kind}) took {given!r}"
    if kind == "boolean":
        given = b"1" if given.lower() in (b"1", b"true", b"yes", b"on") else b""
    assert fields == [knob.encode() + b"=" + given]


DECLARED = ["", "--name", "--engine --stop-engine", "[JOBSPEC]", "lint unit contract rules py ..."]
ARGUMENTS = [
    "--help", "-h", "--name", "--engine", "--stop-engine", "lint", "unit", "py", "...", "[JOBSPEC]", "x.yaml", "my dir/x.yaml", "--dry-run",
    "KEEP=1", f"WANDB_API_KEY={SECRET}", f"--token={SECRET}", "", "-", "--", "*", f"x.yaml;touch {CANARY}",
]  # fmt: skip


@fuzz(
    "script arguments",
    declared=st.sampled_from(DECLARED),
    arguments=st.lists(typed(ARGUMENTS), min_size=1, max_size=3),
)
def test_script_arguments(words, declared, arguments):
    given = [as_bytes(argument) for argument in arguments]
    outcome, fields = words.ask("arguments", declared.encode(), *given)
    if b"-h" in given or b"--help" in given:
        assert outcome.status == 0
        return

    def is_known(argument):
        if declared == "[JOBSPEC]" and not argument.startswith(b"-") and not re.match(rb"[A-Z][A-Z0-9_]*=", argument):
            return argument != b""
        return argument != b"" and argument in declared.encode().removesuffix(b" ...").split()

    if is_refused(outcome, "70_gc.sh"):
        assert SECRET not in outcome.err or not any(b"=" in argument for argument in given)
        assert not all(map(is_known, given)) or (len(given) > 1 and not declared.endswith("..."))
        return
    assert all(map(is_known, given))
    assert len(given) == 1 or declared.endswith("...")
    assert fields == given


class Make:
    """Our Makefile, with scripts that record their environment."""

    def __init__(self, directory):
        self.repo, self.record = directory / "the repo", directory / "record"
        for part in ("env", "scripts/dev", "tests"):
            (self.repo / part).mkdir(parents=True)
        shutil.copy(REPO / "Makefile", self.repo)
        shutil.copy(REPO / "env" / "defaults.env", self.repo / "env")
        for script in ("50_status", "dev/help"):
            path = self.repo / "scripts" / f"{script}.sh"
            path.write_text('#!/bin/sh\nenv -0 >"$RECORD"\n')
            path.chmod(0o755)
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "RECORD": str(self.record)}

    def run(self, *given):
        """The environment of the first script, as bytes; empty if make ran none."""
        self.record.unlink(missing_ok=True)
        subprocess.run(["make", "-s", *given], cwd=self.repo, env=self.environment, capture_output=True, check=False)
        text = self.record.read_bytes() if self.record.exists() else b""
        return dict(entry.split(b"=", 1) for entry in text.split(b"\0") if entry)


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    one = Make(tmp_path_factory.mktemp("make"))
    paths = sorted(one.repo.rglob("*"))
    yield one
    assert sorted(one.repo.rglob("*")) == paths


IN_MAKE = [
    f"$(shell touch {CANARY})",
    f"$(eval x:=$(shell touch {CANARY}))",
    "$(error x)",
    "$(CODE_ID)",
    "$@",
    "%",
    ":=",
    "!",
    "\\",
]
# What make itself parses in a name before it reads a Makefile is not ours: these names have letters, digits, - . and _.
names = st.one_of(
    st.sampled_from(KNOBS),
    typed(KNOBS).map(lambda name: re.sub(r"[^A-Za-z0-9_.-]", "", name).lstrip("-")).filter(bool),
    st.sampled_from(
        [
            "WANDB_API_KEY",
            "HF_TOKEN",
            "FOO",
            "given",
            "knobs",
            "targets",
            "MAKE_UNKNOWN_KNOBS",
            "unknown",
            "of_others",
            "v",
        ]
    ),
)
in_make = st.one_of(hostile, st.lists(st.sampled_from([*IN_MAKE, *PIECES, SECRET]), max_size=4).map("".join))
# make expands ~ and removes ./; a = sets a variable, a dash is an option.
goals = st.one_of(st.none(), typed(TARGETS).map(lambda goal: re.sub(r"[\s\x00=~/]", "", goal).lstrip("-")))


@fuzz("make command lines", given=st.dictionaries(names, in_make, max_size=3), goal=goals)
def test_make_command_lines(make, words, given, goal):
    given = {name.encode(): as_bytes(value) for name, value in given.items()}
    more = [] if not goal or goal in TARGETS else [as_bytes(goal)]
    seen = make.run("status", *more, *(name + b"=" + value for name, value in given.items()))
    assert seen, "no script ran"
    unknown = {name for name in given if name.decode() not in KNOBS and not is_of_others(name.decode())}
    assert set(seen[b"MAKE_UNKNOWN_KNOBS"].split()) == unknown
    assert seen[b"MAKE_UNKNOWN_GOALS"] == b"".join(more)
    for name in given.keys() - unknown:
        # make drops spaces before a value and changes nothing else.
        assert seen[name] == given[name].lstrip(b" \t\n\v\f\r"), name
    assert not unknown & (seen.keys() - {b"MAKE_UNKNOWN_KNOBS"})
    if not unknown and not more:
        return
    pairs = [name + b"=" + seen[name] for name in (b"MAKE_UNKNOWN_KNOBS", b"MAKE_UNKNOWN_GOALS")]
    outcome, _ = words.ask("made", *pairs)
    assert is_refused(outcome, "on make's command line is not a knob", "is not a target of make")
    assert SECRET not in outcome.err


def is_of_others(name):
    """A variable of make, the shell or a tool, according to the Makefile's own list."""
    patterns = re.search(r"^override of_others := (.*)$", (REPO / "Makefile").read_text(), re.MULTILINE)[1].split()
    return any(re.fullmatch(re.escape(pattern).replace("%", ".+"), name) for pattern in patterns)
