"""Each part of each check of verify: broken alone, in a copy of a recorded session, it says its sentence and no other check fails."""

import copy

import pytest
from tests.session.test_checks import evidence, head_address

from verl_regress.session import checks

__all__ = ["evidence"]


def problems(evidence, name):
    """What that check says; the others must have nothing to say."""
    found = {verdict.name: verdict.problems for verdict in checks.judge(evidence, set())}
    said = found.pop(name)
    assert {other: text for other, text in found.items() if text} == {}
    return said


def job(evidence, run):
    return evidence[f"job-{run}"]


def worker_address(evidence):
    return next(node["address"] for node in evidence["end"]["nodes"] if not node["is_head"])


# --- placement


def test_a_job_of_an_earlier_session_was_checked_there(evidence):
    reused = job(evidence, "grpo_a")
    reused["reused_from"] = "20261121T100000Z"
    reused["checkpoints"] = []
    del evidence["end"]["digests"][reused["submission_id"]]
    found = {verdict.name: verdict for verdict in checks.judge(evidence, set())}
    assert {name for name, verdict in found.items() if not verdict.passed} == set()
    assert found["placement"].checked == "9 jobs"


def test_a_driver_ran_elsewhere(evidence):
    workers = sorted(node["address"] for node in evidence["end"]["nodes"] if not node["is_head"])
    info = job(evidence, "grpo_b")["ray"]["driver_info"]
    for address in ("192.0.2.1", head_address(evidence)):
        info["node_ip_address"] = address
        assert problems(evidence, "placement") == [
            f"the driver of grpo_b ran on {address}; workers are {', '.join(workers)}"
        ]


# --- outputs, checkpoints


def test_outputs_are_apart(evidence):
    one = job(evidence, "grpo_a")
    evidence["end"]["digests"][one["submission_id"]] = "0"
    assert problems(evidence, "outputs") == [f"{one['submission_id']} was changed by a later job"]
    del evidence["end"]["digests"][one["submission_id"]]
    assert problems(evidence, "outputs") == [f"{one['submission_id']} was removed by a later job"]


def test_checkpoints_come_every_save_freq_steps(evidence):
    one = job(evidence, "grpo_b")
    one["plan"]["overrides"].append({"text": "trainer.save_freq=4", "origin": "x"})
    assert problems(evidence, "checkpoints") == [
        "grpo_b kept global_step_10; every 4 steps is global_step_10, global_step_4, global_step_8"
    ]
    one["checkpoints"] = ["global_step_4", "global_step_8", "global_step_10"]
    assert problems(evidence, "checkpoints") == []
    one["plan"]["overrides"].append({"text": "++trainer.save_freq=-1", "origin": "x"})
    assert problems(evidence, "checkpoints") == [
        "grpo_b kept global_step_4, global_step_8, global_step_10; save_freq=-1 is nothing"
    ]
    one["plan"]["overrides"].append({"text": "trainer.save_freq=0", "origin": "x"})  # as -1: verl saves nothing
    one["checkpoints"] = []
    assert problems(evidence, "checkpoints") == []
    one["plan"]["overrides"].append({"text": "trainer.save_freq=1", "origin": "x"})
    one["plan"]["overrides"].append({"text": "+Xtrainer.save_freq=2", "origin": "x"})  # another key
    every = ", ".join(sorted(f"global_step_{step}" for step in one["steps"]))
    assert problems(evidence, "checkpoints") == [f"grpo_b kept nothing; every 1 steps is {every}"]


@pytest.mark.parametrize(
    ("save_freq", "kept", "wanted"),
    [
        ("-1", [10], None),  # SFT keeps its last step, whatever it was asked for
        ("-1", [5, 10], "save_freq=-1 is global_step_10"),
        ("-1", [], "save_freq=-1 is global_step_10"),
        ("after_each_epoch", [4, 8, 10], None),
    ],
)
def test_sft_always_keeps_the_last_step_and_may_save_after_each_epoch(evidence, save_freq, kept, wanted):
    one = job(evidence, "sft_b")
    assert one["steps"] == list(range(1, 11))
    one["plan"]["overrides"].append({"text": f"trainer.save_freq={save_freq}", "origin": "x"})
    one["checkpoints"] = [f"global_step_{step}" for step in kept]
    names = ", ".join(one["checkpoints"]) or "nothing"
    assert problems(evidence, "checkpoints") == ([f"sft_b kept {names}; {wanted}"] if wanted else [])


