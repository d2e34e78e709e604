"""Each fidelity check can fail, and on its own, for every workload that it applies to."""

import json

import pytest
from shared_fixtures import write

from verl_rehearsal import fidelity

RL = {
    fidelity.CORRELATION: 0.9999,
    "actor/lr": 1e-4,
    "actor/grad_norm": 1.5,
    "critic/grad_norm": 2.0,
    "critic/score/min": 0.0,
    "critic/score/max": 1.0,
}
SFT = {"train/lr": 1e-4, "train/grad_norm": 3.0}
UPDATES = [("a", "a"), ("b", "b")]
ACTORS = [(0, "10.0.0.2"), (1, "10.0.0.3")]
TRAINED = {"actor": (8, 8), "critic": (4, 4)}
# Global step, prompt, seed, answer: two prompts with two answers each.
SAMPLES = [(0, "p", 1, "x"), (0, "p", 2, "y"), (0, "q", 3, "x"), (0, "q", 4, "z")]


@pytest.fixture
def check(tmp_path):
    def check(workload, change=None, updates=UPDATES, actors=ACTORS, trained=TRAINED, samples=SAMPLES, size=2):
        """`change` maps a step to metrics that differ from the usual ones; None removes a metric."""
        rows = {step: dict(SFT if workload == "sft" else RL) for step in (1, 5, 10)}
        for step, metrics in (change or {}).items():
            for one in rows if step == "all" else [step]:
                rows[one].update(metrics)
        lines = [
            {"step": step, "data": {key: value for key, value in row.items() if value is not None}}
            for step, row in rows.items()
        ]
        write(tmp_path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        reports = tmp_path / "reports"
        hashes = [{"actor_sha256": actor, "rollout_sha256": rollout} for actor, rollout in updates]
        write(reports / "rollout_weights-1.json", json.dumps({"updates": hashes}))
        for rank, address in actors:
            report = {"rank": rank, "node_ip": address, "world_size": size}
            write(reports / f"training_actor-{rank}.json", json.dumps(report))
        models = {name: {"optimizer_steps": steps, "distinct": distinct} for name, (steps, distinct) in trained.items()}
        write(reports / "trained_weights-1.json", json.dumps({"models": models}))
        write(reports / "rollout_samples-1.json", json.dumps({"samples": samples}))
        return list(fidelity.check(workload, tmp_path / "metrics.jsonl", reports))

    return check


@pytest.fixture
def main(tmp_path):
    return lambda workload, *how: fidelity.main(
        [workload, str(tmp_path / "metrics.jsonl"), str(tmp_path / "reports"), *how]
    )


def test_a_cluster_of_one_worker_has_one_rank(check):
    assert all(done.passed for done in check("sft", actors=[(0, "10.0.0.2")], size=1))


def test_a_faithful_run(check, main, capsys):
    check("grpo")
    assert main("grpo") == 0
    assert capsys.readouterr().out == (
        "ok      rollout_actor_probs_pearson_corr at step 1: 0.999900 (wanted: at least 0.999)\n"
        "ok      rollout_actor_probs_pearson_corr at step 10: 0.999900 (wanted: at least 0.999)\n"
        "ok      actor/lr over 3 steps: at least 0.0001 (wanted: 0.0001)\n"
        "ok      rollout's weights hash equal to the actor's: 2 of 2 updates on 1 replicas, 2 distinct weights\n"
        "ok      training actors, each on a worker of its own: rank 0 on 10.0.0.2, rank 1 on 10.0.0.3\n"
        "ok      actor/grad_norm at least 0.01: 3 of 3 steps (wanted: at least half)\n"
        "ok      actor's weights changed by every step of its optimizer: 8 of 8 on 1 ranks\n"
        "ok      critic/score over 3 steps: from 0 to 1 (wanted: more than one value)\n"
        "ok      samples with a seed of their own: 4 of the first 4\n"
        "ok      groups whose answers differ: 2 of the first 2 (wanted: at least half)\n"
        "ok      fidelity: 10 of 10 checks passed\n"
    )


@pytest.mark.parametrize(("workload", "count"), [("ppo", 11), ("grpo", 10), ("sft", 4)])
def test_how_many_checks_a_workload_has(check, workload, count):
    assert [one.passed for one in check(workload)] == [True] * count


def test_an_occasional_step_without_a_gradient_passes(check):
    assert all(one.passed for one in check("grpo", change={5: {"actor/grad_norm": 0.0}}))


CORRELATED = "rollout_actor_probs_pearson_corr at step"
FAILURES = [
    ("ppo", {"change": {1: {fidelity.CORRELATION: 0.99}}}, f"{CORRELATED} 1: 0.990000 (wanted: at least 0.999)"),
    ("ppo", {"change": {10: {fidelity.CORRELATION: 0.99}}}, f"{CORRELATED} 10: 0.990000 (wanted: at least 0.999)"),
    ("grpo", {"change": {10: {fidelity.CORRELATION: None}}}, f"{CORRELATED} 10: missing (wanted: at least 0.999)"),
    ("ppo", {"change": {10: {"actor/lr": 1e-6}}}, "actor/lr over 3 steps: at least 1e-06 (wanted: 0.0001)"),
    ("sft", {"change": {10: {"train/lr": 0.0}}}, "train/lr over 3 steps: at least 0 (wanted: 0.0001)"),
    (
        "ppo",
        {"updates": [("a", "a"), ("b", "a")]},
        "rollout's weights hash equal to the actor's: 1 of 2 updates on 1 replicas, 2 distinct weights",
    ),
    (
        "ppo",
        {"updates": [("a", "a"), ("a", "a")]},
        "rollout's weights hash equal to the actor's: 2 of 2 updates on 1 replicas, 1 distinct weights",
    ),
    (
        "ppo",
        {"actors": [(0, "a"), (1, "a")]},
        "training actors, each on a worker of its own: rank 0 on a, rank 1 on a",
    ),
    ("sft", {"actors": [(0, "a")]}, "training actors, each on a worker of its own: rank 0 on a"),
    ("ppo", {"actors": []}, "training actors, each on a worker of its own: none reported"),
    # GRPO with one seed for a whole group looked like this.
    (
        "grpo",
        {"change": {"all": {"actor/grad_norm": 2e-5}}},
        "actor/grad_norm at least 0.01: 0 of 3 steps (wanted: at least half)",
    ),
    (
        "ppo",
        {"change": {"all": {"critic/grad_norm": float("nan")}}},
        "critic/grad_norm at least 0.01: 0 of 3 steps (wanted: at least half)",
    ),
    (
        "sft",
        {"change": {"all": {"train/grad_norm": None}}},
        "train/grad_norm at least 0.01: 0 of 0 steps (wanted: at least half)",
    ),
    (
        "sft",
        {"trained": {"actor": (8, 7)}},
        "actor's weights changed by every step of its optimizer: 7 of 8 on 1 ranks",
    ),
    (
        "ppo",
        {"trained": {"actor": (8, 8)}},
        "critic's weights changed by every step of its optimizer: 0 of 0 on 0 ranks",
    ),
    (
        "grpo",
        {"change": {"all": {"critic/score/max": 0.0}}},
        "critic/score over 3 steps: from 0 to 0 (wanted: more than one value)",
    ),
    ("ppo", {"samples": [*SAMPLES, (0, "p", 1, "x")]}, "samples with a seed of their own: 4 of the first 5"),
    (
        "grpo",
        {"samples": [(0, prompt, seed, "x") for prompt in "pqr" for seed in (1, 2)]},
        "groups whose answers differ: 0 of the first 3 (wanted: at least half)",
    ),
]


@pytest.mark.parametrize(("workload", "given", "seen"), FAILURES)
def test_each_check_can_fail_alone(check, main, capsys, workload, given, seen):
    checks = check(workload, **given)
    assert [one.seen for one in checks if not one.passed] == [seen]
    assert main(workload) == 9
    good = len(checks) - 1
    assert capsys.readouterr().out.endswith(f"FAIL    fidelity: {good} of {len(checks)} checks passed\n")


def test_every_check_has_a_case_that_fails_it(check):
    """A new check without a case above might pass whatever it sees."""
    for workload in fidelity.KINDS:
        kinds = {one.seen.split(":")[0].split(" over ")[0].split(" at ")[0] for one in check(workload)}
        broken = {seen.split(":")[0].split(" over ")[0].split(" at ")[0] for _, _, seen in FAILURES}
        assert kinds <= broken


@pytest.mark.parametrize(("actors", "passed"), [([(0, "a"), (1, "a")], True), (ACTORS, False), ([(0, "a")], False)])
def test_on_one_machine_all_training_actors_are_there(check, main, capsys, actors, passed):
    check("ppo", actors=actors)
    assert (main("ppo", "--one-machine") == 0) is passed
    shown = ", ".join(f"rank {rank} on {machine}" for rank, machine in actors)
    assert f"{'ok' if passed else 'FAIL':<8}training actors, on one machine: {shown}\n" in capsys.readouterr().out


def test_a_run_without_files(main, capsys):
    assert main("ppo") == 9
    printed = capsys.readouterr().out
    assert "ok " not in printed
    assert printed.count("FAIL") == 12


GPU = {"step": 1, "data": RL | {"actor/grad_norm": 0.002}}


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        ({}, ""),
        ({fidelity.CORRELATION: 0.98}, "rollout_actor_probs_pearson_corr"),
        ({fidelity.CORRELATION: None}, "rollout_actor_probs_pearson_corr"),
        ({"actor/grad_norm": 0.0}, "actor/grad_norm"),
        ({"critic/score/max": 0.0}, "critic/score"),
    ],
)
def test_a_job_on_gpus_is_checked_by_its_metrics(main, tmp_path, capsys, change, fails):
    data = {key: value for key, value in (GPU["data"] | change).items() if value is not None}
    write(tmp_path / "metrics.jsonl", json.dumps(GPU | {"data": data}) + "\n")
    assert main("ppo", "--on-gpu") == (9 if fails else 0)
    failed = [line for line in capsys.readouterr().out.splitlines()[:-1] if line.startswith("FAIL")]
    assert [line.split()[1] for line in failed] == ([fails] if fails else [])
