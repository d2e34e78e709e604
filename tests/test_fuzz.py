"""Property tests: thousands of cases of bad input, each refused in one sentence with status 2, or taken exactly as given.

FUZZ_SEED (default below) decides all cases, and FUZZ_SCALE=10 tries ten times as many. hypothesis shrinks a failing case
and prints it.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from shared_fixtures import BASE, REWARD_CONFIG, SPEC, Outcome, record, write

from verl_regress.base.errors import BadInput
from verl_regress.plan import reward_fn
from verl_regress.plan.overrides import of_command_line

pytestmark = pytest.mark.slow

REPO = Path(__file__).parents[1]
SPEC_FILE, BASE_FILE = "my/ppo.yaml", "env/ray/cpu.yaml"


def fuzz(count, **strategies):
    """Decorates a test with drawn values by name: it runs that many times."""
    wanted = settings(
        max_examples=count * int(os.environ.get("FUZZ_SCALE") or "1"), database=None, deadline=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    return lambda test: seed(int(os.environ.get("FUZZ_SEED") or "20261121"))(wanted(given(**strategies)(test)))


# What a shell, Python, YAML, Hydra, a terminal or a file system could interpret. CANARY must never be created.
CANARY = "fuzz-canary"
SECRET = "geheim-4711"
PIECES = [
    f"$(touch {CANARY})", f"`touch {CANARY}`", f";touch {CANARY};", f"|touch {CANARY}", f"$(touch${{IFS}}{CANARY})",
    f"\ntouch {CANARY}\n", f"!!python/object/apply:os.system ['touch {CANARY}']", f"__import__('os').system('touch {CANARY}')",
    "$HOME", "${HOME}", "$$", "${", "${oc.env:HOME}", "${shared_root}", "%s", "{0}", "\\", "'", '"', "''", " ", "  ", "\t", "\n", "\r\n",
    "-", "--", "--help", "-rf", "=", "==", ",", ":", ": ", "#", " # ", "~", "+", "++", "?", "*", "&a", "*a", "<<", "!", "@", "|", ">", "[", "]",
    "{", "}", "(", ")", "..", "../", "/", "/etc/passwd", ".", "\x00", "\x07", "\x1b[2J", "\x7f", "\x85", "\u2028", "\u202e", "\ufeff",
    "\ud800", "é", "💥", "null", "NO", "1e999", "0x1F", ".nan", "1:30", "2026-01-01", "a", "trainer.save_freq",
]  # fmt: skip
hostile = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=6).map("".join)
long = st.builds(lambda piece, times: piece * times, st.sampled_from(PIECES), st.sampled_from([100, 5_000]))
numbers = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, -1, 1, 10**30, -(10**400), 1e308, 5e-324, float("inf"), float("nan"), -0.0])
)  # fmt: skip
scalars = st.one_of(st.none(), st.booleans(), numbers, hostile, long)
# What a process can be given as an argument; bytes that are not UTF-8 come in as halves of surrogate pairs.
arguments = st.one_of(hostile, hostile, long).filter(lambda text: "\x00" not in text)


def is_refused(outcome, *names):
    """Was it refused: printable sentences, one of them with one of `names`, status 2, nothing on stdout and nothing created?
    False if accepted.
    """
    assert outcome.created == []
    assert "Traceback" not in outcome.err
    if outcome.status == 0:
        return False
    details = f"status {outcome.status}, stderr {outcome.err[:2000]!r}"
    assert (outcome.status, outcome.out) == (2, ""), details
    sentences = re.findall(r"error   ([^\n]{1,1000}\.)\n", outcome.err)
    assert sentences, details
    assert outcome.err == "".join(f"error   {each}\n" for each in sentences), details
    assert all(each.isprintable() for each in sentences), details
    assert any(name in each for name in names for each in sentences), details
    return True


# --- documents ---------------------------------------------------------------------------------------------------------

SPEC_KEYS = [
    "submission_id", "workload", "shared_root", "code_id", "code_path", "model", "dataset", "reward_fn_path", "ray", "address",
    "resources", "entrypoint_num_cpus", "entrypoint_resources", "worker_node", "trainer_overrides", "env_vars", "secrets", "name", "file",
]  # fmt: skip
BASE_KEYS = [
    "address",
    "entrypoint_num_cpus",
    "entrypoint_resources",
    "python_layers",
    "runtime_env",
    "env_vars",
    "ppo",
]
# YAML features that our documents have no use for.
TRICKS = [
    "a: &a [x, x]\nb: &b [*a, *a, *a, *a]\nc: &c [*b, *b, *b, *b]\nd: [*c, *c, *c, *c]\n",  # a small billion laughs
    "env_vars: &e {A: x}\n<<: {model: tiny}\n", "<<: [1, 2]\n", "<<: *nobody\n", "&r a: *r\n", "env_vars: &r {A: *r}\n",
    f"model: !!python/object/apply:os.system ['touch {CANARY}']\n", "model: !!binary aGk=\n", "model: !mine x\n", "!!set {a, b}\n",
    "model: !!int x\n", "model: !!float ''\n", "model: 2026-99-99\n", "model: 1:99\n", "? [a, b]\n: c\n", "1: 2\n", "null: 1\n", "NO: x\n",
    "workload: grpo\n", "%YAML 9.9\n---\n", "---\n", "--- a\n--- b\n", "\tmodel: x\n", "model: [\n", "model: 'a\n", "- a\n", "\ufeff", "\r",
    "\x00", "model: 0o7_7\n", "ray: {address: http://x}\n", "model: \"\\ud800\"\n", "resources: {entrypoint_num_cpus: .nan}\n",
    "resources: {entrypoint_resources: {worker_node: 1.5}}\n", f"model: 0x{'F' * 5_000}\n", "[" * 3_000, "{a: " * 1_000, "a:\n" * 50,
]  # fmt: skip


def texts(valid):
    """A valid document with random text inserted, or no document at all."""
    pieces = st.lists(st.one_of(st.sampled_from(TRICKS), hostile), max_size=3)
    near = st.builds(lambda pieces, at: "".join([valid[:at], *pieces, valid[at:]]), pieces, st.integers(0, len(valid)))
    encoded = st.builds(
        lambda text, how: text.encode(how, "backslashreplace"), near, st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"])
    )  # fmt: skip
    return st.one_of(
        encoded,
        near.map(lambda text: text.replace("\n", "\r\n").encode("utf-8", "surrogatepass")),
        st.binary(max_size=40),
    )


def structures(valid, keys):
    """A valid document with some values replaced or keys added, or any structure at all, as YAML or JSON."""
    any_value = st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.sampled_from(keys), hostile), inner, max_size=5)
        ),
        max_leaves=12,
    )  # fmt: skip
    near = st.dictionaries(st.sampled_from(keys), any_value, max_size=3).map(lambda values: {**valid, **values})
    return st.one_of(near, near, any_value).flatmap(
        lambda value: st.sampled_from([yaml.safe_dump(value), json.dumps(value)])
    )


secrets = st.lists(
    st.fixed_dictionaries({"name": st.one_of(hostile, scalars, st.sampled_from(["PATH", "HF_HOME", "RAY_ADDRESS", "A_KEY"]))},
                          optional={"file": st.one_of(hostile, scalars)}), max_size=3,
)  # fmt: skip
DOCUMENTS = {
    "JobSpec, any text": (texts(SPEC), "spec"),
    "JobSpec, any structure": (structures({"workload": "ppo"}, SPEC_KEYS), "spec"),
    "JobSpec, secrets": (secrets.map(lambda value: json.dumps({"workload": "ppo", "secrets": value})), "spec"),
    "Ray base config, any text": (texts(BASE).map(lambda text: text.decode("utf-8", "replace")), "base"),
    "Ray base config, any structure": (structures(yaml.safe_load(BASE), BASE_KEYS), "base"),
}


@pytest.mark.parametrize("document", DOCUMENTS)
@fuzz(120, data=st.data())
def test_documents(submit, ray, document, data):
    strategy, argument = DOCUMENTS[document]
    text = data.draw(strategy)
    if isinstance(text, str):
        assume(argument == "spec" or "\ud800" not in text)
        text = text.encode("utf-8", "surrogatepass") if argument == "spec" else text
    is_refused(submit("DRY_RUN=1", **{argument: text}), SPEC_FILE if argument == "spec" else BASE_FILE, "secret")
    assert ray.seen == []


def section(out, title):
    """A JSON section of the dry run."""
    return json.JSONDecoder().raw_decode(out.split(f"# {title}\n", 1)[1])[0] if f"# {title}\n" in out else {}


def quoted(text):
    """Hydra's own way to write any text (1.3, hydra._internal.grammar.utils)."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(text, Quote.single).with_quotes()


