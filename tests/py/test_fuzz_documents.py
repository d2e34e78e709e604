"""JobSpec and Ray base config, any text and structure: one sentence and status 2, or a plan with the values as given."""

import json
from pathlib import Path

import pytest
import yaml
from conftest import BASE, SPEC
from fuzzing import CANARY, PIECES, fuzz, hostile, is_refused, numbers, scalars, structures
from hypothesis import assume
from hypothesis import strategies as st

from verl_regress.base.errors import BadInput
from verl_regress.spec import reward_fn

SPEC_FILE, BASE_FILE = "my/ppo.yaml", "env/ray/cpu.yaml"
SPEC_KEYS = [
    "submission_id", "workload", "shared_root", "code_id", "code_path", "model", "dataset", "reward_fn_path", "ray", "address",
    "resources", "entrypoint_num_cpus", "entrypoint_resources", "worker_node", "trainer_overrides", "env_vars",
    "secrets", "name", "file",
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
    "model: !!int x\n", "model: !!float ''\n", "model: !!timestamp x\n", "model: 2026-99-99\n", "model: 2026-01-01\n", "model: 1:99\n",
    "? [a, b]\n: c\n", "? {a: b}\n: c\n", "1: 2\n", "null: 1\n", "NO: x\n", "workload: grpo\n", "%YAML 9.9\n---\n", "---\n", "...\n",
    "--- a\n--- b\n", "model: |\n  a\n", "model: >-\n  a\n", "\tmodel: x\n", "model:\tx\n", "model: [\n", "model: 'a\n", "- a\n", "\ufeff",
    "\r", "\x00", "# comment\n", "model: 0o7_7\n", "ray: {address: http://x}\n", "model: \"\\ud800\"\n", "resources: {entrypoint_num_cpus: .nan}\n",
    "resources: {entrypoint_num_cpus: .inf}\n", "resources: {entrypoint_resources: {worker_node: 1.5}}\n", f"model: 0x{'F' * 5_000}\n", "[" * 3_000, "{a: " * 1_000, "a:\n" * 50,
]  # fmt: skip


def texts(valid):
    """A valid document with random text inserted, or tricks before, in and after it, or no document at all."""

    def mixed(pieces, at):
        return "".join([valid[:at], *pieces, valid[at:]])

    pieces = st.lists(st.one_of(st.sampled_from(TRICKS), hostile), max_size=3)
    near = st.builds(mixed, pieces, st.one_of(st.just(len(valid)), st.integers(0, len(valid))))
    encodings = st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"])
    encoded = st.builds(lambda text, how: text.encode(how, "backslashreplace"), st.one_of(near, hostile), encodings)
    return st.one_of(
        encoded,
        near.map(lambda text: text.replace("\n", "\r\n").encode("utf-8", "surrogatepass")),
        st.binary(max_size=40),
    )


@fuzz("JobSpec, any text", text=texts(SPEC))
def test_random_text_as_jobspec(submit, ray, text):
    is_refused(submit("--dry-run", spec=text), SPEC_FILE)
    assert ray.seen == []


@fuzz("Ray base config, any text", text=texts(BASE))
def test_random_text_as_ray_base_config(submit, ray, text):
    is_refused(submit("--dry-run", base=text.decode("utf-8", "replace")), BASE_FILE)
    assert ray.seen == []


def changed(valid, keys):
    """A valid document with some values replaced or keys added, or any structure at all."""
    more = st.dictionaries(st.sampled_from(keys), structures(keys), max_size=3)
    odd = st.sampled_from(
        ["model", "dataset", "code_id", "submission_id", "env_vars", "trainer_overrides", "resources"]
    )
    exchanged = st.one_of(
        more,
        st.dictionaries(
            odd,
            st.one_of(scalars, st.lists(scalars, max_size=3), st.dictionaries(hostile, scalars, max_size=3)),
            max_size=2,
        ),
    )
    return st.one_of(exchanged.map(lambda values: {**valid, **values}), structures(keys))


def written(document, as_yaml):
    return yaml.safe_dump(document) if as_yaml else json.dumps(document)


@fuzz("JobSpec, any structure", document=changed({"workload": "ppo"}, SPEC_KEYS), as_yaml=st.booleans())
def test_random_structure_as_jobspec(submit, ray, document, as_yaml):
    text = written(document, as_yaml)
    is_refused(submit("--dry-run", spec=text.encode("utf-8", "surrogatepass")), SPEC_FILE)
    assert ray.seen == []


names = st.one_of(
    st.from_regex(r"\A[A-Z_][A-Z0-9_]{0,40}\Z"),
    hostile,
    st.sampled_from(["PATH", "PYTHONPATH", "HF_HOME", "RAY_ADDRESS"]),
)
secrets = st.lists(
    st.fixed_dictionaries({"name": st.one_of(names, scalars)}, optional={"file": st.one_of(hostile, scalars)}),
    max_size=3,
)


