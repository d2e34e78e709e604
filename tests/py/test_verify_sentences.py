"""Each part of each check of verify: broken alone, in a copy of a recorded session, it says its sentence and no other check fails."""

import copy

import pytest
from test_verify_checks import evidence, head_address, put

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


def first_artefact(evidence):
    return next(iter(evidence["begin"]["artefacts"].items()))


# --- submission, placement, head


def test_another_container_or_address_submitted_it(evidence):
    metadata, head = job(evidence, "ppo_a")["ray"]["metadata"], evidence["begin"]["head"]
    metadata["submitted_from_container"] = "c"
    assert problems(evidence, "submission") == [f"ppo_a was submitted from c, the head is {head['identity']}"]
    metadata |= {"submitted_from_container": head["identity"], "submitted_from_ip": "192.0.2.1"}
    assert problems(evidence, "submission") == [f"ppo_a was submitted from 192.0.2.1, the head is at {head['address']}"]


def test_a_session_that_was_continued_has_seen_several_heads(evidence):
    evidence["heads"] = {"heads": [{"identity": "another", "address": "192.0.2.1"}]}
    metadata = job(evidence, "ppo_a")["ray"]["metadata"]
    metadata |= {"submitted_from_container": "another", "submitted_from_ip": "192.0.2.1"}
    assert problems(evidence, "submission") == []
    head = evidence["begin"]["head"]
    metadata |= {"submitted_from_container": "c", "submitted_from_ip": "192.0.2.2"}
    assert problems(evidence, "submission") == [
        f"ppo_a was submitted from c, the head is another, {head['identity']}",
        f"ppo_a was submitted from 192.0.2.2, the head is at {head['address']}, 192.0.2.1",
    ]


def test_a_job_of_an_earlier_session_was_checked_there(evidence):
    reused = job(evidence, "grpo_a")
    reused["reused_from"] = "20261121T100000Z"
    reused["ray"]["metadata"]["submitted_from_container"] = "c"
    reused["checkpoints"] = []
    evidence["begin"]["digests"][reused["submission_id"]] = reused["digest"]
    found = {verdict.name: verdict for verdict in checks.judge(evidence, set())}
    assert {name for name, verdict in found.items() if not verdict.passed} == set()
    assert found["submission"].checked == "9 jobs"


def test_a_driver_ran_elsewhere(evidence):
    workers = sorted(node["address"] for node in evidence["end"]["nodes"] if not node["is_head"])
    info = job(evidence, "grpo_b")["ray"]["driver_info"]
    for address in ("192.0.2.1", head_address(evidence)):
        info["node_ip_address"] = address
        assert problems(evidence, "placement") == [
            f"the driver of grpo_b ran on {address}; workers are {', '.join(workers)}, the head is {head_address(evidence)}"
        ]


@pytest.mark.parametrize("moment", ["begin", "end"])
def test_a_cluster_has_one_head_and_it_has_no_devices(evidence, moment):
    nodes = evidence[moment]["nodes"]
    head = next(node for node in nodes if node["is_head"])
    head["resources"]["CPU"], head["resources"]["GPU"] = 2.0, 0.5
    assert problems(evidence, "head") == [
        f"at the {moment} the head had CPU 2",
        f"at the {moment} the head had GPU 0.5",
    ]
    head["resources"] |= {"CPU": 0.0, "GPU": 0.0}
    assert problems(evidence, "head") == []
    nodes.append(copy.deepcopy(head))
    assert problems(evidence, "head") == [f"at the {moment} Ray listed 2 heads"]
    nodes[:] = [node for node in nodes if not node["is_head"]]
    found = {verdict.name: verdict.problems for verdict in checks.judge(evidence, {"head"})}
    assert found["head"] == [f"at the {moment} Ray listed 0 heads"]


# --- outputs, prepare, checkpoints


