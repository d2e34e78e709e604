"""The judge on real runs (tests/recorded/calibration/): planted regressions are caught, harmless changes and A against A are not
alarms, also in noise, no record is missing, and maintain/calibration.md says what the judge says."""

import dataclasses
import itertools
import json
import lzma

import pytest

import calibrate
import calibration
import edits
from verl_verdict.decide import exact, judge, laws
from verl_verdict.decide.pairing import Pair
from verl_verdict.decide.verdicts import Word

pytestmark = pytest.mark.slow

RESULTS = {result.mutation.name: result for result in calibration.results()}
PLANTED = [name for name, result in RESULTS.items() if not result.mutation.harmless]
HARMLESS = [name for name, result in RESULTS.items() if result.mutation.harmless]
LOOKS = {each.name: calibration.looks(calibration.noisy_pairs(each)) for each in calibration.in_noise()}
IN_NOISE = {each.name: each for each in calibration.in_noise() if calibration.is_judged(LOOKS[each.name])}
KNOWN = calibration.known()


def test_each_mutation_has_a_record_of_its_patch_or_a_reason():
    assert {each.name for each in calibration.mutations()} - RESULTS.keys() == set(KNOWN["pending"])


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_regression_is_caught(name):
    result = RESULTS[name]
    assert result.is_caught == (name not in KNOWN["not_caught"]), result.verdict.reason


ROUNDING = RESULTS["harmless-equal-expression"].mutation
BESIDE = [name for name in PLANTED if RESULTS[name].mutation.recipe == ROUNDING.recipe]


def test_a_change_that_begins_as_rounding_is_the_same_with_the_perturbed_run():
    assert RESULTS[ROUNDING.name].verdict.word is Word.SAME
    alone = calibration.judged(dataclasses.replace(ROUNDING, is_rounding=False))
    assert (alone.word, alone.needs_perturbed) == (Word.INCONCLUSIVE, True)
    assert [name for name in RESULTS if RESULTS[name].verdict.needs_perturbed] == []


@pytest.mark.parametrize("name", BESIDE)
def test_a_perturbed_run_excuses_no_planted_regression(name):
    verdict = calibration.judged(dataclasses.replace(RESULTS[name].mutation, is_rounding=True))
    assert verdict.word in calibration.CAUGHT, verdict.reason


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_change_is_no_alarm(name):
    assert not RESULTS[name].is_alarm, RESULTS[name].verdict.reason


def test_each_mutation_in_noise_is_judged_to_the_end_or_has_a_reason():
    assert set(KNOWN["pending_in_noise"]) == set(calibration.IN_NOISE) - set(IN_NOISE)
    assert set(KNOWN["not_caught_in_noise"]) <= set(IN_NOISE)


@pytest.mark.parametrize("name", IN_NOISE)
def test_in_noise_a_planted_regression_is_caught_and_a_harmless_change_is_no_alarm(name):
    *_, last = LOOKS[name].values()
    if IN_NOISE[name].harmless:
        assert last.word not in (*calibration.ALARMS, Word.INCOMPARABLE), last.reason
    else:
        assert (last.word in calibration.CAUGHT) == (name not in KNOWN["not_caught_in_noise"]), last.reason


@pytest.mark.parametrize("name", RESULTS)
def test_a_repeats_itself(name):
    assert exact.repeats([calibration.load(run.name) for run in RESULTS[name].mutation.runs_of_a])


def test_a_weaker_judge_is_noticed(monkeypatch):
    monkeypatch.setattr(exact, "_is_rounding", lambda *_: True)
    passed = [name for name in PLANTED if calibration.judged(RESULTS[name].mutation).word not in calibration.CAUGHT]
    assert set(passed) > set(KNOWN["not_caught"])


@pytest.mark.parametrize("workload", calibration.WORKLOADS)
def test_noise_is_no_alarm(workload):
    alone, sessions = calibration.verdicts_on_noise(workload)
    assert [each.reason for each in (*alone, *sessions) if each.word in calibration.ALARMS] == []
    assert [each.reason for each in alone if each.word is Word.IDENTICAL] == []  # the noise is there
    assert sum(each.word is Word.SAME for each in sessions) >= 0.8 * len(sessions)


def test_replay_is_no_alarm_and_shows_a_planted_regression():
    for workload in ("grpo", "ppo"):
        found = [each for verdicts in calibration.verdicts_on_replays(workload).values() for each in verdicts]
        assert len(found) >= 20
        assert [each.reason for each in found if each.word in calibration.ALARMS] == []
    replayed = {each.name: calibration.looks(calibration.replayed_pairs(each)) for each in calibration.in_noise()}
    replayed = {name: [*seen.values()] for name, seen in replayed.items() if seen}
    assert {*calibration.CAUGHT, Word.INCONCLUSIVE} >= {first.word for first, *_ in replayed.values()}  # never the same
    assert sum(first.word in calibration.CAUGHT for first, *_ in replayed.values()) >= 5
    passed = {name for name, (*_, last) in replayed.items() if last.word is Word.SAME}
    assert passed == set(KNOWN["not_caught_with_replay"])


