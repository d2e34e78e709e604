"""User errors: one sentence with the value, where it came from and the cure; status 2; nothing created."""

import re

import pytest
from shared_fixtures import BASE, SPEC, TRAINER
from wording import THEIRS

from verl_regress.cluster import ray_internals

pytestmark = pytest.mark.slow

FILE = "my/ppo.yaml"
ID = "it must match ^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$, or leave it out to get a generated one."
KEYS = (
    "known keys are code_id, code_path, dataset, env_vars, model, ray, resources, reward_fn_path, secrets, shared_root, "
    "submission_id, trainer_overrides, workload."
)
FIXED = "is refused: a job writes only into its own directory; leave it out."
NOT_HYDRA = "is not Hydra's key=value: write it as a.b.c=value."
MAKE = ", a value with spaces in quotes."
TOO_MANY = "is not usable, because its aliases make more than 100,000 values: write fewer."
HEAD = "would let the driver run on the head: it must be above 0, usually 1."


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            "workload: pppo\n",
            f"workload in {FILE} is not usable, because 'pppo' is not one of ['ppo', 'grpo', 'sft']: write ppo.",
        ),
        ("model: tiny\n", f"{FILE} lacks the key 'workload' in the document: add it."),
        (
            f"{SPEC}trainer_override: []\n",
            f"{FILE} has the unknown key 'trainer_override' in the document: did you mean 'trainer_overrides'? {KEYS}",
        ),
        (
            f"{SPEC}env_vars: {{FOO: 1}}\n",
            f"env_vars.FOO in {FILE} is not usable, because 1 is not of type 'string': put it in quotes, as in FOO: \"…\".",
        ),
        ("", f"{FILE} is not a mapping of keys to values: write key: value lines."),
        (
            f"{SPEC}resources: {{entrypoint_num_cpus: -1}}\n",
            f"resources.entrypoint_num_cpus in {FILE} is not usable, because -1 is less than the minimum of 0: give at least 0.",
        ),
        (
            f"{SPEC}workload: ppo\n",
            f"{FILE} is not YAML or JSON at line 2 (the key 'workload' occurs twice): fix that line.",
        ),
        (
            f"{SPEC}env_vars: {{NO: x}}\n",
            f"{FILE} is not YAML or JSON at line 2 (the key False is not text on one line, put it in quotes): fix that line.",
        ),
        (
            f"{SPEC}model: [\n",
            f"{FILE} is not YAML or JSON at line 3 ({THEIRS}): fix that line.",
        ),
        (b"workload: \xff\n", f"{FILE} is not UTF-8 (byte 10): save it as UTF-8."),
        (
            f"{SPEC}submission_id: ../x\n",
            f"submission_id in {FILE} is not usable, because '../x' does not match '^[A-Za-z0-9][A-Za-z0-9_.-]{{0,99}}$': use letters, digits, '_', '.' and '-', at most 100.",
        ),
        (f"{SPEC}code_id: a\ncode_path: /b\n", f"{FILE} gives both code_id and code_path: give one of them."),
        (
            f"{SPEC}env_vars: {{A-B: x}}\n",
            f"env_vars in {FILE} is not usable, because 'A-B' does not match '^[A-Za-z_][A-Za-z0-9_]*$': use letters, digits and _, the first no digit.",
        ),
        (
            f"{SPEC}env_vars: {{CUDA_VISIBLE_DEVICES: '0'}}\n",
            f"env_vars.CUDA_VISIBLE_DEVICES='0' (from {FILE}) is refused: Ray gives each process its own GPUs, and this "
            "would pin them all to the same; leave it out.",
        ),
        (
            f"{SPEC}env_vars: {{RAY_ADDRESS: '1.2.3.4:6379'}}\n",
            f"env_vars.RAY_ADDRESS='1.2.3.4:6379' (from {FILE}) is refused: the job finds its cluster by itself; leave it out.",
        ),
        (
            f"{SPEC}env_vars: {{VERL_FILE_LOGGER_PATH: /x}}\n",
            f"env_vars.VERL_FILE_LOGGER_PATH='/x' (from {FILE}) {FIXED}",
        ),
        (
            f"{SPEC}env_vars: {{PYTHONPATH: '/x:${{PYTHONPATH}}'}}\n",
            f"env_vars.PYTHONPATH='/x:${{PYTHONPATH}}' (from {FILE}) is refused: Python reads it as it starts, when "
            "Ray has filled in $, perhaps with nothing; leave it out.",
        ),
        (
            f"{SPEC}env_vars: {{HF_TOKEN: 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}}\n",
            f"env_vars.HF_TOKEN (from {FILE}) looks like a secret, which Ray and the job's files show as plain text: write secrets: "
            "[{name: HF_TOKEN}] in the JobSpec instead (an override for verl reads it as ${oc.env:NAME}), or set ALLOW_PLAIN_SECRETS=1.",
        ),
        *(
            (f"{SPEC}trainer_overrides: [{text!r}]\n", f"The override {text!r} (from {FILE}) {NOT_HYDRA}")
            for text in ("word", "=1", "a b=1", "", "?trainer.save_freq=1")
        ),
        *(
            (f"{SPEC}trainer_overrides: [{text!r}]\n", f"The override {text!r} (from {FILE}) {FIXED}")
            for text in (
                "trainer.default_local_dir=/x",
                "++trainer.default_local_dir=/x",
                "~trainer.default_local_dir",
                "trainer={default_local_dir: /x}",
                "hydra.run.dir=/x",
                "hydra={run: {dir: /x}}",
            )
        ),
        (
            f"{SPEC}resources: {{entrypoint_resources: {{worker_node: 0}}}}\n",
            f"entrypoint_resources.worker_node=0 (from {FILE}) {HEAD}",
        ),
        (
            f"{SPEC}resources: {{entrypoint_resources: {{worker_node: .nan}}}}\n",
            f"worker_node in {FILE} is nan, which is not finite: give a number.",
        ),
    ],
)
def test_a_jobspec_that_cannot_be_used(submit, ray, spec, sentence):
    assert submit(spec=spec).is_refusal(sentence)
    assert ray.seen == []