# No environment or argv can contain NUL, no file half a surrogate pair; ${ is filled in on purpose.
values = hostile.filter(lambda text: not {"\x00", "\ud800"} & set(text) and "${" not in text)


@fuzz(
    30,
    env_vars=st.dictionaries(st.from_regex(r"\A[A-Z_][A-Z0-9_]{3,9}\Z").map("X_".__add__), values, max_size=3),
    override=values.filter(
        lambda text: "\x85" not in text
    ),  # a line break in YAML, in which verl's own config is recorded
    cpus=numbers.filter(lambda number: 0 <= number <= 1_000_000),
)
def test_jobspec_values_arrive_unchanged(submit, ray, env_vars, override, cpus):
    text = f"trainer.project_name={quoted(override)}"
    document = {
        "workload": "ppo", "env_vars": env_vars, "trainer_overrides": [text], "resources": {"entrypoint_num_cpus": cpus},
    }  # fmt: skip
    outcome = submit("DRY_RUN=1", spec=json.dumps(document))
    assert not is_refused(outcome, SPEC_FILE), outcome.err
    plan = section(outcome.out, "resolved config")
    assert text in plan["argv"]
    assert plan["entrypoint_num_cpus"] == cpus
    sets = section(outcome.out, "environment that the hook env_vars sets")
    assert env_vars.items() <= {**section(outcome.out, "runtime_env")["env_vars"], **sets}.items()
    composed = outcome.out.split("# verl's config\n", 1)[1].split("\n# runtime_env\n", 1)[0]
    assert yaml.safe_load(composed)["trainer"]["project_name"] == override
    assert ray.seen == []


