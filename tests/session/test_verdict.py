"""What a session runs next, what it takes over from earlier ones, and its verdict: on recorded job directories."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from verdict_runs import rewrite, rows_of, unpack

from verl_regress.base.layout import SharedRoot
from verl_regress.session import checks, recorded_points, report, reuse, schedule, suites, verdict
from verl_regress.session.schedule import ScheduledRun
from verl_regress.store.hashes import digest
from verl_regress.store.sessions import Session

pytestmark = pytest.mark.slow

SUITE = "cases:\n  ppo: {workload: ppo}\n  grpo: {workload: grpo}\n"
TREES = {"A": "a" * 64, "B": "b" * 64}


@pytest.fixture
def root(tmp_path):
    return SharedRoot(tmp_path)


def make(root, name="20261122T100000Z", suite=SUITE, trees=TREES):
    session = Session(root.sessions / name)
    (session.path / "evidence").mkdir(parents=True)
    session.write(
        "begin",
        {
            "suite": suites.parse(suite, "my.yaml").recorded(), "trees": trees, "codes": {"A": "codeA", "B": "codeB"},
            "profile": "cpu (rehearsal: no GPU)", "cluster": "mine", "only": [],
        },
    )  # fmt: skip
    return session


def job(root, recorded, name, tree, change=None, exit_code=0, checkpoints=("global_step_4",), steps=(1, 2, 3, 4)):
    """The evidence of a job whose directory is a copy of a recorded one, which has four steps; later ones are like these."""
    directory = unpack(root.jobs, recorded, name)

    def edit(step, data):
        data["timing_s/step"] = len(list(root.jobs.iterdir())) + step / 7  # no run repeats the times of another one
        (change or (lambda step, data: None))(step, data)

    rewrite(directory, edit)
    lines = rows_of(directory)
    rows = [{**line, "step": step} for step in steps for line in lines if line["step"] == (step - 1) % 4 + 1]
    (directory / "logs/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for checkpoint in checkpoints:
        (directory / "checkpoints" / checkpoint).mkdir(parents=True, exist_ok=True)
    (directory / "state").mkdir(exist_ok=True)
    ended = {"exit_code": exit_code, "reason": "the trainer ended" if exit_code == 0 else "KeyError: no"}
    (directory / "state/ended").write_text(json.dumps(ended))
    return {
        "submission_id": name, "job_dir": str(directory), "code": {"tree_sha256": tree}, "checkpoints": list(checkpoints),
        "state": {"ended": ended}, "artefacts": {"model sha256": "m", "data sha256": "d"}, "packages": None, "image": "sha256:1", "stalled": False,
        "plan": {"code_id": "x", "workload": recorded.split("-")[0]}, "steps": list(steps),
        "ray": {"start_time": 1000, "end_time": 31000}, "digest": digest(directory),
    }  # fmt: skip


def pair(root, session, change=None, recorded="ppo-0.9.1-v1-1", **of_b):
    """Records runs of `ppo`: `change` edits B's, and `of_b` is what else its evidence says."""
    session.write_job("ppo_b", {**job(root, recorded, "b", TREES["B"], change), **of_b})
    session.write_job("ppo_a", job(root, recorded, "a", TREES["A"]))


def lr(step, data):
    data["actor/lr"] = 3e-6


def other_entropy(step, data):
    if "actor/entropy" in data:
        data["actor/entropy"] *= 1.2


def sign(step, data):
    if "critic/advantages/max" in data:
        high, low = data["critic/advantages/max"], data["critic/advantages/min"]
        data["critic/advantages/max"], data["critic/advantages/min"] = -low, -high


def following(session, wants=None):
    evidence = session.evidence()
    suite = suites.of_recorded(evidence["begin"]["suite"])
    return schedule.next_run(suite, evidence, wants or (lambda case: verdict.wants(case, evidence)))


def words(session):
    return {each.case: each.word.value for each in verdict.of_session(session.evidence())}


def test_b_runs_first_then_a_and_an_equal_pair_is_enough(root):
    session = make(root)
    assert following(session) == ScheduledRun("ppo", "B", 100, 1)
    session.write_job("ppo_b", job(root, "ppo-0.9.1-v1-1", "b", TREES["B"]))
    assert following(session) == ScheduledRun("ppo", "A", 100, 1)
    session.write_job("ppo_a", job(root, "ppo-0.9.1-v1-1", "a", TREES["A"]))
    assert following(session) == ScheduledRun("grpo", "B", 100, 1)
    assert words(session) == {"ppo": "identical", "grpo": "inconclusive"}