def test_shell_text_in_a_field_of_the_jobspec_is_named_by_its_field(submit):
    assert submit(spec=f"{SPEC}model: $(touch x)\n").is_refusal(
        f"model=$(touch x) (from {FILE}) has $(touch x), which only your shell fills in: write its value."
    )


@pytest.mark.parametrize(
    ("base", "sentence"),
    [
        (
            BASE.replace("worker_node: 1", "worker_node: 0"),
            f"entrypoint_resources.worker_node=0 (from env/ray/cpu.yaml) {HEAD}",
        ),
        (
            BASE.replace("worker_node: 1", "other: 1"),
            f"entrypoint_resources.worker_node=nothing (from env/ray/cpu.yaml) {HEAD}",
        ),
        (
            BASE.replace("TORCHDYNAMO_DISABLE", "CUDA_VISIBLE_DEVICES"),
            "env_vars.CUDA_VISIBLE_DEVICES='1' (from env/ray/cpu.yaml) is refused: Ray gives each process its own GPUs, "
            "and this would pin them all to the same; leave it out.",
        ),
        (
            BASE.replace("trainer.device=cpu", "trainer.default_local_dir=/x"),
            f"The override 'trainer.default_local_dir=/x' (from env/ray/cpu.yaml) {FIXED}",
        ),
        (
            BASE.replace("entrypoint_num_cpus", "entrypoint_cpus"),
            "env/ray/cpu.yaml has the unknown key 'entrypoint_cpus' in the document: did you mean 'entrypoint_num_cpus'? "
            "known keys are address, deterministic, entrypoint_num_cpus, entrypoint_resources, python_layers, runtime_env, trainer_overrides.",
        ),
        (
            BASE.replace("ADDRESS", "ray:8265"),
            "address in env/ray/cpu.yaml is not usable, because 'ray:8265' does not match '^https?://': write it as http://HOST:PORT.",
        ),
    ],
)
def test_a_ray_base_config_that_cannot_be_used(submit, base, sentence):
    assert submit(base=base).is_refusal(sentence)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["SUBMISSION_ID="], f"submission_id '' (from SUBMISSION_ID on the command line) is not usable: {ID}"),
        (
            ["SUBMISSION_ID=../x"],
            f"submission_id '../x' (from SUBMISSION_ID on the command line) is not usable: {ID}",
        ),
        (["SUBMISSION_ID=a b"], f"submission_id 'a b' (from SUBMISSION_ID on the command line) is not usable: {ID}"),
        (
            ["SUBMISSION_ID=" + "a" * 300],
            f"submission_id '{'a' * 40}… (300 characters)' (from SUBMISSION_ID on the command line) is not usable: {ID}",
        ),
        (["OVERRIDES=word"], f"The override 'word' (from OVERRIDES) {NOT_HYDRA[:-1]}{MAKE}"),
        (
            ["OVERRIDES=trainer.default_local_dir=/x"],
            f"The override 'trainer.default_local_dir=/x' (from OVERRIDES) {FIXED}",
        ),
        (
            ["--via=mail"],
            f"run.py submit: argument --via: {THEIRS} 'mail' {THEIRS} (see --help).",
        ),
    ],
)
def test_a_command_line_that_cannot_be_used(submit, args, sentence):
    assert submit(*args).is_refusal(sentence)


