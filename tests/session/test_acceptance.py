"""The report of `make acceptance`: each check passes on what an installation leaves, fails when that is broken, and is not run without it."""

import base64
import io
import json
import os
import sys
import tarfile
import types

import pytest
from shared_fixtures import write
from streams import tar

from verl_regress.session import acceptance, leaks

pytestmark = pytest.mark.slow

CANARY = "0123456789abcdef0123456789abcdef01234567"
INSTALLATION, TRAINING = (
    ["sft", "secrets", "prepare", "bundles", "directories", "egress"],
    ["grpo", "ppo", "resume", "verify"],
)
LOGS = {
    "sft.log": "changed submitted sft-1\n",
    "prepare.log": "skip    datasets/sums (exists, same source)\n",
    "bundles.log": "",
    "sft.job": "sft-1\n",
}
VERDICT = "verdict     regressed (exit status 9)\n"


@pytest.fixture
def stdin(monkeypatch):
    """Sets what the next command reads."""

    def set_to(content):
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(content))))

    return set_to


@pytest.fixture
def job(make_job, ray):
    """Makes a job that trained three steps and got the secret."""

    def make(name):
        made = make_job(name, started={}, ended={"exit_code": 0, "reason": "the trainer ended"})
        write(made.metrics, "".join(f'{{"step": {step}, "data": {{"train/loss": 1.0}}}}\n' for step in (1, 2, 3)))
        write(made.driver_log, "Total training steps: 3\n")
        write(made.reports / "identity-w-1.json", '{"job_id": "02"}')
        write(made.reports / "secrets-w-1.json", '{"names": ["ACCEPTANCE_CANARY"]}')
        for phase in ("submitted", "ended", "asked"):
            write(made.debug / f"20261127-{phase}" / "bundle.json", json.dumps({"phase": phase, "errors": {}}))
        with tarfile.open(made.debug / "20261127-asked.tar.gz", "w:gz") as archive:
            for part in ("config/resolved.json", "logs/driver.log", "state/ended"):
                archive.add(made.path / part, f"{name}/{part}")
        ray.answers |= {
            "/api/v0/actors?limit=1000&detail=1&filter_keys=job_id&filter_predicates=%3D&filter_values=02": (
                200,
                {"data": {"result": {"result": []}}},
            ),
            f"/api/jobs/{name}/logs": (200, {"logs": "trained\n"}),
            "/api/v0/runtime_envs?limit=1000&detail=1": (200, {"result": []}),
        }
        return made

    return make


@pytest.fixture
def accept(run, shared, stdin, job, ray, monkeypatch):
    """Begins a report, lets both nodes watch the job sft-1, and reports; `change` is called before the report. Returns its results."""

    def accept(logs=None, steps=None, change=lambda found: None, peers=(), planted=("192.0.2.1:9",)):
        found = job("sft-1")
        monkeypatch.setattr(acceptance.processes, "peers", lambda pids: set(peers))
        monkeypatch.setattr(acceptance.processes, "addresses", lambda: {"10.1.0.7"})  # of another network of that node
        monkeypatch.setattr(acceptance, "_plant", lambda: list(planted))
        known = [path.name for path in sorted(shared.jobs.iterdir())]
        ray.knows(*({"submission_id": name, "job_id": "02", "status": "SUCCEEDED"} for name in known))
        directory = shared.acceptance / run("acceptance", "begin").out.strip()
        ended = found.state / "ended"
        for node in ("head", "worker-0"):
            aside = ended.rename(found.path / "ended")
            monkeypatch.setattr(
                acceptance.time, "sleep", lambda _, aside=aside: aside.rename(ended)
            )  # it ends after one look
            stdin(f"{CANARY}\n".encode())
            arguments = (f"--name={directory.name}", f"--node={node}", "--job=sft-1", "--cluster=mine")
            assert run("acceptance", "watch", *arguments).status == 0
        change(found)
        files = {
            "steps": "".join(
                f"{name}\t{status}\t7\n"
                for name, status in {"sft": 0, "prepare": 0, "bundles": 0, **(steps or {})}.items()
            )
        }
        files |= LOGS | (logs or {})
        stdin(f"{CANARY}\n".encode() + tar({f"./{name}": text.encode() for name, text in files.items()}).read())
        outcome = run("acceptance", "report", f"--name={directory.name}", "--profile=cpu (rehearsal)", "--cluster=mine")
        report = json.loads((directory / "report.json").read_text())
        assert outcome.status == report["status"]
        assert outcome.out.startswith((directory / "report.txt").read_text())
        results = {
            check["name"]: ("ok" if check["passed"] else check["skipped"] or "FAIL", check["problems"])
            for check in report["checks"]
        }
        return types.SimpleNamespace(outcome=outcome, results=results, directory=directory, report=report)

    return accept


