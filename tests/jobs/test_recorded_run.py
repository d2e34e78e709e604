"""A job directory as a run of the judge: over all attempts, with what must be equal, how the job ended, and what it sampled."""

import json

import hermetic
import pytest
import yaml
from shared_fixtures import write
from verdict_runs import recorded, unpack

from verl_regress.jobs import recorded_run
from verl_verdict.errors import CannotJudge
from verl_verdict.read import comparable, readers
from verl_verdict.read.records import Damage


def test_a_job_directory_tells_what_must_be_equal(tmp_path):
    (run,) = recorded(tmp_path, "ppo-0.9.1-v0")
    assert (run.workload, run.code, run.seed) == ("ppo", "v0.9.1", "verl's default seeds")
    assert (run.failure, run.unfinished) == (None, None)
    assert run.facts["profile"] == "cpu"
    assert run.facts["model"] == "/common/models/tiny-qwen2"
    assert run.facts["dataset"] == "/datasets/sums"
    assert run.facts["devices"] == "2 x cpu"
    assert run.facts["nodes"] == "2 x CPU 64, GPU 4, cpu 4"
    assert run.facts["override trainer.use_v1"] == "trainer.use_v1=False"
    assert run.facts["override trainer.total_training_steps"] == "trainer.total_training_steps=4"  # over the base's 10
    assert run.facts["variable OMP_NUM_THREADS"] == "1"
    assert not [name for name in run.facts if "PYTHONPATH" in name or "override critic.added" in name]


@pytest.mark.parametrize(
    ("said", "overrides", "seed"),
    [
        ({}, ["data.seed=7", "+actor_rollout_ref.rollout.seed=7"], "+actor_rollout_ref.rollout.seed=7 data.seed=7"),
        ({"seed": 0}, [], "seed=0"),
        ({"seed": 0}, ["data.seed=7"], "data.seed=7 seed=0"),
    ],
)
def test_a_seed_is_no_difference_but_pairs_the_runs(tmp_path, said, overrides, seed):
    job = unpack(tmp_path, "ppo-0.9.1-v1-1")
    asked = json.loads((job / "config/asked.json").read_text())
    asked["said"] |= said
    asked["said"]["overrides"] += [{"text": text} for text in overrides]
    (job / "config/asked.json").write_text(json.dumps(asked))
    run = recorded_run.read(job)
    assert run.seed == seed
    assert not [name for name in run.facts if "seed" in name]


def test_a_replay_is_a_fact_and_what_its_order_decides_is_not_compared(tmp_path):
    job = unpack(tmp_path, "ppo-0.9.1-v1-1")
    before = recorded_run.read(job)
    asked = json.loads((job / "config/asked.json").read_text())
    text = "skip.rollout_tq.dump_dir=/shared/verify/1/replay/ppo-100"  # another session has another one
    asked["said"]["overrides"] += [{"text": text, "origin": recorded_run.REPLAY}]
    (job / "config/asked.json").write_text(json.dumps(asked))
    run = recorded_run.read(job)
    assert [str(each) for each in comparable.facts(before, run)] == ["replay: A without it, B 1"]
    assert not [key for key in run.config if key.startswith("skip.")]
    gone = {name for name in before.series if "/off_policy/" in name or name.startswith("global_seqlen/")}
    assert {*before.series} - {*run.series} == gone - {"global_seqlen/mean"}
    assert {"training/off_policy/trajectory_staleness/max", "global_seqlen/max", "global_seqlen/mean"} <= gone


def test_a_job_directory_tells_its_packages(tmp_path):
    job = unpack(tmp_path, "ppo-0.9.1-v1-1")
    assert "packages" not in recorded_run.read(job).facts
    listed = {"nodes": ["worker-0"], "python": "3.11.9", "sha256": "ab" * 32, "packages": {"torch": "2.11.0"}}
    of_head = {**listed, "nodes": ["head"], "sha256": "cd" * 32, "packages": {"torch": "2.12.0"}}
    record = {"sha256": "ab" * 32, "head": "head", "lists": [of_head, listed]}
    (job / "config/packages.json").write_text(json.dumps(record))
    run = recorded_run.read(job)
    assert run.facts["packages"] == "Python 3.11.9, 1 packages (sha256 abababababab)"
    assert run.packages == {"Python": "3.11.9", "torch": "2.11.0"}


def test_the_mark_of_a_fixed_override_is_no_part_of_its_name(tmp_path):
    job = unpack(tmp_path, "ppo-0.9.1-v1-1")
    (job / "config/ray_config.yaml").write_text("trainer_overrides: {rl: ['!trainer.device=npu', '?data.x=1']}\n")
    facts = recorded_run.read(job).facts
    assert (facts["override trainer.device"], facts["override data.x"]) == ("trainer.device=npu", "data.x=1")