def test_none_of_three_replayed_runs_of_a_is_changed_beside_the_other_two():
    ((first, repeat), other), _ = calibration.replays_in_turn("grpo", calibration.REPLAYED)
    runs = [calibration._loaded(run, is_replay=True) for run in (first, repeat, other)]
    words = {judge.case(a, [b]).word for *a, b in itertools.permutations(runs)}
    assert words == {Word.SAME, Word.INCONCLUSIVE}
    turned = {
        name: {step: -value for step, value in runs[2].series[name].items()} for name in ("actor/pg_loss", "actor/loss")
    }
    b = dataclasses.replace(runs[2], series={**runs[2].series, **turned}, fingerprint="turned")
    assert judge.case(runs[:2], [b]).word is Word.INCONCLUSIVE  # a loss of another sign is no noise


EDITED = {found.edit.name: found for found in edits.results()}


@pytest.mark.parametrize("name", EDITED)
def test_an_edit_of_the_record_is_never_the_same_and_six_pairs_show_it(name):
    found = EDITED[name]
    every = [verdict for verdicts in (*found.noise.values(), found.replay) for verdict in verdicts]
    if found.edit.is_none:
        assert {each.word for each in every} <= {Word.SAME, Word.INCONCLUSIVE}
        assert Word.SAME in {each.word for each in every}
    else:
        assert {each.word.value for each in every} <= {*found.edit.words, "inconclusive", *REPLAYED.get(name, ())}
        enough = [verdict for pairs in (6, 8) for verdict in found.noise[pairs]]
        assert {each.word.value for each in enough} <= set(found.edit.words)


REPLAYED = {"reward-small": ("changed",)}  # on A's rollouts another reward is another one of equal answers


def test_no_run_of_a_breaks_what_the_others_agree_on():
    """Each run of A in turn beside all others, which have the laws."""
    runs = [run for pair in calibration.noisy("ppo") for run in pair if len(run.series) > 50]
    for at, run in enumerate(runs):
        others = [*runs[:at], *runs[at + 1 :]]
        pairs = [Pair(run.seed, tuple(each for each in others if each.seed == run.seed), (run,))]
        assert laws.breaches(others, [run], pairs) == []


def test_the_page_is_what_the_records_make():
    assert calibrate.PAGE.read_text(encoding="utf-8") == calibrate.page()


@pytest.mark.parametrize(("count", "of", "at_most"), [(0, 59, 0.0495), (3, 10, 0.6066), (4, 4, 1.0)])
def test_the_bound_is_that_of_clopper_and_pearson(count, of, at_most):
    assert calibrate.upper(count, of) == pytest.approx(at_most, abs=1e-4)
    assert calibrate.lower(of - count, of) == pytest.approx(1 - at_most, abs=1e-4)


# --- what is recorded


@pytest.fixture
def records(tmp_path, monkeypatch):
    """No records, and five mutations."""
    index = """
lost-sign: {title: The sign is lost, workload: ppo, signal: {step: 1, metrics: [critic/advantages]}}
slow: {title: Steps are slower, workload: grpo, steps: 4, overrides: [a.b=1], speed: true}
leak: {title: Memory is kept, workload: grpo, steps: 4, overrides: [a.b=1], memory: true}
resume: {title: The optimizer is lost, workload: ppo, continues: true, signal: {step: 5, metrics: [actor/]}}
rounds: {title: Sums in another order, workload: ppo, harmless: true, perturbed: true}
"""
    (tmp_path / "index.yaml").write_text(index)
    for name in ("lost-sign", "slow", "leak", "resume", "rounds"):
        (tmp_path / f"{name}.patch").write_text(f"patch {name}\n")
    monkeypatch.setattr(calibration, "IN_NOISE", ())
    monkeypatch.setattr(calibration, "MUTATIONS", tmp_path)
    monkeypatch.setattr(calibration, "RECORDS", tmp_path / "records")
    return tmp_path / "records"