def test_outputs_are_apart(evidence):
    one, other = job(evidence, "grpo_a"), job(evidence, "grpo_b")
    evidence["begin"]["digests"][one["submission_id"]] = one["digest"]
    assert problems(evidence, "outputs") == [f"{one['submission_id']} was there before"]
    del evidence["begin"]["digests"][one["submission_id"]]
    evidence["begin"]["jobs"] = ["another", one["submission_id"]]  # older than the jobs that are compared
    assert problems(evidence, "outputs") == [f"{one['submission_id']} was there before"]
    del evidence["begin"]["jobs"]
    evidence["end"]["digests"][one["submission_id"]] = "0"
    assert problems(evidence, "outputs") == [f"{one['submission_id']} was changed by a later job"]
    del evidence["end"]["digests"][one["submission_id"]]
    assert problems(evidence, "outputs") == [f"{one['submission_id']} was removed by a later job"]
    evidence["end"]["digests"][one["submission_id"]] = one["digest"]
    other["job_dir"] = one["job_dir"]
    assert problems(evidence, "outputs") == ["two jobs share a directory", f"grpo_b wrote to {one['job_dir']}"]


def test_the_second_prepare_changes_nothing(evidence):
    directory, files = first_artefact(evidence)
    after, name = evidence["prepare"]["artefacts"], next(iter(files))
    log = evidence["prepare"]["log"]
    after[directory] = {**files, name: [files[name][0], "0"]}
    assert problems(evidence, "prepare") == [f"{directory}: 1 of {len(files)} files changed ({name})"]
    del after[directory]
    assert problems(evidence, "prepare") == [f"{directory}: {len(files)} of {len(files)} files changed ({name})"]
    after[directory] = dict(files)
    after["/private/datasets/new"] = {}
    assert problems(evidence, "prepare") == ["the second prepare made /private/datasets/new"]
    del after["/private/datasets/new"]
    evidence["prepare"]["log"] = f"{log}\nchanged it\n"
    assert problems(evidence, "prepare") == ["the second prepare said: changed it"]
    evidence["prepare"]["log"] = "ok      all is as it was\n"
    assert problems(evidence, "prepare") == ["the second prepare said no 'skip'"]
    evidence["prepare"] |= {"log": log, "artefacts": {}}
    evidence["begin"]["artefacts"] = {}
    assert problems(evidence, "prepare") == ["no artefact was there"]


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
        ("after_each_epoch", [4, 8, 10], None),  # of 4 steps
        ("'after_each_epoch'", [4, 10], "every 4 steps is global_step_10, global_step_4, global_step_8"),
        ("after_each_epoch", [], "save_freq=0 is global_step_10"),
    ],
)
def test_sft_always_keeps_the_last_step_and_may_save_after_each_epoch(evidence, save_freq, kept, wanted):
    one = job(evidence, "sft_b")
    assert one["steps"] == list(range(1, 11))
    one["plan"]["overrides"].append({"text": f"trainer.save_freq={save_freq}", "origin": "x"})
    one["checkpoints"] = [f"global_step_{step}" for step in kept]
    names = ", ".join(one["checkpoints"]) or "nothing"
    assert problems(evidence, "checkpoints") == ([f"sft_b kept {names}; {wanted}"] if wanted else [])


# --- further, debug, imports


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


def test_debug_holds_four_kinds_of_state_of_two_moments(evidence):
    bundles = job(evidence, "ppo_a")["bundles"]
    phases = [bundle["phase"] for bundle in bundles]
    for bundle in bundles:
        bundle["files"], bundle["errors"] = ["a", "b", "c", "d"], {"d": "no answer"}
    assert problems(evidence, "debug") == ["ppo_a has 3 kinds of state in debug/ (a, b, c), 4 are wanted"]
    for bundle in bundles:
        bundle["errors"] = None
    assert problems(evidence, "debug") == []
    for bundle in bundles[1:]:
        bundle["asked"] = None
    assert problems(evidence, "debug") == [f"ppo_a has debug bundles of 1 moments ({phases[0]}), 2 are wanted"]


@pytest.mark.parametrize(("key", "value"), [("processes", 1), ("processes", 0), ("modules", 0), ("actors", 0)])
def test_a_proof_of_identity_is_of_processes_modules_and_actors(evidence, key, value):
    identity = job(evidence, "sft_a")["state"]["identity"]
    identity[key] = value
    assert problems(evidence, "imports") == [
        f"sft_a: only {identity['processes']} processes with {identity['modules']} modules and {identity['actors']} actors reported"
    ]
    identity |= {"processes": 2, "modules": 1, "actors": 1}
    assert problems(evidence, "imports") == []