SOURCES = [
    "def compute_score", "(", ")", ":", "\n", "    ", "return 1\n", "class A:\n", "compute_score", " = ", "import ", "from x import *\n",
    "\"\"\"", "# coding: latin-1\n", "# coding: no-such\n", "async ", "lambda: ", "yield ", "global compute_score\n", "(" * 300, "exec('')\n",
]  # fmt: skip


@fuzz(
    200,
    source=st.lists(st.one_of(st.sampled_from(SOURCES), hostile), max_size=10).map("".join),
    encoding=st.sampled_from(["utf-8", "utf-16", "latin-1"]),
)
def test_reward_functions(shared, source, encoding):
    """It is refused in one sentence or accepted; never run, and never an internal error."""
    path = shared.user_code / "r.py"
    path.write_bytes(source.encode(encoding, "surrogatepass" if encoding == "utf-8" else "backslashreplace"))
    try:
        reward_fn.check_file(
            path, "compute_score", "reward.custom_reward_function.name", f"reward_fn_path={path} (from {SPEC_FILE})"
        )
    except BadInput as refused:
        sentence = str(refused)
    else:
        sentence = f"reward_fn_path={path} (from {SPEC_FILE}) is accepted"
    assert sentence.startswith(f"reward_fn_path={path} (from {SPEC_FILE}) ")
    assert sentence.isprintable()
    assert not Path(CANARY).exists()