# promise: trains on a snapshot that was changed or removed
def test_a_code_id_without_a_snapshot_says_which_exist(submit, shared):
    cure = "make one with 'make snapshot CODE_ID=codeX VERL_SOURCE=…' or use one of: codeA, codeB."
    for args, spec, code_id, origin in (
        (["CODE_ID=codeX"], SPEC, "codeA", "the command line"),
        ([], f"{SPEC}code_id: codeX\n", "codeA", FILE),
        ([], f"{SPEC}code_path: {shared.snapshots}/codeX\n", "codeA", FILE),
        ([], SPEC, "codeX", "the knob CODE_ID"),
    ):
        assert submit(*args, spec=spec, code_id=code_id).is_refusal(
            f"CODE_ID=codeX (from {origin}) has no snapshot under {shared.snapshots}: {cure}"
        )


@pytest.mark.parametrize("tail", ["", "/../verl/codeA", "/codeA/..", "/codeA/verl", "X/codeA"])
def test_a_code_path_outside_the_snapshots(submit, shared, tail):
    path = f"{shared.snapshots}{tail}"
    assert submit(spec=f"{SPEC}code_path: {path}\n").is_refusal(
        f"code_path={path} (from {FILE}) is not a snapshot: it must be a folder of ${{shared_root}}/common/code/verl."
    )


def test_another_shared_root(submit, shared):
    assert submit(spec=f"{SPEC}shared_root: /mnt/other\n").is_refusal(
        f"shared_root=/mnt/other (from {FILE}) is not this cluster's {shared.path} (SHARED_ROOT): "
        "leave it out, or set SHARED_ROOT and bring the cluster up again."
    )


def test_a_workload_and_a_jobspec_for_another(submit):
    assert submit("WORKLOAD=ppo").status == 0
    assert submit("WORKLOAD=sft").is_refusal(
        f"WORKLOAD=sft (from the command line or environment), but {FILE} is for ppo: leave one of them out."
    )


@pytest.mark.parametrize(
    ("given", "what", "origin", "lacks"),
    [
        ({"dataset": "none"}, "dataset", "the knob DATASET", "datasets/none/train.parquet"),
        ({"spec": f"{SPEC}dataset: none\n"}, "dataset", FILE, "datasets/none/train.parquet"),
        ({"model": "none"}, "model", "the knob MODEL", "common/models/none/config.json"),
    ],
)
def test_an_input_that_is_missing(submit, shared, given, what, origin, lacks):
    assert submit(**given).is_refusal(
        f"{what}=none (from {origin}) is not usable, because {shared.path}/{lacks} is missing: "
        f"run 'make prepare', or name another {what}."
    )


def test_an_input_that_a_worker_lacks(submit, monkeypatch, tmp_path):
    """Before: the launcher of a node that lacked it trained on, for minutes."""
    file = f"{tmp_path}/own.parquet"
    asked = []

    def missing_on(gcs, node_ids, paths, _timeout):
        asked.append((gcs, len(node_ids), paths))
        return {node_ids[0]: paths}

    monkeypatch.setattr(ray_internals, "missing_on", missing_on)
    refused = submit(f"OVERRIDES=data.val_files={file}")
    assert (refused.status, refused.created) == (2, [])
    assert refused.err.splitlines()[-1] == (
        f"error   data.val_files={file} (from OVERRIDES) is missing on worker-0: put it on the shared root, which every node has, or on every worker."
    )
    assert asked == [("auto", 1, [file])]
    monkeypatch.setattr(ray_internals, "missing_on", lambda *_: {})
    assert submit(f"OVERRIDES=data.val_files={file}").status == 0