def test_a_proof_of_identity_is_of_the_snapshot_that_was_asked_for(evidence):
    identity, path = job(evidence, "grpo_b")["state"]["identity"], job(evidence, "grpo_b")["plan"]["code_path"]
    put("code_path", "/elsewhere")(identity)
    assert problems(evidence, "imports") == [f"grpo_b: the proof is of /elsewhere, {path} was asked for"]
    identity |= {"code_path": path, "passed": False}
    assert problems(evidence, "imports") == [f"grpo_b: the proof is of {path}, {path} was asked for"]
    identity |= {"passed": True, "problems": ["process 7 loaded verl from elsewhere"]}
    assert problems(evidence, "imports") == ["grpo_b: process 7 loaded verl from elsewhere"]
    job(evidence, "grpo_b")["state"]["identity"] = None
    assert problems(evidence, "imports") == ["grpo_b has no state/identity"]


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


# --- workloads, rules


def test_every_case_ran_to_its_step_count(evidence):
    one = job(evidence, "sft_b")
    was = copy.deepcopy(one)
    one["state"]["started"] = None
    assert problems(evidence, "workloads") == ["sft_b never ran"]
    one["state"]["started"] = was["state"]["started"]
    one["ray"]["status"] = "RUNNING"
    assert problems(evidence, "workloads") == ["sft_b is RUNNING in Ray"]
    one["ray"]["status"] = "SUCCEEDED"
    one["total_steps"] += 1
    assert problems(evidence, "workloads") == [f"sft_b is at step {was['total_steps']} of {one['total_steps']}"]
    one["total_steps"] -= 1
    for bundle in one["bundles"]:
        bundle["phase"] = "submitted"
    found = next(verdict for verdict in checks.judge(evidence, set()) if verdict.name == "workloads")
    assert found.problems == ["sft_b was never seen RUNNING"]


def test_all_jobs_keep_the_same_rules(evidence):
    one = job(evidence, "sft_b")
    one["entries"].remove("debug")
    assert problems(evidence, "rules") == ["sft_b has no debug"]
    one["entries"].append("debug")
    one["config"].remove("code.json")
    assert problems(evidence, "rules") == ["sft_b has no config/code.json"]
    one["config"].append("code.json")
    gone = one["bundles"].pop()["phase"]
    assert problems(evidence, "rules") == [f"sft_b has no debug bundle '{gone}'"]


def test_the_rules_are_also_for_a_reused_job_and_not_for_one_that_failed(evidence):
    again = job(evidence, "ppo_a_again")
    again["entries"].remove("debug")
    again["reused_from"] = "20261121T100000Z"
    assert problems(evidence, "rules") == ["ppo_a_again has no debug"]
    again["state"]["ended"]["exit_code"] = 1
    del again["reused_from"]
    assert problems(evidence, "rules") == []
    evidence["begin"]["only"] = ["rules"]
    assert checks.judge(evidence, {"rules"})[0].problems == ["ppo_a_again has no debug"]


# --- token, secrets


@pytest.mark.parametrize("key", ["token_characters", "files", "answers"])
def test_a_search_for_nothing_or_in_nothing_is_no_proof(evidence, key):
    evidence["end"]["token"][key] = 0
    assert problems(evidence, "token") == ["nothing was searched"]


def test_the_token_is_where_it_was_found(evidence):
    evidence["end"]["token"]["found_in"] = ["a", "b"]
    assert problems(evidence, "token") == ["the token is in a", "the token is in b"]


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("canary/files", 0, "nothing was searched"),
        ("canary/answers", 0, "nothing was searched"),
        ("canary/canary_characters", 0, "nothing was searched for"),
        ("canary-worker-1/canary_characters", 0, "nothing was searched for"),
        ("canary-worker-1/files", 0, "worker-1 was not searched"),
        ("canary-worker-1/processes", 0, "worker-1 was not searched"),
        ("canary/unanswered", ["the nodes"], "Ray did not answer about the nodes"),
        ("canary/found_in", ["a"], "it is in a"),
        ("canary-head/found_in", ["a"], "it is in a on head"),
        ("job-grpo_a/secrets", [], "no process of grpo_a reported which secrets it has"),
        ("job-grpo_a/secrets", [{"process": "p", "names": ["OTHER"]}], "the process p of grpo_a did not get it"),
    ],
)
def test_a_secret_reached_every_process_and_is_nowhere(evidence, path, value, sentence):
    put(path, value)(evidence)
    assert problems(evidence, "secrets") == [sentence]
