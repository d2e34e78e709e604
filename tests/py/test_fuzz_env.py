"""env/local.env and env/<profile>.env through the real Bash reader: one sentence and status 2, or each value byte for byte."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Outcome
from fuzzing import CANARY, fuzz, hostile, is_refused, long
from hypothesis import strategies as st
from streams import state_of

REPO = Path(__file__).parents[2]
KNOBS = re.findall(r"^([A-Z0-9_]+)=", (REPO / "env" / "defaults.env").read_text(), re.MULTILINE)
MADE = {"PROFILE", "PROFILE_TITLE", "WORKDIR"}  # computed from the given knobs
OTHERS = [
    "BASH_ENV",
    "ENV",
    "PS4",
    "LD_PRELOAD",
    "PATH",
    "HOME",
    "IFS",
    "LOG_CHANGES",
    "SECONDS",
    "EPOCHREALTIME",
    "UID",
    "REPO_DIR",
    "FOO",
    "a",
    "A-B",
    "A[0]",
    "",
]


class Reader:
    """One Bash that reads the env files of a copy of the repository for each case."""

    def __init__(self, directory, script="env_reader.bash"):
        self.repo, self.box = directory / "the repo", directory / "box"
        self.box.mkdir()
        for part in ("scripts", "env", "jobspecs"):
            shutil.copytree(REPO / part, self.repo / part)
        (self.repo / "py").mkdir()
        (self.repo / "py" / "some.py").write_text("")
        shutil.copy(REPO / "tests" / "py" / script, self.repo / "scripts")
        self.said = directory / "said"
        self.profile = (self.repo / "env" / "cpu.env").read_bytes()
        self.process = subprocess.Popen(
            ["bash", self.repo / "scripts" / script, *KNOBS],
            cwd=self.box,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.box),
                "NO_COLOR": "1",
                "SAID": str(self.said),
                "PROFILE": "cpu",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def field(self):
        text = bytearray()
        while (byte := self.process.stdout.read(1)) != b"\0":
            assert byte, f"the reader ended, saying {self.said.read_bytes()!r}"
            text += byte
        return bytes(text)

    def load(self, local, profile):
        """Its exit status, its output, the knobs, and what was created."""
        (self.repo / "env" / "local.env").write_bytes(local)
        (self.repo / "env" / "cpu.env").write_bytes(profile + b"\n" + self.profile)
        before = state_of(self.repo), state_of(self.box)
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        status, knobs = int(self.field()), {}
        while field := self.field():
            name, _, value = field.partition(b"=")
            knobs[name.decode()] = value
        created = [] if (state_of(self.repo), state_of(self.box)) == before else ["something"]
        captured = type("Captured", (), {"out": "", "err": self.said.read_text(encoding="ascii", errors="replace")})
        return Outcome(status, captured, created), knobs


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    one = Reader(tmp_path_factory.mktemp("env"))
    yield one
    one.process.stdin.close()
    one.process.wait()


# A newline ends a line, and Bash reads no NUL from a file.
values = st.one_of(
    hostile, hostile, long, st.sampled_from([f"a[$(touch {CANARY})]", "1", "08", "container", "cpu", "../../x"])
).map(lambda text: text.replace("\n", " ").replace("\x00", "").encode("utf-8", "surrogatepass"))
lines = st.builds(lambda key, value: key.encode() + b"=" + value, st.sampled_from(KNOBS * 3 + OTHERS), values)
free = st.sampled_from(
    ["MODEL", "DATASET", "OVERRIDES", "SUBMISSION_ID", "CODE_ID", "JOB", "BASE_IMAGE", "VERL_SOURCE", "OVERRIDES_FILE"]
)
files = st.lists(
    st.one_of(lines, st.builds(lambda key, value: key.encode() + b"=" + value, free, values), values), max_size=4
).map(b"\n".join)


@fuzz("env files, read by Bash", local=files, profile=st.one_of(st.just(b""), files))
def test_env_files(reader, local, profile):
    outcome, knobs = reader.load(local, profile)
    if is_refused(outcome, "env/local.env", "env/cpu.env", "TRANSPORT"):
        return
    # The first line that sets a knob wins; the user's own file comes before the profile's.
    given = [line.partition(b"=") for line in reversed([*local.split(b"\n"), *profile.split(b"\n")]) if b"=" in line]
    taken = {key.decode("utf-8", "replace"): value for key, _, value in given}
    for knob in taken.keys() & knobs.keys() - MADE:
        assert knobs[knob] == taken[knob]
