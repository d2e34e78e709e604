"""`verl-verdict RUN_A... --against RUN_B...` and `verl-verdict history RUN...`: the sentences, the JSON and the exit statuses."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from shared_fixtures import python
from verdict_runs import rewrite, unpack
from wording import THEIRS, said

from verl_regress.jobs.recorded_run import JobReader
from verl_verdict import command
from verl_verdict.decide import verdicts
from verl_verdict.decide.verdicts import Verdict, Word

REPO = Path(__file__).parents[2]
GRPO = ("grpo-0.9.1-v1-1", "grpo-0.9.1-v1-2")
READERS = [JobReader()]  # facts, seeds and ends, which no metrics.jsonl has


def opposite(step, data):
    high, low = "critic/advantages/max", "critic/advantages/min"
    data[high], data[low] = -data[low], -data[high]


def entropy(step, data):
    data["actor/entropy"] *= 1.1


def nothing(step, data):
    pass


def cut_off(job):
    path = job / "logs/metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))


@pytest.fixture
def judged(tmp_path, capsys):
    """Runs the command on two runs of A and a changed copy, in this process: status, standard output and error."""
    jobs = [unpack(tmp_path, name) for name in GRPO]

    def judged(change, *options, a=2):
        b = rewrite(unpack(tmp_path, GRPO[0], "b"), change)
        status = command.main([*map(str, jobs[:a]), "--against", str(b), *options], READERS)
        return status, *capsys.readouterr()

    return judged


@pytest.mark.parametrize(
    ("change", "a", "status", "word"),
    [
        (nothing, 2, 0, "identical"),
        (opposite, 2, 9, "regressed"),
        (entropy, 2, 10, "changed"),
        (entropy, 1, 11, "inconclusive"),
    ],
)
def test_exit_statuses(judged, change, a, status, word):
    found = judged(change, a=a)
    assert found[0] == status
    assert found[1].startswith(f"grpo        {word}: ")
    assert found[1].endswith(f"\nverdict     {word} (exit status {status})\n")
    assert found[2] == ""


def test_incomparable_exits_with_12(tmp_path, capsys):
    a, b = unpack(tmp_path, GRPO[0]), unpack(tmp_path, GRPO[1], "b")
    (b / "config/job_spec.json").write_text('{"trainer_overrides": ["trainer.total_epochs=3"]}')
    assert command.main([str(a), "--against", str(b)], READERS) == 12
    assert (
        "override trainer.total_epochs: A trainer.total_epochs=1, B trainer.total_epochs=3" in capsys.readouterr().out
    )


def test_the_planted_sign_is_named(judged):
    status, out, _ = judged(opposite)
    assert status == 9
    assert out.splitlines()[:4] == [
        "grpo        regressed: with equal rewards, critic/advantages has the opposite sign in B at step 1: B trains away from what A trains towards",
        "first       step 1, critic/advantages/max: A 0.866, B 1.5",
        "may mean    the same rewards give other advantages: the estimator, its sign, normalisation, discount or mask changed, or the critic's values",
        "also        in the same step: critic/advantages/min",
    ]


@pytest.mark.parametrize(("allow", "status"), [("changed", 0), ("changed,inconclusive", 0), ("inconclusive", 10)])
def test_a_ci_may_allow_a_change(judged, allow, status):
    found = judged(entropy, f"--allow={allow}")
    assert found[0] == status
    assert found[1].endswith(
        f"\nverdict     changed (exit status {status}, allowed: {', '.join(sorted(allow.split(',')))})\n"
    )


@pytest.mark.parametrize("word", ["regressed", "incomparable", "good"])
def test_only_two_verdicts_can_be_allowed(judged, word):
    assert judged(opposite, f"--allow=changed,{word}") == (
        2, "", f"error   --allow=changed,{word} has '{word}': only changed and inconclusive can be allowed.\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "allow", "status"),
    [
        ("regressed incomparable changed inconclusive", "", 9),
        ("incomparable changed inconclusive", "", 12),
        ("changed inconclusive", "", 10),
        ("inconclusive improved", "", 11),
        ("identical same improved", "", 0),
        ("regressed changed", "changed", 9),
        ("incomparable changed inconclusive", "changed inconclusive", 12),
        ("changed inconclusive", "changed", 11),
    ],
)
def test_the_worst_case_decides(words, allow, status):
    found = [Verdict(word, Word(word), "") for word in reversed(words.split())]
    assert verdicts.status(found, [Word(word) for word in allow.split()]) == status
    assert verdicts.worst(found) is Word(words.split()[0]) or status == 0


def test_json_has_the_verdict_and_its_evidence(judged):
    status, out, _ = judged(entropy, "--json")
    answer = json.loads(out)
    assert (answer["verdict"], answer["status"], status) == ("changed", 10, 10)
    (case,) = answer["cases"]
    assert case["rule"]
    assert (case["case"], case["word"], case["deterministic"]) == ("grpo", "changed", True)
    assert (case["first"]["step"], case["first"]["metric"]) == (1, "actor/entropy")


def test_json_is_valid_with_values_that_are_not_finite(judged):
    _, out, _ = judged(lambda step, data: data.update({"actor/entropy": float("inf")}), "--json")
    assert json.loads(out, parse_constant=pytest.fail)["cases"][0]["first"]["b"] == "inf"


def test_a_cause_cannot_act_on_the_terminal(tmp_path, capsys):
    b = unpack(tmp_path, "sft-0.7.1")
    (b / "state/ended").write_text(json.dumps({"exit_code": 1, "cause": "\x1b]0;\u202e\nverdict     same"}))
    command.main([str(unpack(tmp_path, "sft-0.9.1-1")), "--against", str(b)], READERS)
    out = capsys.readouterr().out
    assert "\\x1b]0;\\u202e\\nverdict     same" in out
    assert all(line.isprintable() for line in out.splitlines())


def test_runs_of_several_workloads_are_several_cases(tmp_path, capsys):
    names = [*GRPO, "sft-0.9.1-1", "sft-0.9.1-2"]
    a = [str(unpack(tmp_path, name)) for name in names]
    b = [str(unpack(tmp_path, name)) for name in ("sft-0.7.1", "grpo-0.9.1-v1-3")]
    assert command.main([*a, "--against", *b], READERS) == 10
    out = capsys.readouterr().out
    assert "grpo        same: B differs from A only by rounding (at most " in out
    assert "sft         changed: runs of A with one seed are equal, and B differs from step 1 on (" in out


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--speed", "\ngrpo speed  inconclusive: a step of B takes "),
        ("--memory", "\ngrpo memory inconclusive: 'grpo-0.9.1-v1-1' has no records of its processes' memory: "),
    ],
)
def test_speed_and_memory_are_cases_of_their_own(judged, option, said):
    status, out, _ = judged(nothing, option)
    assert status == 11
    assert said in out


def test_options_reach_the_judge(judged):
    assert judged(entropy, "--ignore=actor/entropy")[0] == 0
    assert judged(entropy, "--deterministic", a=1)[0] == 10


def test_perturbed_runs_reach_the_judge(judged, tmp_path):
    def by(factor):
        def change(step, data):
            # One factor at every step would be a change of what is logged.
            data["actor/entropy"] *= factor + 0.01 * step

        return change

    perturbed = rewrite(unpack(tmp_path, GRPO[0], "perturbed"), by(1.05))
    assert judged(by(1.1), "--perturbed", str(perturbed))[0] == 0
    assert judged(by(1.1))[0] != 0


def test_accepted_facts_reach_the_judge(tmp_path, capsys):
    a, b = unpack(tmp_path, GRPO[0]), unpack(tmp_path, "grpo-0.9.1-v1-3", "b")
    resolved = json.loads((b / "config/resolved.json").read_text())
    (b / "config/resolved.json").write_text(json.dumps(resolved | {"profile": "gpu"}))
    assert command.main([str(a), "--against", str(b)], READERS) == 12
    assert command.main([str(unpack(tmp_path, GRPO[1])), "--against", str(b), "--accept=profile"], READERS) == 0
    assert "note        profile also differ: the code is not the only possible cause" in capsys.readouterr().out


def test_metrics_files_can_be_compared_without_a_job_directory(tmp_path, capsys):
    a, b = (unpack(tmp_path, name) / "logs/metrics.jsonl" for name in ("grpo-0.7.1", "grpo-0.8.0"))
    assert command.main([str(a), "--against", str(b)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("grpo        identical: B is bit-equal to A\n")
    assert (
        "note        not compared, because it is not in the records: profile, model, dataset, devices, nodes, " in out
    )


def test_a_record_of_ppo_without_the_critics_values_is_no_grpo(tmp_path, capsys):
    def without_values(step, data):
        for name in [name for name in data if name.startswith("critic/values/")]:
            del data[name]

    b = rewrite(unpack(tmp_path, "ppo-0.9.1-v1-1", "b"), without_values)
    jobs = [unpack(tmp_path, name) for name in ("ppo-0.9.1-v1-1", "ppo-0.9.1-v1-2")]
    *a, b = [str(job / "logs/metrics.jsonl") for job in (*jobs, b)]
    assert command.main([*a, "--against", b]) == 10
    reason = "the metrics that both record are bit-equal, but critic/values/mean is not in B, critic/values/max is not in B, critic/values/min is not in B"
    assert capsys.readouterr().out.startswith(f"ppo         changed: {reason}\n")


# ---- what a plain metrics.jsonl does not tell: its seed, and how its job ended


def plain(directory, name, *, lines=None, factor=1.0, times=1.0):
    """A metrics.jsonl of its own times, with so many lines, and an entropy that drifts by that factor a step."""
    rows = [
        json.loads(row) for row in (unpack(directory, GRPO[0], name) / "logs/metrics.jsonl").read_text().splitlines()
    ]
    for row in rows[:lines]:
        row["data"]["timing_s/step"] *= times
        row["data"]["actor/entropy"] *= factor ** row["step"]
    path = directory / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:lines]))
    return str(path)


@pytest.fixture
def plain_runs(tmp_path):
    """Two runs of A and two of B that train alike."""
    runs = [plain(tmp_path, name, times=1 + at / 100) for at, name in enumerate(("a1", "a2", "b1", "b2"), start=1)]
    return runs[:2], runs[2:]


def judged_as_json(capsys, *arguments):
    command.main([*arguments, "--json"])
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    return case


UNTOLD = "the records do not tell their seeds: the runs are paired in the given order"


@pytest.mark.parametrize(
    ("seeds", "pairs", "deterministic", "said"),
    [
        ((), 1, True, UNTOLD),  # two runs of A that are equal had one seed
        (("--seeds=42,43",), 2, None, None),
        (("--seeds", "42,43", "--seeds-b", "43,42"), 2, None, None),
        (("--seeds=42,042", "--seeds-b=42,42"), 1, True, None),
        (("--seeds=42,43", "--seeds-b=43,44"), 1, None, "without a partner of the same seed: {a1}, {b2}"),
    ],
)
def test_seeds_pair_the_runs(plain_runs, capsys, seeds, pairs, deterministic, said):
    a, b = plain_runs
    case = judged_as_json(capsys, *a, "--against", *b, *seeds)
    assert (case["word"], case["pairs"], case["deterministic"]) == ("identical", pairs, deterministic)
    assert not said or said.format(a1=a[0], b2=b[1]) in case["notes"]
    assert said is UNTOLD or UNTOLD not in case["notes"]


def test_seeds_go_over_the_runs_of_all_workloads(tmp_path, plain_runs, capsys):
    (a1, a2), (b1, b2) = plain_runs
    sft = [str(unpack(tmp_path, name) / "logs/metrics.jsonl") for name in ("sft-0.9.1-1", "sft-0.9.1-2")]
    arguments = [a1, sft[0], a2, "--against", b1, b2, sft[1], "--seeds=1,7,2"]
    command.main([*arguments, "--json"])
    cases = json.loads(capsys.readouterr().out)["cases"]
    assert [(case["case"], case["pairs"]) for case in cases] == [("grpo", 2), ("sft", 1)]


def test_perturbed_runs_have_the_seeds_of_a(tmp_path, plain_runs, capsys):
    (a1, a2), (b1, _) = plain_runs
    perturbed = [plain(tmp_path, f"p{at}", factor=1.1, times=1.1 + at / 100) for at in (1, 2)]
    b = plain(tmp_path, "b", factor=1.05, times=1.3)
    arguments = [a1, a2, "--against", b, "--perturbed", *perturbed]
    assert judged_as_json(capsys, *arguments, "--seeds=1,1")["word"] == "same"
    third = plain(tmp_path, "a3", times=1.4)
    assert command.main([*arguments[:2], third, *arguments[2:], b1, "--seeds=1,1,2"]) == 2
    sentence = "--perturbed has 3 runs of grpo, and A 2 seeds (1, 2): give one for each seed."
    assert capsys.readouterr().err == f"error   {sentence}\n"


@pytest.mark.parametrize(
    ("seeds", "sentence"),
    [
        (["--seeds=42"], "--seeds has 1 seed for 2 runs of A: give one for each run."),
        (["--seeds=42,43", "--seeds-b=1,2,3"], "--seeds-b has 3 seeds for 2 runs of B: give one for each run."),
        (["--seeds=42,42"], "B has 2 runs of grpo, and A 1 seed (42): tell those of B with --seeds-b."),
        (["--seeds-b=42,43"], "--seeds-b tells the seeds of B alone: tell those of A with --seeds."),
        (["--seeds=42,"], "'' in the seeds '42,' is no whole number: give one for each run, such as 42,43."),
        (["--seeds=1.5,2"], "'1.5' in the seeds '1.5,2' is no whole number: give one for each run, such as 42,43."),
        (["--seeds=1,2", "--seeds-b=x"], "'x' in the seeds 'x' is no whole number: give one for each run, such as 42,43."),
    ],
)  # fmt: skip
def test_seeds_that_fit_no_runs_are_refused(plain_runs, capsys, seeds, sentence):
    a, b = plain_runs
    assert command.main([*a, "--against", *b, *seeds]) == 2
    assert capsys.readouterr() == ("", f"error   {sentence}\n")


def test_the_seed_that_a_job_tells_is_not_replaced(judged):
    sentence = f"'{GRPO[0]}' already tells its seed (verl's default seeds): leave --seeds out."
    assert judged(nothing, "--seeds=1,1") == (2, "", f"error   {sentence}\n")


def test_a_plain_record_that_is_shorter_is_refused_or_judged_over_the_common_steps(tmp_path, plain_runs, capsys):
    a, _ = plain_runs
    short = plain(tmp_path, "short", lines=2, times=1.2)
    for arguments in (
        [*a, "--against", short],
        [short, "--against", *a],
        [*a, "--against", a[0], "--perturbed", short],
    ):
        if "--perturbed" in arguments:
            arguments[3] = plain(tmp_path, "b", times=1.5)
        assert command.main(arguments) == 2
        sentence = f"error   '{short}' has the steps 1 to 2 and '{a[0]}' the steps 1 to 4: it may still be written, or have failed. Give whole records, or --steps common judges the 2 steps that all have.\n"
        assert capsys.readouterr() == ("", sentence)
        case = judged_as_json(capsys, *arguments, "--steps=common")
        assert case["word"] in ("identical", "inconclusive")
        assert "judged over the 2 steps that all runs have (--steps common)" in case["notes"]


def test_a_plain_record_that_became_nan_and_ended_is_regressed(tmp_path, plain_runs, capsys):
    a, _ = plain_runs
    short = plain(tmp_path, "short", lines=2, factor=float("nan"))
    case = judged_as_json(capsys, *a, "--against", short)
    assert (case["word"], case["rule"]) == ("regressed", "b-not-finite")


def test_a_plain_record_of_two_attempts_is_bad_input(tmp_path, plain_runs, capsys):
    a, (b, _) = plain_runs
    lines = Path(b).read_text().splitlines(keepends=True)
    Path(b).write_text("".join([*lines[:3], *lines[1:]]))
    assert command.main([*a, "--against", b]) == 2
    assert "goes back from step 3 to step 2" in capsys.readouterr().err


def test_the_rule_that_decided_is_named(judged):
    _, out, _ = judged(opposite)
    (how,) = [line for line in out.splitlines() if line.startswith("how ")]
    assert re.fullmatch(r"how         .+ \[rule: [a-z0-9-]+\]", how)


# ---- bad input: one sentence, exit 2, nothing on standard output


@pytest.mark.parametrize(
    ("b", "sentence"),
    [
        ("none", "The record '{0}/none' does not exist: give a metrics.jsonl."),
        ("empty.jsonl", "The record '{0}/empty.jsonl' has no complete step: the run ended before its first step, or is not a run."),
        ("text.jsonl", "Line 1 of '{0}/text.jsonl' is not JSON ('loss: 3'): give a metrics.jsonl of verl's file logger."),
        ("folder", "The directory '{0}/folder' has no metrics.jsonl: give the one of the run."),
        ("resumed", "The directory '{0}/resumed' has 2 files metrics.jsonl (such as '{0}/resumed/attempts/2/logs/metrics.jsonl'): give the one of the run."),
        ("no-text", "The record '{0}/no-text/logs/metrics.jsonl' cannot be read ('utf-8' codec can't decode byte 0xff in position 0: invalid start byte): give a metrics.jsonl of verl's file logger."),
        ("nothing", "The record '{0}/nothing/logs/metrics.jsonl' has no complete step: the run ended before its first step, or is not a run."),
        ("sft-0.7.1", "A has runs of grpo, and B has none: compare runs of the same workloads."),
        ("a", "'{0}/a/logs/metrics.jsonl' and '{0}/a/logs/metrics.jsonl' are copies of one record (all times are equal): give the records of different runs."),
    ],
)  # fmt: skip
def test_bad_input(tmp_path, capsys, b, sentence):
    a = unpack(tmp_path, GRPO[0], "a")
    unpack(tmp_path, "sft-0.7.1")
    unpack(tmp_path, "ppo-0.9.1-v1-resumed", "resumed")
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "text.jsonl").write_text("loss: 3\n")
    (tmp_path / "folder").mkdir()
    for name, content in (("no-text", b"\xff\xfe"), ("nothing", b"")):
        (tmp_path / name / "logs").mkdir(parents=True)
        (tmp_path / name / "logs/metrics.jsonl").write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    status = command.main([str(a), "--against", str(tmp_path / b)])
    assert (status, *capsys.readouterr()) == (2, "", f"error   {sentence.format(tmp_path)}\n")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("words", [["{0}", "--against", ""], ["", "--against", "{0}"], ["{0}", "--against", "{0}", "--perturbed", ""], ["history", "{0}", ""]])  # fmt: skip
def test_an_empty_name_is_not_the_current_directory(tmp_path, capsys, monkeypatch, words):
    monkeypatch.chdir(unpack(tmp_path, GRPO[0]))
    run = unpack(tmp_path, GRPO[1])
    found = command.main([word.format(run) for word in words]), *capsys.readouterr()
    assert found == (2, "", "error   A RUN is '', which names nothing: give a metrics.jsonl.\n")


@pytest.mark.slow
def test_a_verdict_that_cannot_be_written_is_said(tmp_path):
    jobs = [str(unpack(tmp_path, name)) for name in GRPO]
    reader, out = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [sys.executable, "-m", "verl_verdict", jobs[0], "--against", jobs[1]],
        env={**os.environ, "PYTHONPATH": str(REPO / "judge")}, stdout=out, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(out)
    sentence = "error   The answer cannot be written to standard output (Broken pipe): write it to another place.\n"
    assert (ran.returncode, ran.stderr) == (2, sentence)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["a"], "--against"), (["--against", "b"], "RUN_A"), (["a", "--against", "b", "--fast"], "--fast")],
)
def test_a_wrong_command_line(capsys, arguments, named):
    status = command.main(arguments)
    sentence = said(f"error   The command line is wrong ({THEIRS} {named}): see 'verl-verdict --help'.\n")
    assert (status, *capsys.readouterr()) == (2, "", sentence)


def test_it_runs_alone(tmp_path):
    """As a program, with nothing of the helper on its path; and it brings in neither Ray nor the helper."""
    jobs = [*(unpack(tmp_path, name) for name in GRPO), rewrite(unpack(tmp_path, GRPO[0], "b"), nothing)]
    argv = ["-X", "importtime", "-m", "verl_verdict", *jobs[:2], "--against", jobs[2]]
    ran = python(*argv, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPO / "judge")})
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("\nverdict     identical (exit status 0)\n")
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in ran.stderr.splitlines() if "|" in line}
    assert "verl_verdict" in modules
    assert modules.isdisjoint({"ray", "verl_regress", "verl", "torch", "yaml"})


@pytest.mark.parametrize("module", ["verl_verdict", "verl_regress.jobs.recorded_run"])
@pytest.mark.parametrize("package", ["numpy", "scipy"])
def test_a_package_that_is_not_installed_is_one_sentence(module, package):
    program = f"import runpy, sys; sys.modules['{package}'] = None; sys.argv[1:] = ['a', '--against', 'b']; runpy.run_module('{module}', run_name='__main__')"
    ran = python("-c", program, env={**os.environ, "PYTHONPATH": f"{REPO / 'judge'}:{REPO / 'py'}"})
    sentence = f"error   The Python {sys.executable} has no package '{package}', which the judge needs: 'pip install {package}' brings it.\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", sentence)


# ---- history


def records(directory, change, count=4):
    """Records of as many runs, the later half of which is changed."""
    jobs = [unpack(directory, GRPO[0], f"run-{number}") for number in range(count)]
    for number, job in enumerate(jobs):
        rewrite(job, lambda step, data, is_later=number >= count // 2: change(step, data) if is_later else None)
        rows = [
            row | {"data": row["data"] | {"timing_s/step": 1 + number / 100}}
            for row in map(json.loads, (job / "logs/metrics.jsonl").read_text().splitlines())
        ]
        (job / "logs/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [str(job) for job in jobs]


def test_a_history_names_the_run_with_which_a_metric_changes(tmp_path, capsys):
    runs = records(tmp_path, entropy)
    page = tmp_path / "history.html"
    assert command.main(["history", *runs, "--page", str(page)]) == 0
    (change,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("change ")]
    assert change.startswith("change      the runs: grpo, actor/entropy: ")
    assert f"from run 2 of {runs[1]} (unknown code) to run 3 of {runs[2]} (unknown code)" in change
    assert "actor/entropy" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "The command line is wrong (the following arguments are required: RUN): see 'verl-verdict --help'."),
        (["{0}/a", "{0}/a"], "'{0}/a/logs/metrics.jsonl' and '{0}/a/logs/metrics.jsonl' are copies of one record (all times are equal): give the records of different runs."),
        (["{0}/other.jsonl"], "'{0}/other.jsonl' has no metric of PPO, GRPO or SFT (critic/score/mean, train/loss): give a metrics.jsonl of verl."),
        (["{0}/a", "--page={0}/none/page.html"], "--page={0}/none/page.html cannot be written (No such file or directory): name another file."),
    ],
)  # fmt: skip
def test_bad_input_of_a_history(tmp_path, capsys, arguments, sentence):
    unpack(tmp_path, GRPO[0], "a")
    (tmp_path / "other.jsonl").write_text('{"step": 1, "data": {"other": 1.0}}\n')
    status = command.main(["history", *(argument.format(tmp_path) for argument in arguments)])
    assert (status, capsys.readouterr().err) == (2, f"error   {sentence.format(tmp_path)}\n")


def test_a_history_without_a_usable_run_is_refused(tmp_path, capsys):
    job = unpack(tmp_path, GRPO[0])
    cut_off(job)
    record = job / "logs/metrics.jsonl"
    record.write_text(record.read_text() + '{"step": 3')
    assert command.main(["history", str(record)]) == 2
    sentence = f"error   No run can be used (run 1 of {record} (unknown code): the record is cut off after step 2, in line 3): give runs that trained to their end.\n"
    assert capsys.readouterr() == ("", sentence)


def test_help_lists_every_exit_status(capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--help"])
    assert ended.value.code == 0
    said = "0 identical, same or improved; 9 regressed; 10 changed; 11 inconclusive; 12 incomparable; 2 bad input."
    assert said in capsys.readouterr().out