# --- further, imports


def test_a_case_whose_source_trained_on_after_a_checkpoint_trains_those_steps(evidence):
    evidence["begin"]["suite"]["content"]["cases"]["resume"]["steps"] = 5
    for side in "ab":
        first, further = job(evidence, f"ppo_{side}"), job(evidence, f"resume_{side}")
        first["checkpoints"] = ["global_step_5", "global_step_10"]
        further["steps"] = [6, 7, 8, 9, 10]
        for override in further["plan"]["overrides"]:
            override["text"] = override["text"].replace("/global_step_10", "/global_step_5")
    assert [line.problems for line in checks.judge(evidence, {"further"})] == [[]]
    further["steps"] = [6, 7]
    said = ["resume_b trained steps [6, 7], not [6, 7, 8, 9, 10]"]
    assert [line.problems for line in checks.judge(evidence, {"further"})] == [said]


def test_further_steps_were_trained_from_that_checkpoint(evidence):
    first, further = job(evidence, "ppo_b"), job(evidence, "resume_b")
    steps = further["steps"]
    further["steps"] = [step + 1 for step in steps]
    said = next(line for line in checks.judge(evidence, set()) if line.name == "further").problems
    assert said == [f"resume_b trained steps {further['steps']}, not {steps}"]
    assert steps[0] == int(first["checkpoints"][-1].removeprefix("global_step_")) + 1
    further["steps"] = steps
    asked = f"trainer.resume_from_path={first['job_dir']}/checkpoints/{first['checkpoints'][-1]}"
    for override in further["plan"]["overrides"]:
        override["text"] = override["text"].replace(asked, f"{asked}1")
    assert problems(evidence, "further") == [f"resume_b was not asked to resume: no {asked}"]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("code_path", "/elsewhere", "it is of 7 actors and /elsewhere"),
        ("actors", 0, "it is of 0 actors and {path}"),
        ("problems", ["process 7 loaded verl from elsewhere"], "process 7 loaded verl from elsewhere"),
    ],
)
def test_a_proof_of_identity_is_of_the_actors_and_of_the_snapshot_that_was_asked_for(evidence, key, value, why):
    one = job(evidence, "grpo_b")
    identity, path = one["state"]["identity"], one["plan"]["code_path"]
    identity |= {"actors": 7, "passed": key != "problems", key: value}
    said = f"grpo_b has no proof that its processes loaded {path}: {why.format(path=path)}"
    assert problems(evidence, "imports") == [said]
    one["state"]["identity"] = None
    said = f"grpo_b has no proof that its processes loaded {path}: no state/identity"
    assert problems(evidence, "imports") == [said]


@pytest.mark.parametrize("number", [0, 1])
def test_the_driver_printed_both_lines_before_it_began(evidence, number):
    lines = job(evidence, "ppo_b")["prechecks"]
    gone = lines.pop(number)
    assert problems(evidence, "imports") == [f"ppo_b did not print '{gone}'"]


def test_where_the_trees_differ_some_case_loads_other_bytes(evidence):
    for case in ("ppo", "grpo", "sft", "resume"):
        loaded = job(evidence, f"{case}_a")["state"]["identity"]["files_sha256"]
        job(evidence, f"{case}_b")["state"]["identity"]["files_sha256"] = loaded
    assert problems(evidence, "imports") == [
        "A and B are different trees, and loaded the same bytes in every case: no case runs what differs"
    ]
    job(evidence, "sft_b")["state"]["identity"]["files_sha256"] = "0"
    assert problems(evidence, "imports") == []
    del evidence["job-grpo_b"]  # a case that did not run says nothing about it
    assert problems(evidence, "imports") == []
    same = job(evidence, "sft_a")["state"]["identity"]["files_sha256"]
    job(evidence, "sft_b")["state"]["identity"]["files_sha256"] = same
    evidence["begin"]["trees"]["B"] = evidence["begin"]["trees"]["A"]
    assert problems(evidence, "imports") == []


# --- workloads


def test_every_case_ran_to_its_step_count(evidence):
    one = job(evidence, "sft_b")
    was = copy.deepcopy(one)
    one["ray"]["status"] = "RUNNING"
    assert problems(evidence, "workloads") == ["sft_b is RUNNING in Ray"]
    one["ray"]["status"] = "SUCCEEDED"
    one["total_steps"] += 1
    assert problems(evidence, "workloads") == [f"sft_b is at step {was['total_steps']} of {one['total_steps']}"]