def test_a_difference_asks_for_a_second_run_of_a_and_then_is_a_change(root):
    session = make(root, suite="cases: {ppo: {workload: ppo}}")

    def other(step, data):
        if "actor/entropy" in data and step >= 2:
            data["actor/entropy"] *= 1.5

    pair(root, session, other, "ppo-0.9.1-v0")
    assert words(session) == {"ppo": "inconclusive"}
    assert following(session) == ScheduledRun("ppo", "A", 100, 1, kind="again")
    session.write_job("ppo_a_again", job(root, "ppo-0.9.1-v0", "again", TREES["A"]))
    assert following(session) is None
    found = verdict.of_session(session.evidence())[0]
    assert (found.word.value, found.first.step, found.first.metric) == ("changed", 2, "actor/entropy")


def test_a_regression_on_its_face_ends_the_case(root):
    session = make(root, suite="pairs: 8\ncases: {ppo: {workload: ppo}}")
    pair(root, session, sign)
    found = verdict.of_session(session.evidence())[0]
    assert (found.word.value, found.first.step) == ("regressed", 1)
    assert found.first.metric.startswith("critic/advantages")
    assert following(session) is None


def test_b_that_fails_is_regressed_and_a_that_fails_incomparable(root):
    for number, (fails_a, fails_b, word) in enumerate(
        [(0, 1, "regressed"), (1, 0, "incomparable"), (1, 1, "incomparable")]
    ):
        session = make(root, f"20261122T10000{number}Z", "pairs: 8\ncases: {ppo: {workload: ppo}}")
        session.write_job("ppo_b", job(root, "ppo-0.9.1-v1-1", f"b{number}", TREES["B"], exit_code=fails_b))
        session.write_job("ppo_a", job(root, "ppo-0.9.1-v1-1", f"a{number}", TREES["A"], exit_code=fails_a))
        assert words(session) == {"ppo": word}
        assert following(session) is None


def test_further_pairs_alternate_until_the_seeds_are_used_up(root):
    session = make(root, suite="seeds: [5, 6, 7]\ncases: {ppo: {workload: ppo, pairs: 3}}")
    made = []
    while (run := following(session, lambda case: {"again", "perturbed", "pairs"})) is not None:
        made.append((run.name, run.seed))
        session.write_job(run.name, {"checkpoints": []})
    assert made == [
        ("ppo_b", 5), ("ppo_a", 5), ("ppo_a_again", 5), ("ppo_a_perturbed", 5), ("ppo_a_2", 6), ("ppo_b_2", 6), ("ppo_b_3", 7), ("ppo_a_3", 7),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("saved", "trained", "further", "start", "end"),
    [
        ((4,), 4, 2, 4, 6),  # the run trained nothing after it
        ((1, 2, 4), 4, 2, 2, 4),  # the newest after which it trained so many steps
        ((1, 4), 4, 2, 1, 4),  # to the run's end, although that is more than 2 steps
        ((3, 4), 4, 2, 4, 6),
        ((2, 4), 0, 2, 4, 6),  # the run recorded no step
    ],
)  # fmt: skip
def test_a_case_that_continues_takes_a_checkpoint_of_its_own_side(root, saved, trained, further, start, end):
    cases = f"cases:\n  ppo: {{workload: ppo, overrides: [a=1]}}\n  more: {{continues: ppo, steps: {further}}}\n"
    session = make(root, suite=cases)
    for side in "ab":
        checkpoints = [f"global_step_{step}" for step in saved]
        steps = tuple(range(1, trained + 1))
        found = job(root, "ppo-0.9.1-v1-1", side, TREES[side.upper()], checkpoints=checkpoints, steps=steps)
        session.write_job(f"ppo_{side}", found)
    run = following(session)
    suite = suites.of_recorded(session.evidence()["begin"]["suite"])
    assert run == ScheduledRun("more", "B", 100, 1)
    assert schedule.overrides_of(run, suite, session.evidence()) == [
        "a=1", "trainer.resume_mode=resume_path", f"trainer.resume_from_path={root.jobs}/b/checkpoints/global_step_{start}",
        f"trainer.total_training_steps={end}",
    ]  # fmt: skip


RESUMED = "pairs: 8\ncases:\n  ppo: {workload: ppo}\n  more: {continues: ppo, steps: 2}\n"


def resume(root, session, changes, steps=(3, 4), number=""):
    """Record a pair of `ppo`, and one of `more` that trained these steps; `changes` has what is edited, by run."""
    for side in "ba":
        for case, trained in (("ppo", (1, 2, 3, 4)), ("more", steps)):
            name = f"{case}_{side}{number}"
            saved = ("global_step_2", "global_step_4") if trained[0] == 1 and steps[0] == 3 else ("global_step_4",)
            directory = name.replace("_", "-")
            more = {"checkpoints": saved, "steps": trained}
            found = job(root, "ppo-0.9.1-v1-1", directory, TREES[side.upper()], changes.get(name), **more)
            session.write_job(name, {**found, "loaded": {"verl/a.py": side, "verl/__init__.py": "1"}})