def test_a_cluster_that_is_down(submit, ray):
    ray.goes_away()
    assert submit().is_refusal(
        f"Ray does not answer at {ray.address} as seen from the head ([Errno 111] Connection refused): bring the cluster "
        "up with 'make up'.",
        status=8,
    )


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            f"{SPEC}model: !!python/object/apply:os.system ['touch x']\n",
            f"{FILE} is not YAML or JSON at line 2 ({THEIRS}): fix that line.",
        ),
        (f"{SPEC}ray: &a {{address: *a}}\n", f"{FILE} {TOO_MANY}"),
        (
            f"{SPEC}model: 0x{'f' * 6000}\n",
            f"model in {FILE} is a whole number of more than 64 bits: no value of it needs that.",
        ),
        (
            f"{SPEC}a: &a [{'x, ' * 99}]\nb: &b [{'*a, ' * 99}]\nc: [{'*b, ' * 99}]\n",
            f"{FILE} {TOO_MANY}",
        ),
        (f'{SPEC}model: "a\\0b"\n', f"model in {FILE} has a NUL character or half of a surrogate pair: leave it out."),
        (
            f"{SPEC}resources: {{entrypoint_num_cpus: 10000000000}}\n",
            f"resources.entrypoint_num_cpus in {FILE} is not usable, because 10000000000 is greater than the maximum of 1000000: give at most 1000000.",
        ),
        (
            f"{SPEC}trainer_overrides: ['{'x' * 5000}']\n",
            f"The override '{'x' * 199}… (5002 characters) (from {FILE}) {NOT_HYDRA}",
        ),
    ],
)
def test_inputs_found_by_the_property_tests(submit, spec, sentence):
    assert submit(spec=spec).is_refusal(sentence)


def test_a_value_that_argparse_would_lose(submit):
    assert submit("--via=--").is_refusal("--via=-- on the command line is not usable: '--' is not a value of --via.")


def test_a_knob_that_is_not_utf8_is_refused_by_its_name(submit):
    sentence = "SUBMISSION_ID=a\\udcff (from the command line or environment) is not UTF-8: write it in UTF-8."
    assert submit("SUBMISSION_ID=a\udcff").is_refusal(sentence)


def test_an_overrides_file_that_is_not_utf8_is_refused_by_its_name(submit):
    refused = submit("OVERRIDES_FILE=my/o.txt", overrides=b"a=\xff\n")
    assert refused.is_refusal("my/o.txt is not UTF-8 (byte 2): save it as UTF-8.")


@pytest.mark.parametrize(
    "more",
    [
        f"trainer_overrides: [\"trainer.project_name='{'x' * 180_000}'\"]",
        "env_vars: {" + ", ".join(f"A{number}: {'x' * 60_000}" for number in range(3)) + "}",
    ],
)
def test_more_than_linux_passes_to_a_process_is_refused(submit, ray, more):
    """Three variables of 60 KB: no node ever started the job (Ray 2.60). Two work, and are accepted."""
    outcome = submit(spec=f"{SPEC}{more}\n")
    assert (outcome.status, outcome.created, ray.seen) == (2, [], [])
    assert re.sub(r"\b18.,...\b", "N", outcome.err) == (
        "error   The env_vars and overrides of the job have N bytes as JSON, but Linux takes 126,976 in one variable (execve(2)): put "
        "long values into files on the shared root, and give their paths instead.\n"
    )
    two = ", ".join(f"A{number}: {'x' * 60_000}" for number in range(2))
    assert submit("DRY_RUN=1", spec=f"{SPEC}env_vars: {{{two}}}\n").status == 0


# promise: trains on a snapshot that was changed or removed
def test_a_changed_snapshot_is_refused_before_training(submit, shared, ray):
    target = shared.snapshots / "codeA"
    (target / "verl" / "trainer" / "main_ppo.py").write_text(f"{TRAINER}# and more\n")
    for args, spec, origin in (
        ([], SPEC, "the knob CODE_ID"),
        (["CODE_ID=codeA"], SPEC, "the command line"),
        ([], f"{SPEC}code_id: codeA\n", FILE),
    ):
        outcome = submit(*args, spec=spec)
        assert (outcome.status, outcome.created, ray.seen) == (2, [], [])
        assert re.sub(r"[0-9a-f]{12}", "HASH", outcome.err) == (
            f"error   CODE_ID=codeA (from {origin}) was changed after it was made ({target}: tree HASH, recorded HASH): remove it (chmod -R u+w "
            f"{target} && rm -rf {target}) and make it again with 'make snapshot CODE_ID=codeA VERL_SOURCE=pypi:0.7.1'.\n"
        )
    assert submit("DRY_RUN=1", "CODE_ID=codeB").status == 0