def failed(said):
    return {name: problems for name, (word, problems) in said.results.items() if word == "FAIL"}


def test_an_installation_that_keeps_its_promises(accept):
    said = accept()
    assert (said.outcome.status, failed(said)) == (0, {})
    assert [name for name, (word, _) in said.results.items() if word == "ok"] == INSTALLATION
    assert [name for name, (word, _) in said.results.items() if word == "it was not run"] == TRAINING
    assert [check["result"] for check in said.report["checks"]] == ["ok"] * 6 + ["not run"] * 4
    assert "6 of 10 checks passed, 4 not checked (exit status 0)\n" in said.outcome.out
    assert "ok      sft          SFT trains to its end (checked sft-1: 3 steps, 7 s)\n" in said.outcome.out
    assert [node["name"] for node in said.report["nodes"]] == ["head", "worker-0"]


def test_the_file_to_send_has_the_records_and_no_secret(accept):
    said = accept(
        {"bundles.log": f"it is {CANARY}\n"},
        change=lambda job: write(job.driver_log, f"Total training steps: 3\n{CANARY}\n"),
    )
    with tarfile.open(said.directory / "acceptance.tar.gz") as archive:
        files = {member.name.partition("/")[2]: archive.extractfile(member).read().decode() for member in archive}
    wanted = ("report.txt", "report.json", "logs/sft.log", "node-head.json", "jobs/sft-1/config/resolved.json")
    assert {*wanted, "jobs/sft-1/debug/20261127-asked/bundle.json"} <= set(files)
    assert files["logs/bundles.log"] == "it is <secret ACCEPTANCE_CANARY>\n"
    assert files["jobs/sft-1/logs/driver.log"].endswith("<secret ACCEPTANCE_CANARY>\n")
    assert CANARY not in "".join(files.values())


def test_what_a_job_and_a_node_ask_for_outside_is_counted_and_named(accept):
    def asks(job):
        outside = ["hub.example.org:443", "192.0.2.1:80", "head.example.org", "localhost.example.org"]
        hosts = [*outside, "head:6379", "127.0.0.1:1", "10.0.0.2", "10.1.0.7:53", "0.0.0.0:80", ":::80", "localhost"]
        write(job.reports / "egress-w-1.json", json.dumps({"asked": hosts}))

    said = accept(change=asks, peers=["2001:db8::1:443", "127.0.0.1:6379"])
    assert failed(said) == {
        "egress": [
            "the process w-1 asked for hub.example.org:443",
            "the process w-1 asked for 192.0.2.1:80",
            "the process w-1 asked for head.example.org",
            "the process w-1 asked for localhost.example.org",
            "head had a connection to 2001:db8::1:443",
            "worker-0 had a connection to 2001:db8::1:443",
        ]
    }
    assert "(checked 6 of 15 connections left; on 2 nodes a planted one was noticed)" in said.outcome.out


def test_a_node_that_does_not_notice_a_planted_connection_proves_nothing(accept):
    assert failed(accept(planted=()))["egress"] == [
        f"on {name} the planted connection to 192.0.2.1:9 was not noticed" for name in ("head", "worker-0")
    ]


TRAINED = {"grpo": 0, "ppo": 0, "resume": 0, "verify": 9}


def test_trainings_are_listed_by_what_they_did(accept, job):
    jobs = {f"{name}.job": f"{name}-1\n" for name in ("grpo", "ppo", "resume")}
    for name in ("grpo-1", "ppo-1", "resume-1"):
        job(name)
    said = accept(
        {**jobs, "verify.log": VERDICT}, TRAINED, lambda job: write(job.root.jobs / "ppo-1/logs/metrics.jsonl", "")
    )
    assert failed(said) == {"ppo": ["ppo-1 recorded the steps [] of 3"]}
    assert said.outcome.status == 9
    assert [said.results[name][0] for name in TRAINING] == ["ok", "FAIL", "ok", "ok"]


@pytest.mark.parametrize(
    ("status", "log", "problems"),
    [
        (0, "verdict     same (exit status 0)\n", ["exit 0, and no verdict regressed"]),
        (
            9,
            "error   60_verify: a check failed\n",
            ["exit 9, and no verdict regressed", "exit 9: 60_verify: a check failed"],
        ),
        (1, VERDICT, ["exit 1, and no verdict regressed", "exit 1: its log says why"]),
    ],
)
def test_a_planted_fault_must_be_found(accept, status, log, problems):
    assert failed(accept({"verify.log": log}, {"verify": status})) == {"verify": problems}


def test_what_needs_a_job_that_failed_is_not_run(accept):
    said = accept({"sft.log": "a line\nerror   the disk is full\n"}, {"sft": 3})
    assert failed(said) == {"sft": ["exit 3: the disk is full"]}
    assert [said.results[name][0] for name in ("secrets", "directories", "prepare")] == [
        "it was not run",
        "it was not run",
        "ok",
    ]