def test_a_case_that_continues_runs_that_differ_says_so_and_asks_for_no_more(root):
    session = make(root, suite=RESUMED)
    resume(root, session, {"ppo_b": sign, "more_b": sign}, steps=(5, 6))
    assert following(session) is None
    found = verdict.of_session(session.evidence())[1]
    said = "A and B both resume, but continue from runs of ppo that differ already (regressed): see there"
    assert (found.word.value, found.reason) == ("inconclusive", said)


def lost(step, data):
    data["critic/vf_loss"] *= 1.5


def test_b_that_does_not_go_on_where_its_checkpoint_was_is_regressed(root):
    session = make(root, suite=RESUMED)
    resume(root, session, {"more_b": lost})
    assert following(session) is None
    found = verdict.of_session(session.evidence())
    assert [each.word.value for each in found] == ["identical", "regressed"]
    said = "B does not go on where its checkpoint was, and A does: at step 3, critic/vf_loss is "
    assert found[1].reason.startswith(said)
    assert found[1].files == ("verl/a.py",)
    evidence = session.evidence()
    outcome = report.SessionOutcome(session, evidence, [], found)
    said = "A goes on where its checkpoint was: steps 3 to 4 of its resumed and its straight run are bit-equal"
    assert report.as_json(outcome)["cases"][1]["notes"][0] == said
    assert f"note        {said}" in report.as_markdown(outcome)
    assert said in report.as_html(outcome)


def test_each_resumed_run_is_compared_with_the_run_that_it_continues(root):
    """Of its side and its seed: B trains otherwise than A, and the second pair otherwise than the first."""
    session = make(root, suite=RESUMED.replace("ppo}", "ppo, deterministic: true}"))
    resume(root, session, {"ppo_b": lost, "more_b": lost})
    assert words(session) == {"ppo": "changed", "more": "same"}

    def seeded(step, data):
        data["critic/vf_loss"] *= 3

    resume(root, session, dict.fromkeys(("ppo_a_2", "more_a_2", "ppo_b_2", "more_b_2"), seeded), number="_2")
    for directory in root.jobs.glob("*-2"):
        asked = json.loads((directory / "config/asked.json").read_text())
        (directory / "config/asked.json").write_text(json.dumps({"said": {**asked["said"], "seed": 200}}))
    assert words(session)["more"] == "same"


def test_a_case_cannot_continue_a_run_that_left_no_checkpoint(root):
    session = make(root, suite="cases:\n  ppo: {workload: ppo}\n  more: {continues: ppo, steps: 2}\n")
    session.write_job("ppo_b", job(root, "ppo-0.9.1-v1-1", "b", TREES["B"], exit_code=1, checkpoints=()))
    session.write_job("ppo_a", job(root, "ppo-0.9.1-v1-1", "a", TREES["A"]))
    assert following(session) is None
    found = verdict.of_session(session.evidence())
    assert [each.word.value for each in found] == ["regressed", "inconclusive"]
    assert found[1].reason == "more_a and more_b did not run: ppo_b, which it continues, left no checkpoint"


@pytest.mark.parametrize(
    ("recorded", "reason"), [("weights", "the final weights are not"), ("sampled", "the sampled tokens are not")]
)
def test_other_final_weights_or_samples_are_a_change_although_every_metric_is_equal(root, recorded, reason):
    session = make(root, suite="cases: {ppo: {workload: ppo}}")
    session.write_job("ppo_b", {**job(root, "ppo-0.9.1-v1-1", "b", TREES["B"]), recorded: "0" * 16})
    session.write_job("ppo_a", {**job(root, "ppo-0.9.1-v1-1", "a", TREES["A"]), recorded: "1" * 16})
    found = verdict.of_session(session.evidence())[0]
    assert (found.word.value, found.reason) == ("changed", f"all metrics are bit-equal, but {reason}")


def test_a_checkpoint_that_was_collected_meanwhile_is_said_to_be_gone(root):
    session = make(root, suite="cases:\n  ppo: {workload: ppo}\n  more: {continues: ppo, steps: 2}\n")
    pair(root, session)
    shutil.rmtree(root.jobs / "b" / "checkpoints")
    assert following(session) is None
    reason = verdict.of_session(session.evidence())[1].reason
    assert reason.endswith("the checkpoint of ppo_b, which it continues, is gone ('make gc' removes old ones)")


def replayed(root, suite="cases: {ppo: {workload: ppo}}"):
    session = make(root, suite=suite)
    session.write("replay", {"cases": {"ppo": {"recorded_by": "ppo", "steps": 4}}})
    return session