@fuzz("secrets, names and files", secrets=st.one_of(secrets, scalars))
def test_random_names_of_secrets(submit, ray, secrets):
    outcome = submit("--dry-run", spec=json.dumps({"workload": "ppo", "secrets": secrets}))
    if not is_refused(outcome, SPEC_FILE, "secret"):
        assert section(outcome.out, "resolved config")["secrets"] == [secret["name"] for secret in secrets]
    assert ray.seen == []


@fuzz("Ray base config, any structure", document=changed(yaml.safe_load(BASE), BASE_KEYS), as_yaml=st.booleans())
def test_random_structure_as_ray_base_config(submit, ray, document, as_yaml):
    text = written(document, as_yaml)
    assume("\ud800" not in text)
    is_refused(submit("--dry-run", base=text), BASE_FILE)
    assert ray.seen == []


def section(out, title):
    """A JSON section of the dry run."""
    return json.JSONDecoder().raw_decode(out.split(f"# {title}\n", 1)[1])[0] if f"# {title}\n" in out else {}


def quoted(text):
    """Hydra's own way to write any text (1.3, hydra._internal.grammar.utils)."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(text, Quote.single).with_quotes()


# No environment or argv can contain NUL, no file half a surrogate pair; the two that follow are refused or filled in on
# purpose.
values = hostile.filter(lambda text: not {"\x00", "\ud800"} & set(text) and "${" not in text)


@fuzz(
    "JobSpec, hostile values",
    env_vars=st.dictionaries(st.from_regex(r"\A[A-Z_][A-Z0-9_]{3,9}\Z").map("X_".__add__), values, max_size=3),
    # NEL is a line break in YAML, the format in which verl's own config is recorded.
    override=values.filter(lambda text: "\x85" not in text),
    cpus=numbers.filter(lambda number: 0 <= number <= 1_000_000),
    as_yaml=st.booleans(),
)
def test_jobspec_values_arrive_unchanged(submit, ray, env_vars, override, cpus, as_yaml):
    text = f"trainer.project_name={quoted(override)}"
    document = {
        "workload": "ppo",
        "env_vars": env_vars,
        "trainer_overrides": [text],
        "resources": {"entrypoint_num_cpus": cpus},
    }
    outcome = submit("--dry-run", spec=written(document, as_yaml))
    assert not is_refused(outcome, SPEC_FILE), outcome.err
    plan = section(outcome.out, "resolved config")
    assert text in plan["argv"]
    assert plan["entrypoint_num_cpus"] == cpus
    reaches = section(outcome.out, "runtime_env")["env_vars"] | section(
        outcome.out, "environment that the hook env_vars sets"
    )
    assert {name: reaches[name] for name in env_vars} == env_vars
    composed = outcome.out.split("# verl's config\n", 1)[1].split("\n# runtime_env\n", 1)[0]
    assert yaml.safe_load(composed)["trainer"]["project_name"] == override
    assert ray.seen == []


SOURCES = [
    "def compute_score", "(", ")", ":", "\n", "    ", "return 1\n", "class A:\n", "compute_score", " = ", "import ", "from x import *\n",
    "\"\"\"", "# coding: latin-1\n", "# coding: no-such\n", "async ", "lambda: ", "yield ", "await ", "global compute_score\n", "(" * 300,
    "exec('')\n",
]  # fmt: skip
sources = st.lists(st.one_of(st.sampled_from(SOURCES), hostile), max_size=10).map("".join)


@fuzz("reward functions, any text", source=sources, encoding=st.sampled_from(["utf-8", "utf-8", "utf-16", "latin-1"]))
def test_random_text_as_reward_function(shared, source, encoding):
    """It is refused in one sentence or accepted; never run, and never an internal error."""
    path = shared.user_code / "r.py"
    path.write_bytes(source.encode(encoding, "surrogatepass" if encoding == "utf-8" else "backslashreplace"))
    function = reward_fn.Function(str(path), "compute_score", "reward.custom_reward_function")
    try:
        reward_fn.check_function(shared, function, path, SPEC_FILE, ())
    except BadInput as refused:
        sentence = str(refused)
    else:
        sentence = f"reward_fn_path={path} (from {SPEC_FILE}) is taken."
    assert sentence.startswith(f"reward_fn_path={path} (from {SPEC_FILE}) ")
    assert sentence.isprintable()
    assert sentence.endswith(".")
    assert not Path(CANARY).exists()


@pytest.mark.parametrize("piece", PIECES)
def test_every_hostile_piece_can_be_written_as_json(piece):
    """A piece that neither YAML nor JSON can write would be tried in neither."""
    assert json.loads(json.dumps(piece)) == piece