@pytest.mark.parametrize("workload", ["ppo", "sft"])
@pytest.mark.parametrize("base", ["dev", "prod"])
def test_gpus_and_npus_differ_in_what_accept_devices_accepts(base, workload, tmp_path):
    """Before: attn_implementation, which npu.yaml does not set, made each such pair incomparable."""

    def facts(name):
        job, text = tmp_path / name, (hermetic.REPO / f"env/ray/{name}.yaml").read_text()
        write(job / "config/ray_config.yaml", text)
        write(job / "config/runtime_env.json", json.dumps(yaml.safe_load(text)["runtime_env"]))
        write(job / "config/resolved.json", json.dumps({"workload": workload, "profile": name}))
        write(job / "logs/metrics.jsonl", '{"step": 1, "data": {"train/loss": 1.0}}\n')
        return recorded_run.read(job)

    found = comparable.facts(facts(base), facts("npu"))
    assert {"profile", "override trainer.device"} < {each.name for each in found}
    assert [str(each) for each in found if not comparable.is_accepted(each, ["devices"])] == []


def write_samples(directory, step, *answers):
    (directory / "samples").mkdir(exist_ok=True)
    text = "".join(
        json.dumps({"input": "1+1=", "output": answer, "score": 0.5, "step": step}) + "\n" for answer in answers
    )
    (directory / f"samples/{step}.jsonl").write_text(text)


def test_samples_are_hashed_over_steps_and_attempts_in_any_order_of_the_answers(tmp_path):
    job = unpack(tmp_path, "ppo-0.9.1-v1-resumed")
    assert recorded_run.sampled(job) is None
    write_samples(job, 4, "2", "3")
    one = recorded_run.sampled(job)
    assert recorded_run.JobReader().read(job).hashes == {"sampled tokens": one}
    assert recorded_run.read(job).hashes == {}  # a session reads a run after each other one, and its samples once
    write_samples(job, 4, "3", "2")
    assert recorded_run.sampled(job) == one
    write_samples(job / "attempts/2", 5, "2")
    two = recorded_run.sampled(job)
    write_samples(job / "attempts/2", 5, "3")
    assert len({one, two, recorded_run.sampled(job)}) == 3
    write_samples(job / "attempts/2", 4, "9")  # made again by the later attempt
    again = recorded_run.sampled(job)
    write_samples(job, 4, "5")
    assert recorded_run.sampled(job) == again


def test_samples_that_were_not_written_to_the_end_have_no_hash(tmp_path):
    job = unpack(tmp_path, "ppo-0.9.1-v1-1")
    write_samples(job, 1, "2")
    (job / "samples/2.jsonl").write_text('{"input": "1+1=", "out')
    assert recorded_run.sampled(job) is None


def test_the_resolved_config_names_neither_the_job_nor_its_seeds(tmp_path):
    a, b = recorded(tmp_path, "ppo-0.9.1-v1-1", "ppo-0.9.1-v1-2")
    assert len(a.config) > 500
    assert a.config == b.config


def test_a_resumed_job_is_one_run(tmp_path):
    (run,) = recorded(tmp_path, "ppo-0.9.1-v1-resumed")
    (straight,) = recorded(tmp_path, "ppo-0.9.1-v1-1")
    assert run.problems == ()
    assert run.steps == [1, 2, 3, 4, 5, 6]  # four, and two more from the checkpoint of step 4
    before = {step: value for step, value in run.series["critic/score/mean"].items() if step <= 4}
    assert before == straight.series["critic/score/mean"]


def test_a_later_attempt_replaces_the_steps_after_its_checkpoint(tmp_path):
    job = unpack(tmp_path, "ppo-0.9.1-v1-resumed")
    path = job / "attempts/2/config/resolved.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"parent": {"attempt": 1, "step": 2}}))
    run = recorded_run.read(job)
    assert run.steps == [1, 2, 5, 6]
    assert [(each.kind, each.text) for each in run.problems] == [
        (Damage.GAP, "the record has no step 3 to 4, but later ones")
    ]


def test_an_attempt_from_scratch_replaces_all_before_it(tmp_path):
    job = unpack(tmp_path, "sft-0.9.1-1")
    later = job / "attempts/2"
    (later / "logs").mkdir(parents=True)
    row = {"step": 1, "data": {"train/loss": 1.0, "train/grad_norm": 3.0}}
    (later / "logs/metrics.jsonl").write_text(json.dumps(row) + "\n")
    run = recorded_run.read(job)
    assert (run.steps, run.series["train/loss"]) == ([1], {1: 1.0})