def replays(job_dir, session):
    """Say in the job's directory that it trained on a recording of the session."""
    asked = job_dir / "config/asked.json"
    said = json.loads(asked.read_text())
    text = f"skip.rollout.dump_dir={session.path}/replay/ppo-100"
    said["said"]["overrides"] += [{"text": text, "origin": "REPLAY=1"}]
    asked.write_text(json.dumps(said))


def test_in_a_replayed_case_a_comes_first_in_every_pair_and_b_needs_its_recording(root):
    session = replayed(root, "pairs: 8\ncases: {ppo: {workload: ppo}}")
    ran = []
    while (run := following(session, lambda case: {"pairs"})) is not None and len(ran) < 4:
        ran.append(run.name)
        session.write_job(run.name, job(root, "ppo-0.9.1-v0", run.name, TREES[run.side]))
        if run.name == "ppo_a":
            session.write("recording-ppo-100", {"files": {}})
    assert ran == ["ppo_a", "ppo_b", "ppo_a_2"]  # nothing was recorded with the second seed
    session.write("recording-ppo-200", {"files": {}})
    for name in "ppo_a_again_2", "ppo_b_2":
        run = following(session, lambda case: {"pairs"})
        assert run.name == name
        session.write_job(name, job(root, "ppo-0.9.1-v0", name, TREES[run.side]))
    assert schedule.recording_of(ScheduledRun("ppo", "A", 100, 1, kind="again"), session.evidence()).is_made is False
    assert schedule.recording_of(ScheduledRun("ppo", "A", 200, 2), session.evidence()) == schedule.Recording(
        "ppo-200", 4, True
    )


def test_a_run_that_did_not_train_on_the_recording_decides_nothing(root):
    session = replayed(root)
    assert words(session) == {"ppo": "inconclusive"}  # no run
    pair(root, session, sign, "ppo-0.9.1-v0", misused="it did not read A's rollouts of step 2")
    assert words(session) == {"ppo": "inconclusive"}
    assert "it did not read A's rollouts of step 2" in verdict.of_session(session.evidence())[0].reason
    session.write_job("ppo_a", {**session.read("job-ppo_a"), "misused": "its rollouts of step 2 were not recorded"})
    assert words(session) == {"ppo": "incomparable"}


def first_step(root, name, tokens, change=None):
    return {**job(root, "ppo-0.9.1-v0", name, TREES["B"], change, steps=(1,)), "sampled_first": tokens}


def test_the_rollouts_of_a_replayed_case_are_a_verdict_and_say_which_half_differs(root):
    session = replayed(root)
    session.write("recording-ppo-100", {"files": {}})
    pair(root, session, recorded="ppo-0.9.1-v0")
    session.write_job("ppo_a", {**session.read("job-ppo_a"), "sampled_first": "t"})
    assert words(session) == {"ppo": "identical", "ppo rollout": "inconclusive"}  # it lacks its run
    own = following(session)
    assert (own, own.name) == (ScheduledRun("ppo", "B", 100, 1, kind="rollout"), "ppo_b_rollout")
    suite = suites.parse("cases: {ppo: {workload: ppo}}", "x")
    said = ["trainer.total_training_steps=1", "trainer.save_freq=-1"]
    assert schedule.overrides_of(own, suite, session.evidence()) == said
    assert schedule.recording_of(own, session.evidence()) is None

    def longer(step, data):
        if "response_length/mean" in data:
            data["response_length/mean"] *= 1.5

    session.write_job("ppo_b_rollout", first_step(root, "b-own", "other", longer))
    assert words(session) == {"ppo": "identical", "ppo rollout": "inconclusive"}
    assert following(session) == ScheduledRun("ppo", "A", 100, 1, kind="rollout")
    session.write_job("ppo_a_rollout", first_step(root, "a-own", "t"))
    assert following(session) is None
    assert words(session) == {"ppo": "identical", "ppo rollout": "changed"}
    assert "which half: the trainer is as in A, the rollout differs" in verdict.of_session(session.evidence())[0].notes
    assert len(schedule.runs_of(suite.cases[0], "B", session.evidence())) == 1


def test_a_replayed_case_without_the_rollouts_of_b_is_not_decided(root):
    session = replayed(root)
    session.write("recording-ppo-100", {"files": {}})
    pair(root, session, recorded="ppo-0.9.1-v0")
    found = verdict.of_session(session.evidence(), budget=2)[1]
    said = "ppo_b_rollout did not run: BUDGET=2 runs were used up before"
    assert (found.case, found.word.value, found.reason) == ("ppo rollout", "inconclusive", said)
    session.write("refused-ppo_b_rollout", {"reason": "its override is unknown"})
    assert following(session) is None
    assert words(session) == {"ppo": "identical", "ppo rollout": "regressed"}


