"""Each line of fidelity can be false, and each by itself."""

import json

import pytest
from conftest import write

from verl_rehearsal import fidelity

STEPS = [(1, 0.9999, 1e-4), (5, 0.5, 1e-4), (10, 0.9991, 2e-4)]
UPDATES = [("a", "a"), ("b", "b")]
ACTORS = [(0, "10.0.0.2"), (1, "10.0.0.3")]


@pytest.fixture
def check(tmp_path):
    def check(steps=STEPS, updates=UPDATES, actors=ACTORS, size=2):
        rows = [
            {"step": step, "data": {fidelity.CORRELATION: correlation, "actor/lr": rate}}
            for step, correlation, rate in steps
        ]
        for row in rows:
            row["data"] = {key: value for key, value in row["data"].items() if value is not None}
        write(tmp_path / "logs" / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        reports = tmp_path / "state" / "reports"
        if updates is not None:
            hashes = [{"actor_sha256": actor, "rollout_sha256": rollout} for actor, rollout in updates]
            write(reports / "rollout_weights-1.json", json.dumps({"updates": hashes}))
        for rank, address in actors:
            report = {"rank": rank, "node_ip": address, "world_size": size}
            write(reports / f"training_actor-{rank}.json", json.dumps(report))
        return list(fidelity.check(tmp_path))

    return check


def test_a_faithful_run(check, tmp_path, capsys):
    check()
    assert fidelity.main(str(tmp_path)) == 0
    assert capsys.readouterr().out == (
        "ok      rollout_actor_probs_pearson_corr at step 1: 0.999900 (wanted: at least 0.999)\n"
        "ok      rollout_actor_probs_pearson_corr at step 10: 0.999100 (wanted: at least 0.999)\n"
        "ok      actor/lr over 3 steps: at least 0.0001 (wanted: 0.0001)\n"
        "ok      rollout's weights hash equal to the actor's: 2 of 2 updates on 1 replicas, 2 distinct weights\n"
        "ok      training actors, each on a worker of its own: rank 0 on 10.0.0.2, rank 1 on 10.0.0.3\n"
        "ok      fidelity: 5 of 5 lines hold\n"
    )


@pytest.mark.parametrize(
    ("given", "false", "seen"),
    [
        (
            {"steps": [(1, 0.99, 1e-4), *STEPS[1:]]},
            0,
            "rollout_actor_probs_pearson_corr at step 1: 0.990000 (wanted: at least 0.999)",
        ),
        (
            {"steps": [(1, float("nan"), 1e-4), *STEPS[1:]]},
            0,
            "rollout_actor_probs_pearson_corr at step 1: nan (wanted: at least 0.999)",
        ),
        (
            {"steps": [*STEPS[:2], (10, 0.99, 1e-4)]},
            1,
            "rollout_actor_probs_pearson_corr at step 10: 0.990000 (wanted: at least 0.999)",
        ),
        (
            {"steps": [*STEPS[:2], (10, None, 1e-4)]},
            1,
            "rollout_actor_probs_pearson_corr at step 10: missing (wanted: at least 0.999)",
        ),
        ({"steps": [*STEPS[:2], (10, 1, 1e-6)]}, 2, "actor/lr over 3 steps: at least 1e-06 (wanted: 0.0001)"),
        (
            {"steps": [(step, rho, None) for step, rho, _ in STEPS]},
            2,
            "actor/lr over 0 steps: at least 0 (wanted: 0.0001)",
        ),
        (
            {"updates": [("a", "a"), ("b", "a")]},
            3,
            "rollout's weights hash equal to the actor's: 1 of 2 updates on 1 replicas, 2 distinct weights",
        ),
        (
            {"updates": [("a", "a"), ("a", "a")]},
            3,
            "rollout's weights hash equal to the actor's: 2 of 2 updates on 1 replicas, 1 distinct weights",
        ),
        (
            {"updates": []},
            3,
            "rollout's weights hash equal to the actor's: 0 of 0 updates on 1 replicas, 0 distinct weights",
        ),
        (
            {"updates": None},
            3,
            "rollout's weights hash equal to the actor's: 0 of 0 updates on 0 replicas, 0 distinct weights",
        ),
        ({"actors": [(0, "a"), (1, "a")]}, 4, "training actors, each on a worker of its own: rank 0 on a, rank 1 on a"),
        ({"actors": [(0, "a")]}, 4, "training actors, each on a worker of its own: rank 0 on a"),
        ({"actors": [(0, "a")], "size": 1}, 4, "training actors, each on a worker of its own: rank 0 on a"),
        ({"actors": []}, 4, "training actors, each on a worker of its own: none reported"),
    ],
)
def test_each_line_can_be_false(check, tmp_path, capsys, given, false, seen):
    lines = check(**given)
    assert [number for number, line in enumerate(lines) if not line.holds] == [false]
    assert lines[false].seen == seen
    assert fidelity.main(str(tmp_path)) == 9
    assert capsys.readouterr().out.endswith("FALSE   fidelity: 4 of 5 lines hold\n")


def test_a_job_that_left_nothing(tmp_path, capsys):
    assert fidelity.main(str(tmp_path)) == 9
    assert capsys.readouterr().out.count("FALSE") == 6