def link_out(job):
    (job.path / "out").symlink_to(job.path.parent)


def hard_link(job):
    os.link(job.driver_log, job.path.parent / "other.log")


@pytest.mark.parametrize(
    ("change", "check", "problem"),
    [
        (lambda job: job.driver_log.chmod(0o666), "directories", "{job}/logs/driver.log can be changed by every user (mode 0666)"),
        (link_out, "directories", "{job}/out is a link that leads out of the job"),
        (hard_link, "directories", "{job}/logs/driver.log has 2 names, so another place shares it"),
        (lambda job: write(job.root.secrets / "mine" / "sft-1", "{}"), "directories", "the secrets of sft-1 are still there"),
        (lambda job: write(job.config / "x", base64.b64encode(CANARY.encode()).decode()), "secrets", "ACCEPTANCE_CANARY is in {job}/config/x"),
        (lambda job: write(job.reports / "secrets-w-1.json", "{}"), "secrets", "the process w-1 did not get it"),
        (lambda job: next(job.root.acceptance.glob("*/node-head.json")).unlink(), "secrets", "head was not searched while the job ran"),
        (lambda job: write(job.root.models / "tiny" / "config.json", "{ }"), "prepare", "{job.root.models}/tiny/config.json changed"),
        (lambda job: (job.debug / "20261127-ended" / "bundle.json").unlink(), "bundles", "there is none of 'ended'"),
        (lambda job: write(job.debug / "20261127-asked" / "bundle.json", '{"phase": "asked", "errors": {"nodes.json": "late"}}'), "bundles", "20261127-asked lacks nodes.json: late"),
        (lambda job: (job.debug / "20261127-asked.tar.gz").unlink(), "bundles", "there is no tar"),
        (lambda job: write(job.metrics, '{"step": 1, "data": {"a": 1}}\n'), "sft", "sft-1 recorded the steps [1] of 3"),
    ],
)  # fmt: skip
def test_a_broken_promise_fails_its_check_alone(accept, make_job, change, check, problem):
    jobs = []
    said = accept(change=lambda job: (jobs.append(job), change(job)))
    assert failed(said) == {
        check: [problem.replace("{job.root.models}", str(jobs[0].root.models)).replace("{job}", str(jobs[0].path))]
    }


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        ("changed datasets/sums made\nskip    model\n", "it said: changed datasets/sums made"),
        ("ok      nothing\n", "there was nothing to skip"),
    ],
)
def test_a_second_prepare_must_skip(accept, log, problem):
    assert failed(accept({"prepare.log": log})) == {"prepare": [problem]}


def test_a_secret_that_proc_showed_while_the_job_ran_is_reported(accept, monkeypatch):
    monkeypatch.setattr(
        leaks, "in_processes", lambda secrets: (5, {"ACCEPTANCE_CANARY is in the command line of process 7"})
    )
    found = "ACCEPTANCE_CANARY is in the command line of process 7 on"
    assert failed(accept()) == {"secrets": [f"{found} head", f"{found} worker-0"]}


def test_a_secret_that_a_step_printed_is_reported(accept):
    assert failed(accept({"prepare.log": f"skip {CANARY}\n"})) == {
        "secrets": ["ACCEPTANCE_CANARY is in what the step prepare printed"]
    }


def test_no_node_watches_for_ever_and_a_look_before_the_start_does_not_count(make_job, monkeypatch):
    monkeypatch.setattr(acceptance, "_LONGEST", 0.1)
    assert acceptance._watch(make_job(), "mine", leaks.written({}))["looks"] == 0
    assert acceptance._watch(make_job("running", started={}), "mine", leaks.written({}))["looks"] > 0


def test_an_empty_secret_which_nothing_could_find_is_refused(run, stdin, make_job):
    make_job("sft-1", ended={})
    stdin(b"\n")
    said = run("acceptance", "watch", "--name=now", "--node=head", "--job=sft-1", "--cluster=mine")
    assert (said.status, "The secret on stdin is empty" in said.err) == (2, True)


def test_without_nodes_nothing_was_searched(accept, monkeypatch):
    monkeypatch.setattr(acceptance.evidence, "nodes", lambda api: [])
    assert failed(accept())["secrets"] == ["no node was searched"]


def test_a_debug_bundle_that_failed_says_why(accept):
    logs = {"bundles.log": "error   the disk is full\n"}
    said = accept(logs, {"bundles": 1}, lambda job: (job.debug / "20261127-asked.tar.gz").unlink())
    assert failed(said) == {"bundles": ["exit 1: the disk is full", "there is no tar"]}