def test_an_a_that_failed_before_b_ran_is_no_baseline(root):
    session = replayed(root)
    session.write_job("ppo_a", job(root, "ppo-0.9.1-v0", "a", TREES["A"], exit_code=1))
    assert following(session) is None
    (found,) = verdict.of_session(session.evidence())
    assert found.word.value == "incomparable"
    assert found.reason.startswith("A cannot be the baseline, because in 'a' the job failed")


def test_in_a_replayed_case_only_a_repeat_says_whether_a_repeats_itself(root):
    session = replayed(root, "cases: {ppo: {workload: ppo, deterministic: true}}")
    session.write("recording-ppo-100", {"files": {}})
    pair(root, session, other_entropy, "ppo-0.9.1-v0")
    assert words(session)["ppo"] == "inconclusive"
    assert following(session) == ScheduledRun("ppo", "A", 100, 1, kind="again")


def test_a_replayed_case_that_two_runs_of_a_do_not_decide_takes_a_third_one(root):
    def of(name, rate):
        def scaled(step, data):
            for metric in ("actor/grad_norm", "actor/pg_loss"):
                data[metric] *= rate

        made = job(root, "ppo-0.9.1-v0", name, TREES[name[0].upper()], scaled)
        replays(root.jobs / name, session)
        return made

    session = replayed(root, "pairs: 2\ncases: {ppo: {workload: ppo}}")
    session.write("recording-ppo-100", {"files": {}})
    for name, rate in ("a", 1.0), ("b", 1.7), ("a_again", 1.5):
        session.write_job(f"ppo_{name}", of(name, rate))
    assert words(session)["ppo"] == "inconclusive"
    assert following(session) == ScheduledRun("ppo", "A", 100, 1, kind="third")
    session.write_job("ppo_a_third", of("a_third", 1.5))
    assert words(session)["ppo"] == "changed"  # the two that replay are equal
    # Its first run differed from these, so the log-probs of runs that generate say little.
    session.write_job("ppo_a", {**session.read("job-ppo_a"), "sampled_first": "t"})

    def slightly(step, data):
        data["training/rollout_probs_diff_mean"] *= 1.01

    session.write_job("ppo_b_rollout", first_step(root, "b-own", "t", slightly))
    session.write_job("ppo_a_rollout", first_step(root, "a-own", "t"))
    assert words(session)["ppo rollout"] == "same"


def test_the_history_groups_replayed_runs_of_all_sessions_without_their_times(root):
    for name in ("20261122T100000Z", "20261122T100001Z"):
        session = make(root, name, "cases: {ppo: {workload: ppo}}")
        session.write_job("ppo_a", job(root, "ppo-0.9.1-v0", f"a-{name}", TREES["A"]))
        replays(root.jobs / f"a-{name}", session)
    points, _ = recorded_points.collect(root)
    assert [point.run.facts["replay"] for point in points] == ["True", "True"]
    assert not [name for point in points for name in point.run.series if name.startswith("timing_s/")]


@pytest.mark.parametrize("is_replayed", [False, True])
def test_b_that_stalls_is_regressed_and_generates_nothing_more(root, is_replayed):
    session = replayed(root) if is_replayed else make(root, suite="cases: {ppo: {workload: ppo}}")
    session.write("recording-ppo-100", {"files": {}})
    pair(root, session, recorded="ppo-0.9.1-v0", stalled=True)
    (found,) = verdict.of_session(session.evidence())
    assert (found.case, found.word.value, following(session)) == ("ppo", "regressed", None)
    assert "it stalled: it made no step for too long (START_TIMEOUT, STALL_TIMEOUT)" in found.reason


def test_a_config_that_only_b_refuses_is_a_regression(root):
    session = make(root, suite="cases: {ppo: {workload: ppo}}")
    session.write("refused-ppo_b", {"reason": "The override 'a=1' sets a key that ppo_trainer of CODE_ID=b lacks."})
    assert following(session) is None
    found = verdict.of_session(session.evidence())[0]
    assert found.word.value == "regressed"
    assert found.reason.startswith("B refuses what A takes, before it trains: The override 'a=1' sets a key")


def test_a_session_with_a_failed_check_gives_no_answer(root):
    session = make(root, suite="cases: {ppo: {workload: ppo}}")
    pair(root, session)
    evidence = session.evidence()
    failed = checks.Result("placement", "every driver ran on a worker", "2 jobs", ["ppo_b ran on \x1b[2J"])
    outcome = report.SessionOutcome(session, evidence, [failed], verdict.of_session(evidence))
    assert outcome.status == 9
    why = "placement failed, so the runs were not what was asked for"
    assert outcome.headline == f"no answer: {why}; 0 of 1 checks passed"
    said = report.text(outcome)
    assert said[-1] == f"{outcome.headline} (exit status 9)"
    assert not any("(exit status 0" in line for line in said)
    assert "- ppo_b ran on \\x1b[2J" in said[1]
    written = report.as_json(outcome)
    assert [written[name] for name in ("status", "verdict", "passed", "headline")] == [9, None, False, outcome.headline]
    assert written["cases"][0]["word"] == "identical"
    junit = ElementTree.fromstring(report.as_junit(outcome))
    assert [junit.get(name) for name in ("tests", "failures", "skipped")] == ["2", "1", "1"]
    assert [each.get("message") for each in junit.iter("skipped")] == [outcome.headline]