@pytest.mark.parametrize(
    ("ended", "failure", "unfinished"),
    [
        ({"exit_code": 1, "reason": "exit status 1", "cause": "ValueError: no"}, "ValueError: no", None),
        (
            {"exit_code": 1, "reason": "x", "cause": {"type": "KeyError", "message": "'no'", "where": "verl/x.py:3"}},
            "KeyError: 'no' (verl/x.py:3)",
            None,
        ),
        (
            {"exit_code": 1, "reason": "worker-1 was lost", "lost_nodes": ["worker-1"]},
            None,
            "the job lost a node, which says nothing about its code (worker-1 was lost)",
        ),
        ({"exit_code": 1, "reason": "exit status 1"}, "exit status 1", None),
        ({"exit_code": 143, "told_to_stop": True}, None, "the job was stopped"),
        (None, None, "the job recorded no end: it is running, or was lost"),
    ],
)
def test_how_a_job_ended(tmp_path, ended, failure, unfinished):
    job = unpack(tmp_path, "sft-0.9.1-1")
    (job / "state/ended").unlink()
    if ended:
        (job / "state/ended").write_text(json.dumps(ended))
    run = recorded_run.read(job)
    assert (run.failure, run.unfinished, run.is_job) == (failure, unfinished, True)


def test_a_job_that_failed_before_its_first_step_is_a_job_too(tmp_path):
    job = unpack(tmp_path, "sft-0.9.1-1")
    (job / "logs/metrics.jsonl").unlink()
    (job / "state/ended").write_text('{"exit_code": 1, "cause": "ImportError: no verl"}')
    run = recorded_run.read(job)
    assert (run.steps, run.failure, run.is_job) == ([], "ImportError: no verl", True)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("resolved.json", "{", r"config/resolved\.json cannot be read: .*: restore it from a backup\.$"),
        ("ray_config.yaml", "trainer_overrides: [1]", r"^The job directory '.*' is damaged \(.*\): give its logs/metrics\.jsonl\.$"),
    ],
)  # fmt: skip
def test_a_job_directory_that_is_damaged_or_of_another_shape_is_refused(tmp_path, file, text, said):
    job = unpack(tmp_path, "sft-0.9.1-1")
    (job / "config" / file).write_text(text)
    with pytest.raises(CannotJudge, match=said):
        recorded_run.read(job)


def with_hooks(directory, name, hooks, **variables):
    """The run of a copy whose job had these hooks, in which `identity` is, and these variables."""
    file = unpack(directory, "sft-0.9.1-1", name) / "config/runtime_env.json"
    content = json.loads(file.read_text())
    content["env_vars"] |= {"VERL_REGRESS_HOOKS": hooks, **variables}
    file.write_text(json.dumps(content))
    return recorded_run.read(directory / name)


@pytest.mark.parametrize(
    ("hooks", "variables"),
    [
        ("identity,debugger", {"RAY_DEBUG": "1", "VERL_REGRESS_DEBUGGER_HOST": "127.0.0.1"}),
        ("identity,debugger", {"RAY_DEBUG": "1", "RAY_DEBUG_POST_MORTEM": "1"}),
        ("job_secrets,identity", {"VERL_REGRESS_SECRETS": "/private/secrets/mine/1"}),
        ("identity,process_memory", {}),
    ],
)
def test_a_debugger_secrets_and_records_of_memory_make_no_runs_incomparable(tmp_path, hooks, variables):
    """What each value of DEBUGGER adds to a job, as verl_regress.plan.environment has it."""
    runs = [
        with_hooks(tmp_path, "with", hooks, **variables),
        with_hooks(tmp_path, "without", "identity", RAY_DEBUG="0"),
    ]
    assert runs[0].facts["variable VERL_REGRESS_HOOKS"] == "identity"
    assert runs[0].facts == runs[1].facts


@pytest.mark.parametrize(("hook", "fact"), [("last_bit", "perturbed"), ("recomputed_rewards", "own rewards")])
def test_a_hook_that_changes_training_is_a_fact_alone(tmp_path, hook, fact):
    plain = with_hooks(tmp_path, "plain", "identity,sft_driver")
    changed = with_hooks(tmp_path, "changed", f"identity,{hook},sft_driver")
    assert [each.name for each in comparable.facts(plain, changed)] == [fact]


def test_the_judge_reads_by_it_what_is_a_job_and_a_record_by_itself(tmp_path):
    job = unpack(tmp_path, "ppo-0.9.1-v1-1")
    by_reader, alone = (readers.read(job, known) for known in ([recorded_run.JobReader()], []))
    assert (by_reader.name, by_reader.code, by_reader.is_job) == (job.name, "v0.9.1", True)
    assert (alone.name, alone.code, alone.is_job) == (f"{job}/logs/metrics.jsonl", None, False)
    record = readers.read(job / "logs/metrics.jsonl", [recorded_run.JobReader()])
    assert record == alone
