"""Overrides, ids, names and paths from the scripts: refused with one sentence and status 2, or taken exactly as given."""

import json
import os
from pathlib import Path

from conftest import REWARD_CONFIG, record, write
from fuzzing import fuzz, hostile, is_refused, long
from hypothesis import strategies as st
from test_fuzz_documents import quoted, section

from verl_regress.spec.overrides import words

# What no process can be given as an argument; bytes that are not UTF-8 come in as halves of surrogate pairs.
arguments = st.one_of(hostile, hostile, long).filter(lambda text: "\x00" not in text)
keys = st.sampled_from(
    [
        "trainer.save_freq",
        "+trainer.new",
        "++trainer.new",
        "~trainer.logger",
        "trainer",
        "algorithm.kl",
        "+a/b@c",
        "hydra.run.dir",
        "hydra/launcher",
    ]
)
overrides = st.one_of(
    arguments,
    st.builds("{}={}".format, keys, arguments),
    st.builds(lambda key, value: f"{key}={quoted(value)}", keys, arguments.filter(lambda text: "${" not in text)),
)


@fuzz(
    "overrides, OVERRIDES and OVERRIDES_FILE",
    knob=st.lists(overrides, max_size=2).map(" ".join),
    lines=st.none() | st.lists(overrides, max_size=2),
)
def test_overrides(submit, ray, shared, knob, lines):
    file = [] if lines is None else ["--overrides-name=my/o.txt"]
    text = None if lines is None else "\n".join(lines).encode("utf-8", "surrogatepass")
    outcome = submit("--dry-run", f"--overrides={knob}", *file, overrides=text)
    if not is_refused(outcome, "OVERRIDES", "overrides", "command line", "my/o.txt"):
        written = [] if text is None else text.decode().replace("\r\n", "\n").split("\n")
        last = [*(line for line in written if line.strip() and not line.startswith("#")), *words(knob)][-1:]
        argv = section(outcome.out, "resolved config")["argv"]
        # The last one wins, recorded as written; one that removes a key may remove an override.
        for one in last:
            filled = one.replace("${shared_root}", str(shared.path))
            assert one.startswith("~") or any(word.endswith(filled) for word in argv)
    assert ray.seen == []


ids = st.one_of(
    arguments, st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,110}\n?\Z"), st.sampled_from(["latest", "codeA", "mine"])
)


@fuzz(
    "ids and names on the command line",
    option=st.sampled_from(["--submission-id", "--code-id", "model", "dataset", "code_id", "--via", "--deadlines"]),
    given=ids,
)
def test_ids_and_names(submit, ray, option, given):
    if option.startswith("--"):
        outcome = submit("--dry-run", f"{option}={given}")
    else:
        outcome = submit("--dry-run", **{option: given})
    names = {"--submission-id": "submission_id", "--code-id": "CODE_ID", "code_id": "CODE_ID"}
    if not is_refused(outcome, names.get(option, option), "command line"):
        plan = section(outcome.out, "resolved config")
        if option == "--submission-id":
            assert plan["submission_id"] == given
            assert Path(plan["job_dir"]).name == given
    assert ray.seen == []


@fuzz(
    "paths",
    key=st.sampled_from(["model", "dataset", "code_path", "reward_fn_path", "shared_root"]),
    parts=st.lists(
        st.sampled_from(
            [
                "tiny",
                "sums",
                "codeA",
                "..",
                ".",
                "",
                "common",
                "user",
                "code",
                "models",
                "datasets",
                "verl",
                "reward.py",
                "link",
                "inner",
                "loop",
                "\n",
                "etc",
            ]
        ),
        max_size=4,
    ),
    start=st.sampled_from(
        [
            "",
            "/",
            "/etc/",
            "{root}/",
            "${{shared_root}}/common/",
            "${{shared_root}}/user/code/",
            "{root}/common/code/verl/",
            "../",
            "~/",
            "{root}X/",
        ]
    ),
)
def test_paths(submit, ray, shared, tmp_path, key, parts, start):
    planted(shared, tmp_path)
    given = start.format(root=shared.path) + "/".join(parts)
    outcome = submit("--dry-run", spec=json.dumps({"workload": "ppo", key: given}))
    if not is_refused(outcome, key, "CODE_ID"):
        plan = section(outcome.out, "resolved config")
        real = [os.path.realpath(plan[place]) for place in ("model", "dataset", "code_path") if plan[place]]
        real += [os.path.realpath(plan["reward_fn"])] if plan["reward_fn"] else []
        assert all(Path(path).is_relative_to(shared.path) for path in real), real
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