def test_a_resumed_run_that_is_wrong_on_its_face_is_a_regression(root):
    session = make(root, suite=RESUMED.replace("ppo}", "ppo, deterministic: true}"))
    resume(root, session, {"ppo_b": lr, "more_b": sign}, steps=(5, 6))
    assert words(session) == {"ppo": "changed", "more": "regressed"}


GROUP = "cases: {ppo: {workload: ppo, equal: [[a=1, b=2], [c=3]]}}"


def record_group(root, session, broken):
    """Record a run of each config with A and B, as the schedule asks for them. `broken` edits that of one run."""
    made = []
    while (run := following(session)) is not None:
        made.append(run.name)
        found = job(root, "ppo-0.9.1-v1-1", run.name.replace("_", "-"), TREES[run.side], broken.get(run.name))
        session.write_job(run.name, {**found, "loaded": {"verl/a.py": run.side, "verl/b.py": "1"}})
    return made


def test_runs_of_one_code_that_must_agree_are_one_verdict(root):
    session = make(root, suite=GROUP)
    runs = record_group(root, session, {"ppo_b": sign, "ppo-1_b": sign, "ppo-2_b": sign})
    assert runs == ["ppo_b", "ppo_a", "ppo-1_b", "ppo-1_a", "ppo-2_b", "ppo-2_a"]
    assert words(session) == {"ppo": "same"}  # how B trains beside A is the question of another case
    suite = suites.of_recorded(session.evidence()["begin"]["suite"])
    assert schedule.overrides_of(ScheduledRun("ppo-1", "B", 100, 1), suite, session.evidence()) == ["a=1", "b=2"]


def test_a_group_is_about_the_tokens_of_its_first_step(root):
    session = make(root, suite=GROUP)
    record_group(root, session, {})
    for number, name in enumerate(["ppo_a", "ppo-1_a", "ppo-2_a"]):
        sampled = {"sampled": str(number), "sampled_first": "t"}
        session.write_job(name, {**session.read(f"job-{name}"), **sampled})
    assert words(session) == {"ppo": "same"}
    session.write_job("ppo-2_a", {**session.read("job-ppo-2_a"), "sampled_first": "other"})
    assert words(session) == {"ppo": "inconclusive"}


def test_b_that_breaks_what_a_holds_is_regressed_and_its_group_is_one_card(root):
    session = make(root, suite=GROUP)
    record_group(root, session, {"ppo-2_b": lost})
    (found,) = verdict.of_session(session.evidence())
    assert (found.case, found.word.value, found.files) == ("ppo", "regressed", ("verl/a.py",))
    assert found.reason.startswith("B breaks what A holds: critic/vf_loss is 1.5 times as large with c=3 (")
    page = report.as_html(report.SessionOutcome(session, session.evidence(), [], [found]))
    assert page.count('id="case-ppo') == 1
    assert all(f">{run}<" in page for run in ("ppo_a", "ppo-1_a", "ppo-2_b"))


def test_a_group_lacks_what_one_of_its_cases_lacks(root):
    session = make(root, suite=GROUP)
    pair(root, session)
    (found,) = verdict.of_session(session.evidence(), budget=2)
    assert (found.case, found.word.value) == ("ppo", "inconclusive")
    assert found.reason == "ppo-1_a and ppo-1_b did not run: BUDGET=2 runs were used up before"
    session.write("refused-ppo-1_b", {"reason": "The override 'a=1' sets a key that ppo_trainer of CODE_ID=b lacks."})
    assert words(session) == {"ppo": "regressed"}
    assert following(session) == ScheduledRun("ppo-2", "B", 100, 1)


MEMORY = "cases: {ppo: {workload: ppo, deterministic: true, memory: true}}"


def remember(found, sizes=range(100, 160)):
    """The job with a record of one process, a size per second."""
    folder = Path(found["job_dir"]) / "state/memory"
    folder.mkdir()
    (folder / "n1-7.txt").write_text("".join(f"{1e6 + at:.1f} {size * 10**7}\n" for at, size in enumerate(sizes)))
    return {**found, "digest": digest(Path(found["job_dir"]))}


def timed(step, data):
    data["timing_s/step"] += 15.0