# --- what the scripts pass on ------------------------------------------------------------------------------------------

keys = st.sampled_from(
    ["trainer.save_freq", "+trainer.new", "~trainer.logger", "trainer", "algorithm.kl", "+a/b@c", "hydra.run.dir", "hydra/launcher"]
)  # fmt: skip
overrides = st.one_of(
    arguments,
    st.builds("{}={}".format, keys, arguments),
    st.builds(lambda key, value: f"{key}={quoted(value)}", keys, arguments.filter(lambda text: "${" not in text)),
)


@fuzz(80, knob=st.lists(overrides, max_size=2).map(" ".join), lines=st.none() | st.lists(overrides, max_size=2))
def test_overrides(submit, ray, shared, knob, lines):
    file = [] if lines is None else ["OVERRIDES_FILE=my/o.txt"]
    text = None if lines is None else "\n".join(lines).encode("utf-8", "surrogatepass")
    outcome = submit("DRY_RUN=1", f"OVERRIDES={knob}", *file, overrides=text)
    if not is_refused(outcome, "OVERRIDES", "overrides", "command line", "my/o.txt"):
        last = [override.text for override in of_command_line("my/o.txt", (text or b"").decode(), knob)][-1:]
        argv = section(outcome.out, "resolved config")["argv"]
        # The last one wins, recorded as written; one that removes a key may remove an override.
        for one in last:
            filled = one.replace("${shared_root}", str(shared.path))
            assert one.startswith("~") or any(word.endswith(filled) for word in argv)
    assert ray.seen == []


@pytest.mark.parametrize("option", ["SUBMISSION_ID", "CODE_ID", "model", "dataset", "code_id", "--via", "--deadlines"])
@fuzz(
    40,
    given=st.one_of(
        arguments, st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,110}\n?\Z"), st.sampled_from(["latest", "codeA"])
    ),
)
def test_ids_and_names(submit, ray, option, given):
    if option.startswith(("--", "SUB", "CODE")):
        outcome = submit("DRY_RUN=1", f"{option}={given}")
    else:
        outcome = submit("DRY_RUN=1", **{option: given})
    names = {"SUBMISSION_ID": "submission_id", "code_id": "CODE_ID"}
    if (
        not is_refused(outcome, names.get(option, option), "command line", "env_vars and overrides")
        and option == "SUBMISSION_ID"
    ):
        plan = section(outcome.out, "resolved config")
        assert plan["submission_id"] == Path(plan["job_dir"]).name == given
    assert ray.seen == []


@pytest.mark.parametrize("key", ["model", "dataset", "code_path", "reward_fn_path", "shared_root"])
@fuzz(
    50,
    parts=st.lists(st.sampled_from(["tiny", "sums", "codeA", "..", ".", "common", "user", "code", "models", "verl", "reward.py", "link", "inner", "loop", "\n", "etc"]), max_size=4),
    start=st.sampled_from(["", "/", "/etc/", "{root}/", "${{shared_root}}/common/", "${{shared_root}}/user/code/", "../", "~/", "{root}X/"]),
)  # fmt: skip
def test_paths(submit, ray, shared, tmp_path, key, parts, start):
    planted(shared, tmp_path)
    path = start.format(root=shared.path) + "/".join(parts)
    outcome = submit("DRY_RUN=1", spec=json.dumps({"workload": "ppo", key: path}))
    if not is_refused(outcome, key, "CODE_ID", "reward.custom_reward_function.path"):
        plan = section(outcome.out, "resolved config")
        real = [
            os.path.realpath(plan[place]) for place in ("model", "dataset", "code_path", "reward_fn") if plan[place]
        ]
        assert all(Path(path).is_relative_to(shared.path) for path in real) or "not under" in outcome.err, real
    assert ray.seen == []