def job(directory, workload="ppo"):
    """A job directory with more than the judge reads."""
    files = {
        "config/resolved.json": {"workload": workload, "shared_root": "/private", "home": "/home/user"},
        "config/job_spec.json": {"workload": workload, "trainer_overrides": ["a=1"], "secrets": ["TOKEN"]},
        "config/ray_config.yaml": {"address": "http://there", "trainer_overrides": {"rl": ["b=2"], "sft": ["c=3"]}},
        "state/started": {"time": "2026-01-31T10:00:00+00:00", "hostname": "there"},
        "state/ended": {"time": "2026-01-31T10:01:15+00:00", "exit_code": 0},
    }
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(json.dumps(content))
    rows = [{"step": 1, "data": {"critic/score/mean": 0.5, "critic/values/mean": 1.0, "timing_s/step": 2.0}}]
    (directory / "state/memory").mkdir()
    (directory / "state/memory/host-12.txt").write_text("1.5 100 python3\n2.5 120\n")
    (directory / "logs").mkdir()
    (directory / "logs/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def test_runs_of_a_and_b_are_planned_in_turn(records):
    assert [run.name for run in calibration.planned(0)] == [
        "A-ppo-10-1", "rounds", "A-ppo-10-2", "A-ppo-10-perturbed", "lost-sign", "A-ppo-10-resumed-1", "resume", "A-ppo-10-resumed-2",
        *(name for at in range(1, 7) for name in (f"A-grpo-4-67ec32-measured-{at}", f"slow-{at}")),
        *(f"leak-{at}" for at in range(1, 7)),
    ]  # fmt: skip
    assert [run.name for run in calibration.planned(1)][-6:] == [
        f"noise-{workload}-1-{run}" for workload in ("sft", "grpo", "ppo") for run in (1, 2)
    ]
    assert [run.name for run in calibration.planned(2, "sft")] == [
        f"noise-sft-{pair}-{run}" for pair in (1, 2) for run in (1, 2)
    ]


def test_the_last_noisy_pairs_are_recorded_and_replayed(records, tmp_path):
    recording, plain, repeat, *others = list(calibration.planned(calibration.REPLAYED, "grpo"))[-5:]
    names = [f"replayed-grpo-67-{number}" for number in (1, 2, 3)]
    assert [run.name for run in (plain, repeat, *others)] == ["noise-grpo-67-2", *names]
    assert "skip.rollout_tq.dump_dir={shared}/calibrate/noise-grpo-67-1" in recording.overrides
    assert all(run.overrides == recording.overrides != plain.overrides for run in (repeat, *others))
    asked = {"said": {"overrides": [{"text": text, "origin": "OVERRIDES"} for text in repeat.overrides]}}
    done = job(tmp_path / "job", "grpo")
    (done / "config/asked.json").write_text(json.dumps(asked))
    (done / "logs/driver.log").write_text("Loaded 8 cached trajectories from step 1\n")
    with pytest.raises(ValueError, match="did not read the rollouts of all steps of noise-grpo-67-1"):
        calibration.record(repeat, done, {})
    (done / "logs/driver.log").write_text("".join(f"cached trajectories from step {step}\n" for step in range(1, 11)))
    calibration.record(repeat, done, {})
    assert "skip." not in calibration._record(repeat.name)["config/asked.json"]
    assert calibration.replays_in_turn("grpo", calibration.REPLAYED) == []
    calibration.record(others[0], done, {})
    pairs = calibration.replays_in_turn("grpo", calibration.REPLAYED)
    assert pairs == [((recording, others[0]), repeat), ((recording, repeat), others[0])]
    calibration.record(others[1], done, {})
    assert calibration.replays_in_turn("grpo", calibration.REPLAYED)[0] == ((recording, *others[::-1]), repeat)


def test_what_is_recorded_is_not_run_again(records, tmp_path):
    overrides = "trainer.total_training_steps=10 trainer.save_freq=-1"
    assert calibrate.words_of_next(0) == ["A-ppo-10-1", "ppo", "", "", "", overrides]
    for run in list(calibration.planned(0))[:6]:
        if run.perturbed:
            assert calibrate.words_of_next(0)[:5] == [run.name, "ppo", "", "1", ""]
        calibration.record(run, job(tmp_path / run.name), {})
    more = ["trainer.total_training_steps=10 trainer.save_freq=10", str(tmp_path / "resume.patch")]
    assert calibrate.words_of_next(0) == ["resume", "ppo", "", "", "12", *more]
    (tmp_path / "lost-sign.patch").write_text("another\n")
    assert calibrate.words_of_next(0)[0] == "lost-sign"
    assert calibrate.words_of_next(2, "sft")[0] == "noise-sft-1-1"
    assert calibrate.words_of_next(0, "sft") == []


def test_a_record_has_what_the_judge_reads_and_nothing_else(records, tmp_path):
    run = next(calibration.planned(0))
    calibration.record(run, job(tmp_path / "job"), {"verl": "pypi:0.9.1"})
    content = json.loads(lzma.decompress((records / "A-ppo-10-1.json.xz").read_bytes()))
    assert {name: text for name, text in content.items() if name != "logs/metrics.jsonl"} == {
        "calibration.json": '{"patch_sha256": "", "seconds": 75, "verl": "pypi:0.9.1"}',
        "config/asked.json": '{"said": {}}',
        "config/job_spec.json": '{"trainer_overrides": ["a=1"]}',
        "config/ray_config.yaml": '{"trainer_overrides": {"rl": ["b=2"]}}',
        "config/resolved.json": '{"shared_root": "/private", "workload": "ppo"}',
        "state/ended": '{"exit_code": 0}',
    }
    assert content["logs/metrics.jsonl"] == (tmp_path / "job/logs/metrics.jsonl").read_text()
