"""maintain/releases.py and release_row.py: a row's record, the page made from the records, and that its check can fail."""

import json

import pytest
from hermetic import REPO

import release_row
import releases

RECORDED = REPO / "tests" / "recorded" / "releases.jsonl"  # from releases.sh, of real jobs
SUCCESS = {"exit_code": 0, "reason": "the trainer ended"}
WHY_NOT = (
    "| 0.9.1 | ppo | V1 | **no**: the trainer ended with exit status 1: ModuleNotFoundError: No module named 'transfer_queue' "
    "(verl/trainer/main_ppo.py:137, before the first step) | 24 | - | - | 2 |"
)
RUN = "| 1 | 2 | 2026-11-22 | 93e974a54202-dirty | verl-regress-node:ad32bb470cb4 | not recorded | 2 cores, 24 GiB, Linux 6.18.44-fc-v595 |"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The files of releases.sh in a temporary directory, with the records of real rows."""
    monkeypatch.setattr(releases, "RECORDS", tmp_path / "records.jsonl")
    monkeypatch.setattr(releases, "SHIPPED", tmp_path / "shipped.jsonl")
    monkeypatch.setattr(releases, "PAGE", tmp_path / "page.md")
    releases.RECORDS.write_text(RECORDED.read_text())
    releases.PAGE.write_text("before\n<!-- releases -->\nold\n<!-- /releases -->\nafter\n")
    return tmp_path


def records():
    return releases.read(RECORDED)


def lines_of(page, begin):
    return [line for line in page.splitlines() if line.startswith(f"| {begin}")]


# --- the page


def test_the_page_matches_the_records():
    page = releases.tables(records())
    assert "**3 of 4 rows work**; 16 have not been run." in page
    assert lines_of(page, "0.8.0 | ppo") == ["| 0.8.0 | ppo | V0 | yes | 109, 93 | 5 of 5 | 61 of 73 | 1 |"]
    assert lines_of(page, "0.7.1 | yes") == ["| 0.7.1 | yes | 89, 87 | 2, 4, 6 | 2, 4, 6 | 4 | 5, 6 | 1 |"]
    assert lines_of(page, "0.9.1 | ppo | V1") == [WHY_NOT]
    assert lines_of(page, "0.9.1 | sft") == ["| 0.9.1 | sft | - | yes | 39, 34 | 4 of 4 | 6 of 6 | 3 |"]
    assert lines_of(page, "main | sft") == ["| main | sft | - | not run | - | - | - | - |"]
    assert lines_of(page, "1 |") == [RUN]


def test_write_replaces_the_rows_that_ran_and_keeps_the_others(here, capsys):
    found = records()
    kept = {**found["0.8.0-ppo"], "row": "main-ppo", "commit": "an earlier run"}
    stale = {**found["0.8.0-ppo"], "commit": "an earlier run"}
    releases.SHIPPED.write_text("".join(json.dumps(record) + "\n" for record in (kept, stale)))
    assert releases.main(["write", "0.8.0-ppo"]) == 0
    assert releases.read(releases.SHIPPED) == {"0.8.0-ppo": found["0.8.0-ppo"], "main-ppo": kept}
    page = releases.PAGE.read_text()
    assert page.startswith("before\n<!-- releases -->\n\n**2 of 2 rows work**")
    assert page.endswith("<!-- /releases -->\nafter\n")
    assert releases.main(["check"]) == 0
    releases.PAGE.write_text(page.replace("| yes |", "| no |"))
    assert releases.main(["check"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == (
        "maintain/page.md is not what maintain/shipped.jsonl makes: 'make -C maintain releases' writes both."
    )


def test_the_shipped_page_matches_its_records():
    assert releases.main(["check"]) == 0


# --- two jobs


def metrics(*steps):
    return [json.dumps({"step": number, "data": data}) for number, data in enumerate(steps, start=1)]


def test_metrics_are_compared_at_every_step_and_times_are_not():
    tokens = {"perf/total_num_tokens": 1}
    one = metrics({"a": 1.0, "timing_s/step": 2.0, "perf/throughput": 1.0, **tokens}, {"a": 1.5, "b": 2})
    other = metrics({"a": 1.0, "timing_s/step": 9.0, "train/mfu": 3.0, **tokens}, {"a": 1.25, "b": 2})
    assert release_row.compared(one, other) == {"metrics": 3, "differ": {"a": {"step": 2, "most": 0.25}}}
    assert release_row.compared(one, one) == {"metrics": 3, "differ": {}}


# --- a row, with a fake `make` that leaves the same directories


class Make:
    """Does to a job directory what `make` does: `jobs` says how each submission ends, in order."""

    def __init__(self, jobs, ends):
        self.calls, self._home, self._ends, self._done = [], jobs, list(ends), release_row.Done

    def __call__(self, _runner, words, **knobs):
        target = words[-1]
        self.calls.append((target.removeprefix("scripts/"), knobs))
        if target == "scripts/53_fidelity.sh":
            return self._done(0, ["ok      fidelity: 7 of 7 checks passed"])
        if target not in ("submit", "resume"):
            return self._done(0, [])
        end = self._ends.pop(0)
        job = self._home / (knobs.get("SUBMISSION_ID") or knobs["JOB"])
        if target == "resume":
            job = job / "attempts" / "2"
        for name, content in end.get("files", {}).items():
            (job / name).parent.mkdir(parents=True, exist_ok=True)
            (job / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return self._done(end["status"], [])


def job(first=1, last=4, *, ended=SUCCESS, status=0, validate=(), **more):
    """A job directory that took the steps first to last."""
    rows = [
        {"step": number, "data": {"a": 0.5, **({"val-core/x": 1.0} if number in validate else {})}}
        for number in range(first, last + 1)
    ]
    files = {
        "state/submitted": {"time": "2026-11-22T01:00:00+00:00", "accepted": True},
        "config/code.json": {"verl_version": "0.8.0", "revision": "0.8.0", "dirty": False},
        "logs/metrics.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "state/ended": {"time": "2026-11-22T01:01:01+00:00", **ended},
    }
    return {"files": {**files, **more}, "status": status}


@pytest.fixture
def run(here, monkeypatch):
    """Run one row; its exit status, its record, and the calls of `make`."""
    monkeypatch.setenv("WORKDIR", str(here))

    def play(row, *ends):
        make = Make(here / "shared" / "jobs", ends)
        monkeypatch.setattr(release_row.Runner, "run", lambda runner, words, **knobs: make(runner, words, **knobs))
        status = release_row.main(row, "verl-0a", "image:1", str(here / "log"))
        return status, releases.read(releases.RECORDS)[row], make.calls

    return play


def test_a_row_is_two_equal_jobs_and_their_record(run, capsys):
    packages = {"config/packages.json": {"sha256": "0123456789abcdef"}}
    status, record, calls = run("0.9.1-ppo-v0", job(**packages), job(**packages))
    assert record["packages"] == "0123456789ab"
    assert (status, record["works"], record["why"]) == (0, True, None)
    assert record["verl"] == {"code_id": "verl-0a", "version": "0.8.0", "revision": "0.8.0", "dirty": False}
    assert [(each["seconds"], each["steps"]) for each in record["jobs"]] == [(61, [1, 2, 3, 4])] * 2
    assert record["equal"] == {"metrics": 1, "differ": {}}
    assert [target for target, _ in calls] == ["submit", "53_fidelity.sh", "submit", "53_fidelity.sh"]
    first, second = (knobs for target, knobs in calls if target == "submit")
    asked = {"WORKLOAD": "ppo", "CODE_ID": "verl-0a", "WAIT": "1"}
    asked["OVERRIDES"] = "trainer.total_training_steps=4 trainer.use_v1=False"
    assert {key: first[key] for key in asked} == asked
    assert {**first, "SUBMISSION_ID": ""} == {**second, "SUBMISSION_ID": ""}
    assert first["SUBMISSION_ID"].startswith("releases-0.9.1-ppo-v0-a-2")
    assert capsys.readouterr().out == "0.9.1-ppo-v0: 61, 61 s, fidelity 7 of 7, 1 of 1 metrics equal in both jobs\n"


def test_a_job_that_fails_ends_the_row_with_its_reason(run, capsys):
    ended = {"exit_code": 1, "reason": "ValueError: no (verl/x.py:3, before the first step)"}
    status, record, calls = run("0.8.0-sft", job(last=0, ended=ended, status=3))
    assert (status, record["works"], record["why"]) == (9, False, ended["reason"])
    assert (record["jobs"][0]["status"], record["equal"]) == (3, None)
    assert [target for target, _ in calls] == ["submit"]
    assert capsys.readouterr().out == f"0.8.0-sft does not work: {ended['reason']}\n"


# --- a job that is resumed


def saves(*numbers):
    return {f"checkpoints/global_step_{number}/data.pt": "" for number in numbers}


def attempt():
    return job(5, 6, validate=(6,), **{"config/resolved.json": {"parent": {"step": 4}}, **saves(6)})


def test_a_resumed_job_validates_saves_and_goes_on(run, capsys):
    status, record, calls = run("0.9.1-resume", job(validate=(2, 4), **saves(2, 4)), attempt())
    assert (status, record["why"]) == (0, None)
    assert record["resumed"] == {"saved": [2, 4, 6], "validated": [2, 4, 6], "from": 4, "steps": [5, 6]}
    assert calls[0][1]["OVERRIDES"] == "trainer.total_training_steps=4 trainer.test_freq=2 trainer.save_freq=2"
    assert calls[1] == (
        "resume",
        {"WAIT": "1", "JOB": calls[0][1]["SUBMISSION_ID"], "OVERRIDES": "trainer.total_training_steps=6"},
    )
    assert capsys.readouterr().out == "0.9.1-resume: 61, 61 s, validated at steps 2, 4, 6, resumed from step 4 to 6\n"