def test_memory_is_a_verdict_of_its_own_and_asks_for_the_pairs_that_it_needs(root):
    session = make(root, suite=f"pairs: 3\n{MEMORY}")
    for side in "ba":
        found = remember(job(root, "ppo-0.9.1-v1-1", side, TREES[side.upper()], timed))
        session.write_job(f"ppo_{side}", found)
    found = verdict.of_session(session.evidence())
    assert [(each.case, each.word.value) for each in found] == [("ppo", "identical"), ("ppo memory", "inconclusive")]
    reason = "all processes together need at most 1.59 GB with A and 1.59 GB with B; "
    assert found[1].reason.startswith(reason)
    assert found[1].reason.endswith(" MB with B, in 1 pair: run 2 more")
    assert following(session) == ScheduledRun("ppo", "A", 200, 2)


def test_memory_that_was_not_recorded_is_inconclusive_and_asks_for_nothing(root):
    session = make(root, suite=f"pairs: 3\n{MEMORY}")
    session.write_job("ppo_b", remember(job(root, "ppo-0.9.1-v1-1", "b", TREES["B"], timed)))
    session.write_job("ppo_a", job(root, "ppo-0.9.1-v1-1", "a", TREES["A"], timed))
    assert words(session) == {"ppo": "identical", "ppo memory": "inconclusive"}
    reason = verdict.of_session(session.evidence())[1].reason
    assert reason.startswith("'a' has no records of its processes' memory: ")
    assert following(session) is None


def test_a_budget_that_is_used_up_is_named(root):
    session = make(root)
    session.write_job("ppo_b", job(root, "ppo-0.9.1-v1-1", "b", TREES["B"]))
    found = verdict.of_session(session.evidence(), budget=1)
    assert found[0].reason == "ppo_a did not run: BUDGET=1 runs were used up before"
    assert found[1].reason == "grpo_a and grpo_b did not run: BUDGET=1 runs were used up before"


def test_the_report_says_the_answer_first_and_what_the_jobs_read(root):
    session = make(root, suite="cases: {ppo: {workload: ppo}}")
    loaded = {"verl/__init__.py": "1", "verl/trainer/ppo/core_algos.py": "1", "verl/a.py": "1"}
    changed = {**loaded, "verl/trainer/ppo/core_algos.py": "2", "verl/a.py": "2", "verl/only_b.py": "2"}
    read = {"/own/train.parquet": "2" * 64, "/own/score.py": None}
    b = {**job(root, "ppo-0.9.1-v1-1", "b", TREES["B"], sign), "loaded": changed, "inputs": read}
    session.write_job("ppo_b", b)
    a = {**job(root, "ppo-0.9.1-v1-1", "a", TREES["A"]), "reused_from": "20261121T100000Z", "loaded": loaded}
    session.write_job("ppo_a", a)
    evidence = session.evidence()
    outcome = report.SessionOutcome(session, evidence, [], verdict.of_session(evidence))
    page = report.as_markdown(outcome)
    assert page.startswith("# regressed: B breaks what A does (ppo: step 1, critic/advantages/max: ")
    assert "| ppo | **regressed** | with equal rewards, critic/advantages has the opposite sign" in page
    assert "code        2 of the loaded files differ: verl/trainer/ppo/core_algos.py, verl/a.py\n" in page
    assert "| ppo_a (of the session 20261121T100000Z) | `a` |" in page
    written = report.as_json(outcome)
    assert (written["verdict"], written["jobs"]["ppo_b"]["inputs"]) == ("regressed", read)
    assert 'name="ppo"><failure message="regressed: ' in report.as_junit(outcome)


def entropy(**sizes):
    """The record with an entropy that is larger by these shares, by step (`s3`)."""

    def change(step, data):
        data["actor/entropy"] *= 1 + sizes.get(f"s{step}", 0.0)

    return change