def planted(shared, tmp_path):
    """Links wherever other users may write: out of the shared root, inside it, and in a circle."""
    if (tmp_path / "outside").exists():
        return
    for name in ("config.json", "train.parquet", "test.parquet", "snapshot.json", "verl/__init__.py", "reward.py"):
        write(tmp_path / "outside" / name, "{}")
    for home in (shared.models, shared.datasets, shared.snapshots, shared.user_code):
        (home / "link").symlink_to(tmp_path / "outside")
        (home / "loop").symlink_to(home / "loop")
    (shared.models / "inner").symlink_to(shared.models / "tiny")
    write(shared.user_code / "reward.py", "def compute_score(**_): ...\n")
    config = shared.snapshots / "codeA" / "verl" / "trainer" / "config" / "ppo_trainer.yaml"
    config.write_text(config.read_text() + REWARD_CONFIG)
    record(shared.snapshots / "codeA")


# --- knobs and words, read by Bash -------------------------------------------------------------------------------------

TYPES = {
    knob: re.sub("(, typed)?, for .*", "", kind)
    for kind, knob in re.findall(r"^#: (.*)\n([A-Z0-9_]+)=", (REPO / "env" / "defaults.env").read_text(), re.MULTILINE)
}
KNOBS = list(TYPES)


class Reader:
    """One Bash that answers each request (tests/fuzz_reader.bash) in a copy of the repository."""

    def __init__(self, directory):
        self.repo, self.box, self.said = directory / "the repo", directory / "box", directory / "said"
        self.box.mkdir()
        for part in ("scripts", "env", "jobspecs"):
            shutil.copytree(REPO / part, self.repo / part)
        for part in ("py", "judge/verl_verdict", "rehearsal/verl_rehearsal"):
            write(self.repo / part / "some.py", "")
        shutil.copy(REPO / "tests" / "fuzz_reader.bash", self.repo / "scripts")
        self.profile = (self.repo / "env" / "cpu.env").read_bytes()
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.box),
            "NO_COLOR": "1",
            "SAID": str(self.said),
            "MAKE_GIVEN": " ".join(KNOBS),
        }
        self.process = subprocess.Popen(
            ["bash", self.repo / "scripts" / "fuzz_reader.bash"],
            cwd=self.box, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def ask(self, kind, *fields):
        """The outcome, and the fields as the script has them from then on."""
        before = sorted(self.box.iterdir())
        self.process.stdin.write(b"\0".join([kind.encode(), b"%d" % len(fields), *fields, b""]))
        self.process.stdin.flush()
        status = b""
        while (byte := self.process.stdout.read(1)) != b"\0":
            assert byte, f"the reader ended, saying {self.said.read_bytes()!r}"
            status += byte
        created = [] if sorted(self.box.iterdir()) == before else ["something"]
        captured = SimpleNamespace(out="", err=self.said.read_text(encoding="ascii", errors="replace"))
        return Outcome(int(status), captured, created), self.said.with_name("said.out").read_bytes().split(b"\0")[:-1]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    one = Reader(tmp_path_factory.mktemp("reader"))
    yield one
    one.process.stdin.close()
    one.process.wait()
    assert not list(one.repo.rglob(CANARY))


def as_bytes(text):
    """The bytes that an environment variable or an argument can hold."""
    return text.replace("\0", "").encode("utf-8", "surrogatepass")


def typed(known):
    """Known words, words close to them, and anything."""
    near = st.builds(
        lambda word, at, piece: word[: at % (len(word) + 1)] + piece + word[at % (len(word) + 1) + (piece == "") :],
        st.sampled_from(known), st.integers(0, 30), st.sampled_from(["", "", "_", "-", "X", *PIECES]),
    )  # fmt: skip
    return st.one_of(st.sampled_from(known), near, near, hostile)


line = st.one_of(
    st.builds("{}={}".format, st.sampled_from(KNOBS * 3 + ["BASH_ENV", "PATH", "IFS", "SECONDS", "REPO_DIR", "FOO", "A[0]", ""]), arguments),
    st.builds("{}={}".format, st.sampled_from(["MODEL", "OVERRIDES", "SUBMISSION_ID", "CODE_ID", "JOB"]), arguments), arguments,
).map(lambda text: as_bytes(text.replace("\n", " ").rstrip("\r")))  # fmt: skip
lines = st.lists(line, max_size=4).map(b"\n".join)


@fuzz(80, local=lines, profile=st.one_of(st.just(b""), lines))
def test_env_files(reader, local, profile):
    (reader.repo / "env" / "local.env").write_bytes(local)
    (reader.repo / "env" / "cpu.env").write_bytes(profile + b"\n" + reader.profile)
    outcome, fields = reader.ask("files", *(knob.encode() for knob in KNOBS))
    (reader.repo / "env" / "local.env").unlink()
    if is_refused(outcome, "env/local.env", "env/cpu.env", "TRANSPORT"):
        return
    knobs = dict(field.split(b"=", 1) for field in fields)
    # The first line that sets a knob wins; the user's own file comes before the profile's.
    given = [one.partition(b"=") for one in reversed([*local.split(b"\n"), *profile.split(b"\n")]) if b"=" in one]
    for name, value in {name: value for name, _, value in given if name in knobs}.items():
        if TYPES[name.decode()] in ("free", "one of auto docker podman") and name != b"PROFILE":
            assert knobs[name] == value


GOOD = [
    "1", "true", "Yes", "0", "OFF", "", "2", "99", "1023", "1024", "65536", "-1", "08", "2gb", "1.5g", "memory", "ppo", "cpu", "container", "synthetic",
    "path:/a b", "pypi:0.7.1", "git:x@y", "hub:a/b@c", "codeA", "1:1", "head,rules", '{"worker_node": 1}', '{"worker_node": 0}', "/private",
    "/dev/kfd /dev/dri", "https://x", f"a[$(touch {CANARY})]", f"x;touch {CANARY}", "x" * 5_000,
]  # fmt: skip


def is_taken(kind, value):
    """Does that type accept the value? A second definition of what scripts/lib/knob.bash says; None where it has none."""
    if kind.endswith(" or empty"):
        return value == "" or is_taken(kind.removesuffix(" or empty"), value)
    name, _, rest = kind.partition(" ")
    if name in ("free", "path", "file"):
        return name == "free" or value != ""
    if name == "boolean":
        return value.lower() in {"1", "true", "yes", "on", "0", "false", "no", "off", ""} and value.isascii()
    if name == "whole":
        low, high = map(int, rest.split(".."))
        return re.fullmatch(r"0|-?[1-9][0-9]{0,14}", value, re.ASCII) is not None and low <= int(value) <= high
    if name == "list":
        chosen = re.split(r" *, *| ", value)
        return set(chosen) <= set(rest.removeprefix("of ").split())
    if name == "one" and not re.search("[*…]|CODE_ID", rest):
        return value in rest.removeprefix("of ").split()
    return None


@fuzz(500, knob=st.sampled_from(KNOBS), value=st.one_of(typed(GOOD), typed(GOOD), hostile))
def test_knob_values(reader, knob, value):
    given = as_bytes(value)
    outcome, fields = reader.ask("knobs", knob.encode() + b"=" + given)
    kind = TYPES[knob]
    expected = is_taken(kind, given.decode("utf-8", "surrogateescape"))
    if is_refused(outcome, knob):
        assert expected in (False, None), f"{knob} ({kind}) refused {given!r}"
        return
    assert expected in (True, None), f"{knob} ({kind}) took {given!r}"
    if kind == "boolean":
        given = b"1" if given.lower() in (b"1", b"true", b"yes", b"on") else b""
    assert fields == [knob.encode() + b"=" + given]


ARGUMENTS = [
    "--help", "-h", "--name", "--engine", "lint", "unit", "...", "[JOBSPEC]", "x.yaml", "my dir/x.yaml", "DRY_RUN=1", "KEEP=1", f"WANDB_API_KEY={SECRET}",
    f"--token={SECRET}", "", "-", "--", "*", f"x.yaml;touch {CANARY}",
]  # fmt: skip


@pytest.mark.parametrize(
    "declared", ["", "--name", "--engine --stop-engine", "[JOBSPEC]", "lint unit contract rules py ..."]
)
@fuzz(70, arguments=st.lists(typed(ARGUMENTS).map(as_bytes), min_size=1, max_size=3))
def test_script_arguments(reader, declared, arguments):
    outcome, fields = reader.ask("arguments", declared.encode(), *arguments)
    if b"-h" in arguments or b"--help" in arguments:
        assert outcome.status == 0
        return

    def is_known(argument):
        if declared == "[JOBSPEC]" and not argument.startswith(b"-") and not re.match(rb"[A-Z][A-Z0-9_]*=", argument):
            return argument != b""
        return argument != b"" and argument in declared.encode().removesuffix(b" ...").split()

    takes_many = declared.endswith("...")
    if is_refused(outcome, "70_gc.sh"):
        assert SECRET not in outcome.err or not any(b"=" in argument for argument in arguments)
        assert not all(map(is_known, arguments)) or (len(arguments) > 1 and not takes_many)
    else:
        assert all(map(is_known, arguments))
        assert len(arguments) == 1 or takes_many
        assert fields == arguments


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Runs our Makefile's target `status` with those words: the environment of its script, as bytes."""
    repo, seen = tmp_path_factory.mktemp("make"), tmp_path_factory.mktemp("seen") / "environment"
    shutil.copy(REPO / "Makefile", repo)
    write(repo / "env" / "defaults.env", (REPO / "env" / "defaults.env").read_text())
    for script in ("50_status", "dev/help"):
        write(repo / "scripts" / f"{script}.sh", f'#!/bin/sh\nenv -0 >"{seen}"\n').chmod(0o755)
    paths = sorted(repo.rglob("*"))

    def run(*given):
        seen.unlink(missing_ok=True)
        subprocess.run(
            ["make", "-s", "status", *given], cwd=repo, env={"PATH": os.environ["PATH"]}, capture_output=True, check=False
        )  # fmt: skip
        assert seen.exists(), "no script ran"
        return dict(entry.split(b"=", 1) for entry in seen.read_bytes().split(b"\0") if entry)

    yield run
    assert sorted(repo.rglob("*")) == paths


UNKNOWN = [
    "WANDB_API_KEY",
    "HF_TOKEN",
    "FOO",
    "given",
    "knobs",
    "targets",
    "MAKE_UNKNOWN_KNOBS",
    "unknown",
    "typed",
    "v",
]
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
    SECRET,
    *PIECES,
]


@fuzz(
    200,
    given=st.dictionaries(
        st.sampled_from(KNOBS + UNKNOWN),
        st.one_of(hostile, st.lists(st.sampled_from(IN_MAKE), max_size=4).map("".join)),
        max_size=3,
    ),
)
def test_make_command_lines(make, given):
    given = {name.encode(): as_bytes(value) for name, value in given.items()}
    seen = make(*(name + b"=" + value for name, value in given.items()))
    unknown = {name for name in given if name.decode() in UNKNOWN}
    assert set(seen[b"MAKE_UNKNOWN_KNOBS"].split()) == unknown
    for name in given.keys() - unknown:
        # make drops spaces before a value and changes nothing else.
        assert seen[name] == given[name].lstrip(b" \t\n\v\f\r"), name
    assert not unknown & (seen.keys() - {b"MAKE_UNKNOWN_KNOBS"})