class TestAPerturbedRunOfA:
    """Where B's difference begins as rounding and grows, a run of A with perturbed last bits tells what is noise."""

    KNOWN = staticmethod(entropy(s1=1e-7, s2=2e-6, s3=1e-4))

    def session(self, root, name="20261122T100000Z", suite="cases: {ppo: {workload: ppo, deterministic: true}}"):
        session = make(root, name, suite)
        session.write_job("ppo_b", job(root, "ppo-0.9.1-v1-1", f"b-{name}", TREES["B"], self.KNOWN))
        session.write_job("ppo_a", job(root, "ppo-0.9.1-v1-1", f"a-{name}", TREES["A"]))
        return session

    def perturbed(self, root, name="perturbed", **sizes):
        found = job(root, "ppo-0.9.1-v1-1", name, TREES["A"], entropy(**sizes))
        environment = Path(found["job_dir"]) / "config/runtime_env.json"
        said = json.loads(environment.read_text())
        hooks = said["env_vars"]["VERL_REGRESS_HOOKS"]
        said["env_vars"]["VERL_REGRESS_HOOKS"] = hooks.replace("identity", "identity,last_bit")
        environment.write_text(json.dumps(said))
        return {**found, "digest": digest(Path(found["job_dir"]))}

    @pytest.mark.parametrize(("size", "word"), [(1e-4, "same"), (1e-6, "inconclusive"), (0.0, "inconclusive")])
    def test_is_made_once_and_decides(self, root, size, word):
        session = self.session(root)
        assert words(session) == {"ppo": "inconclusive"}
        assert following(session) == ScheduledRun("ppo", "A", 100, 1, kind="perturbed")
        session.write_job("ppo_a_perturbed", self.perturbed(root, s2=size, s3=size))
        assert words(session) == {"ppo": word}
        assert following(session) is None

    def test_comes_before_further_pairs_and_after_the_second_run_of_a(self, root):
        session = self.session(root, suite="pairs: 3\ncases: {ppo: {workload: ppo}}")
        assert following(session) == ScheduledRun("ppo", "A", 100, 1, kind="again")
        session.write_job("ppo_a_again", job(root, "ppo-0.9.1-v1-1", "again", TREES["A"]))
        assert following(session) == ScheduledRun("ppo", "A", 100, 1, kind="perturbed")
        session.write_job("ppo_a_perturbed", self.perturbed(root, s3=1e-6))
        assert following(session) == ScheduledRun("ppo", "A", 200, 2)

    def test_is_made_for_no_change_that_does_not_begin_as_rounding(self, root):
        session = make(root, suite="cases: {ppo: {workload: ppo, deterministic: true}}")
        pair(root, session, entropy(s2=0.01))
        assert (words(session), following(session)) == ({"ppo": "changed"}, None)

    def test_is_not_compared_with_the_straight_run_that_it_continues(self, root):
        more = "  more: {continues: ppo, steps: 4, deterministic: true}\n"
        session = self.session(root, suite=f"cases:\n  ppo: {{workload: ppo, deterministic: true}}\n{more}")
        session.write_job("more_b", job(root, "ppo-0.9.1-v1-1", "more-b", TREES["B"], self.KNOWN))
        session.write_job("more_a", job(root, "ppo-0.9.1-v1-1", "more-a", TREES["A"]))
        before = words(session)
        session.write_job("more_a_perturbed", self.perturbed(root, s3=3e-5))
        assert (before["more"], words(session)) == ("same", before)

    def test_is_made_for_no_resumed_run_that_regressed(self, root):
        def jumps(step, data):
            entropy(s2=1e-6)(step, data)
            data["actor/grad_norm"] *= 1.01 if step == 3 else 1

        one = "{workload: ppo, deterministic: true}"
        more = "{continues: ppo, steps: 4, deterministic: true}"
        session = make(root, suite=f"cases:\n  ppo: {one}\n  more: {more}\n")
        for name, change in (("ppo_b", None), ("ppo_a", None), ("more_b", jumps), ("more_a", None)):
            side = name.split("_")[1].upper()
            session.write_job(name, job(root, "ppo-0.9.1-v1-1", name.replace("_", "-"), TREES[side], change))
        assert (words(session), following(session)) == ({"ppo": "identical", "more": "regressed"}, None)

    def test_is_taken_over_by_later_sessions_as_nothing_else(self, root):
        before = self.session(root, "20261121T100000Z")
        before.write_job("ppo_a_perturbed", self.perturbed(root, s3=1e-4))
        session = self.session(root)
        case = suites.of_recorded(session.evidence()["begin"]["suite"]).case("ppo")
        _, taken = reuse.earlier_run_of_a(root, session, case, ScheduledRun("ppo", "A", 100, 1, kind="perturbed"))
        assert taken["submission_id"] == "perturbed"
        shutil.rmtree(root.jobs / "a-20261121T100000Z")
        assert reuse.earlier_run_of_a(root, session, case, ScheduledRun("ppo", "A", 100, 1)) is None

    def test_is_in_the_reports_and_no_point_of_the_history(self, root):
        session = self.session(root)
        session.write_job("ppo_a_perturbed", self.perturbed(root, s3=1e-4))
        evidence = session.evidence()
        outcome = report.SessionOutcome(session, evidence, [], verdict.of_session(evidence))
        assert "| ppo_a_perturbed | `perturbed` |" in report.as_markdown(outcome)
        assert "ppo_a_perturbed" in report.as_json(outcome)["jobs"]
        assert ">ppo_a_perturbed<" in report.as_html(outcome)
        points, left = recorded_points.collect(root)
        assert (sorted(point.name for point in points), left) == (["ppo_a", "ppo_b"], [])
