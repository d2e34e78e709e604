"""`verify run`: a session from begin to end in one process, and what happens when something breaks in the middle."""

import errno
import io
import json
import os
import shutil
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from shared_fixtures import BASE, OF_PROFILE, has_packages, knobs, node_row, record, write
from streams import tar

from verl_regress.base.layout import JobDir
from verl_regress.cluster.ray_api import Unreachable
from verl_regress.jobs import stop, watch
from verl_regress.plan import request
from verl_regress.session import replay, report
from verl_regress.store.sessions import Session

pytestmark = pytest.mark.slow

FULL = OSError(errno.ENOSPC, "No space left on device", "/x")
SUITE = "cases: {ppo: {workload: ppo}}\n"
TWO_STEPS = "cases: {ppo: {workload: ppo, steps: 2}}\n"
REPLAYS = """
skip:
  rollout: {enable: false, dump_dir: x, steps: []}
  rollout_tq: {enable: false, dump_dir: x, steps: []}
"""
STEP = "replay_verl-regress/GBS8_N2_in5_out7/{}/0/tq_batch.pt"  # a file of a recording
READ = "(TaskRunner pid=9) Injected 16 cached trajectories from step {} (8 prompts x 2)\n"
SPEC = "workload: ppo\nsecrets: [{name: API_KEY}]\n"
GONE = "The snapshot codeB was removed after the session began ({0} is not there): make it again with 'make snapshot CODE_ID=codeB VERL_SOURCE=path:/my/verl', and continue the session."


@pytest.fixture
def cluster(shared, ray, sdk):
    """A cluster on which each job ends at once: `ends` has what its launcher and Ray say, by the beginning of its id."""
    ray.has_nodes(node_row("head", "10.0.0.1"), node_row("worker-0", "10.0.0.2", CPU=8.0, GPU=8.0))
    for node in ("head", "worker-0"):
        has_packages(shared, node, "mine", numpy="2.4.6")
    for name, source in (("codeA", "pypi:0.7.1"), ("codeB", "path:/my/verl")):
        known = json.loads((shared.snapshots / name / "snapshot.json").read_text())
        write(shared.snapshots / name / "snapshot.json", json.dumps({**known, "source": source}))
    fake = types.SimpleNamespace(ends={}, submitted=[], driver="10.0.0.2", secrets={}, known=[])

    def on_submit(submission_id, **_):
        job = JobDir(shared.jobs / submission_id)
        fake.submitted.append(submission_id)
        fake.secrets[submission_id] = json.loads((shared.secrets / "mine" / submission_id).read_text())
        said = next((fake.ends[name] for name in fake.ends if submission_id.startswith(name)), "SUCCEEDED")
        if said in ("SUCCEEDED", "FAILED"):
            code = 0 if said == "SUCCEEDED" else 1
            job.write_state("started", {"node": "worker-0"})
            job.write_state("ended", {"exit_code": code, "reason": f"the trainer ended with {code}"})
        fake.known.append(
            {"submission_id": submission_id, "status": said, "driver_info": {"node_ip_address": fake.driver}}
        )
        ray.knows(*fake.known)

    sdk.on_submit = on_submit
    return fake


@pytest.fixture
def verify(run, ray, monkeypatch):
    """One call of `verify run`, as scripts/lib/verify.bash makes it; returns its outcome and the words of its last line."""

    monkeypatch.setattr(watch, "_LOOK_EVERY", 0.05)

    def verify(*args, suite=SUITE, only="placement", spec=SPEC, session=None, **more):
        secrets = b"API_KEY=sk-0123456789\0\0" if "secrets" in spec else b"\0"
        members = {"job_spec0": spec.encode(), "ray_config": BASE.replace("ADDRESS", ray.address).encode()}
        stream = secrets + tar(members | ({} if session else {"suite": suite.encode()})).read()
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(stream))))
        begins = [f"--session={session}"] if session else ["--code-a=codeA", "--code-b=codeB"]  # fmt: skip
        outcome = run(
            "verify", "run", *begins, "--spec-name=jobspecs/ppo.yaml",
            knobs(**{**OF_PROFILE, "CLUSTER_NAME": "mine", "SUITE": "my.yaml", "ONLY": only, **more}, MODEL="tiny", DATASET="sums", CODE_ID="codeA"), "--deadlines=0.5,0.5,0.5,0.5",
            "--profile-title=rehearsal", *args,
        )  # fmt: skip
        return outcome, (outcome.out.splitlines() or [""])[-1].split()

    return verify


def the_session(shared):
    (path,) = shared.sessions.iterdir()
    return Session(path)


@pytest.mark.quick
def test_a_session_from_begin_to_end(verify, cluster, shared):
    outcome, words = verify()
    session = the_session(shared)
    name, job = session.path.name, f"ppo-b-{session.path.name}"
    assert (outcome.status, words) == (0, ["end", "0"])
    assert outcome.out.splitlines()[0] == f"session {name}"
    assert cluster.submitted == [job]
    assert f"==      regression session {session.path} (profile cpu): A is codeA, B is codeB\n" in outcome.err
    assert "==      verify: ppo_b (jobspecs/ppo.yaml with B, codeB, seed 100)\n" in outcome.err
    said = request.of_job(JobDir(shared.jobs / job)).said
    assert (said.code_id, said.submission_id, said.seed, said.perturbed) == ("codeB", job, 100, False)
    assert cluster.secrets[job] == {"API_KEY": "sk-0123456789"}
    assert outcome.out.splitlines()[1].startswith("ok      placement  every driver ran on a worker")
    assert (session.is_over, cluster.submitted) == (True, [job])


def test_the_jobs_of_a_session_have_no_debugger_and_record_what_the_doctor_left_out(verify, cluster, shared):
    outcome, words = verify(DEBUGGER="1", SKIP_DOCTOR="VR-NET-05")
    [job] = cluster.submitted
    assert JobDir(shared.jobs / job).read_state("submitted")["skip_doctor"] == "VR-NET-05"
    assert (outcome.status, words) == (0, ["end", "0"])
    assert json.loads((shared.jobs / job / "config" / "resolved.json").read_text())["debugger"] is None


@pytest.mark.parametrize(
    ("only", "reuse", "said"),
    [
        ("", "true", "        this session makes 2 to 4 runs, less those of A that earlier sessions made\n"),
        ("", "false", "        this session makes 2 to 4 runs\n"),
        ("placement,outputs", "true", ""),
    ],
)
def test_what_a_session_begins_with(verify, cluster, shared, only, reuse, said):
    cluster.ends["ppo-b"] = "STOPPED"
    outcome, _ = verify(only=only, suite=f"reuse: {reuse}\n{SUITE}")
    begin = the_session(shared).read("begin")
    assert outcome.err.startswith(f"{said}==      regression session ")
    assert (begin["codes"], begin["only"]) == ({"A": "codeA", "B": "codeB"}, sorted(filter(None, only.split(","))))
    assert (begin["cluster"], begin["profile"]) == ("mine", "rehearsal")


def test_the_budget_is_what_all_runs_of_the_session_may_take(verify, cluster, shared):
    outcome, words = verify(BUDGET="1", only="")
    assert words == ["end", "11"]
    assert cluster.submitted == [f"ppo-b-{the_session(shared).path.name}"]
    assert "        BUDGET=1 runs are used up: the verdict is about the runs made so far\n" in outcome.err


def test_a_stalled_job_is_stopped_and_recorded_after_its_leftovers_ended(verify, cluster, shared, monkeypatch):
    cluster.ends["ppo-b"] = "RUNNING"
    monkeypatch.setattr(stop, "end", lambda job, _deadline: cluster.known[0].update(status="STOPPED"))
    _, words = verify()
    session = the_session(shared)
    job = f"ppo-b-{session.path.name}"
    assert words == ["stop", job, str(shared.jobs / job)]
    assert session.read("job-ppo_b") is None
    _, words = verify("--again", session=session.path.name)
    assert (words, session.read("job-ppo_b")["stalled"], cluster.submitted) == (["end", "9"], True, [job])


def test_a_lost_run_is_repeated_twice_then_it_is_recorded(verify, cluster, shared):
    cluster.ends["ppo-b"] = "STOPPED"
    for number in (1, 2):
        outcome, words = verify(session=the_session(shared).path.name if number > 1 else None)
        name = the_session(shared).path.name
        job = f"ppo-b-{name}" + (f"-{number}" if number > 1 else "")
        assert (words, outcome.status, cluster.submitted[-1]) == (["end", "4"], 4, job)
        why = f"{job} was stopped, which says nothing about the code"
        assert f"        ppo_b: {why}: the run is repeated\n" in outcome.err
        assert outcome.err.endswith(
            f"error   The job {job} of ppo_b was stopped: continue the session; it submits another job for this run, twice at most.\n"
            f"        the session can be continued: 'make verify SESSION={name}'\n"
        )
    verify(session=name)
    assert the_session(shared).read("job-ppo_b")["submission_id"] == f"ppo-b-{name}-3"


def test_a_job_without_resources_is_stopped_and_ends_the_session(verify, cluster, shared, monkeypatch):
    cluster.ends["ppo-b"] = "PENDING"
    monkeypatch.setattr(stop, "end", lambda job, _deadline: cluster.known[0].update(status="STOPPED"))
    _, words = verify()
    assert words[0] == "stop"
    name = the_session(shared).path.name
    outcome, words = verify("--again", session=name)
    assert (words, outcome.status) == (["end", "5"], 5)
    said = f"The job ppo-b-{name} of ppo_b could not be scheduled: continue the session when its devices are free."
    assert f"error   {said}\n" in outcome.err
    cluster.ends.clear()
    assert verify(session=name)[1] == ["end", "0"]


def test_what_ray_does_not_say_ends_the_session_which_goes_on_later(verify, cluster, shared, monkeypatch):
    cluster.ends["ppo-b"] = "RUNNING"
    with monkeypatch.context() as away:
        away.setattr(watch, "ask_ray", fails_with(Unreachable("http://ray", "it is away")))
        outcome, words = verify()
    name = the_session(shared).path.name
    assert (words, outcome.status) == (["end", "8"], 8)
    said = f"It is unknown how the job ppo-b-{name} of ppo_b ended (the reason is above): fix that, then continue the session."
    assert f"error   {said}\n" in outcome.err
    cluster.known[0]["status"] = "SUCCEEDED"
    JobDir(shared.jobs / f"ppo-b-{name}").write_state("ended", {"exit_code": 0, "reason": "the trainer ended"})
    assert verify(session=name)[1] == ["end", "0"]
    assert len(cluster.submitted) == 1


def test_a_config_that_b_alone_refuses_is_bs_failure(verify, cluster, shared):
    config = shared.snapshots / "codeB" / "verl" / "trainer" / "config" / "ppo_trainer.yaml"
    write(config, config.read_text().replace("total_epochs: 30, ", ""))
    record(shared.snapshots / "codeB")
    outcome, words = verify(only="outputs")
    assert words == ["end", "9"]
    assert [job.split("-2")[0] for job in cluster.submitted] == ["ppo-a"]
    assert "ppo_b: B's config refuses a job that A's accepts, which decides this case\n" in outcome.err
    assert "total_epochs" in the_session(shared).read("refused-ppo_b")["reason"]


def test_a_case_that_a_refuses_begins_no_session(verify, cluster, shared):
    cases = "cases:\n  first: {workload: ppo}\n  s: {workload: ppo, overrides: [nothing.here=1]}\n"
    outcome, words = verify(suite=cases)
    assert (words, outcome.status, cluster.submitted) == (["end", "2"], 2, [])
    assert not shared.sessions.exists()
    assert "The override 'nothing.here=1' (from case s of my.yaml) sets a key that " in outcome.err


def test_a_case_that_b_alone_refuses_is_known_before_the_first_job(verify, cluster, shared):
    config = shared.snapshots / "codeB" / "verl" / "trainer" / "config" / "ppo_trainer.yaml"
    write(config, config.read_text().replace("total_epochs: 30, ", "total_epochs: 30, unused: 1, "))
    record(shared.snapshots / "codeB")
    write(
        shared.snapshots / "codeA" / "verl" / "trainer" / "config" / "ppo_trainer.yaml",
        config.read_text().replace("unused: 1", "old: 1"),
    )
    record(shared.snapshots / "codeA")
    cases = "cases:\n  first: {workload: ppo}\n  s: {workload: ppo, overrides: [trainer.old=2]}\n"
    outcome, _ = verify(suite=cases, only="outputs")
    said = outcome.err.index("s_b: B's config refuses a job that A's accepts, which decides this case\n")
    assert said < outcome.err.index("verify: first_")
    assert "(from case s of my.yaml)" in the_session(shared).read("refused-s_b")["reason"]
    assert not any(job.startswith("s-b-") for job in cluster.submitted)


def test_a_session_records_where_the_jobspecs_beside_its_suite_are(verify, run, shared, cluster):
    cluster.ends["ppo-b"] = "STOPPED"
    verify("--suite-file=jobspecs/my.yaml", suite="cases: {ppo: {jobspec: ppo.yaml}}")
    session = the_session(shared).path.name
    assert run("verify", "open", f"--name={session}", "--cluster=mine").out == f"{session}\0jobspecs/ppo.yaml\0"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"suite": "cases: {}\n"}, "cases in my.yaml"),
        ({"only": "further"}, "ONLY=further checks nothing in the suite my.yaml"),
        ({"spec": "workload: dpo\n"}, "workload in jobspecs/ppo.yaml"),
    ],
)
def test_bad_input_creates_nothing(verify, shared, options, sentence):
    outcome, words = verify(**options)
    assert (words, outcome.status, outcome.created) == (["end", "2"], 2, [])
    assert outcome.err.startswith(f"error   {sentence}")


def test_a_second_process_is_refused_with_who_drives_the_session(verify, cluster, shared, monkeypatch):
    cluster.ends["ppo-b"] = "STOPPED"
    verify("--caller=60_verify of user me (pid 7 on here)")
    session = the_session(shared)
    monkeypatch.setattr("verl_regress.session.verify._LEAVES_WITHIN", 0.1)
    code = "import fcntl, sys; fcntl.flock(file := open(sys.argv[1], 'a'), fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code, session.path / "driver"], stdin=-1, stdout=-1) as other:
        other.stdout.readline()
        outcome, words = verify(session=session.path.name)
        other.kill()
    assert words == ["end", "2"]
    assert outcome.err.startswith(
        f"error   The session {session.path.name} is driven by 60_verify of user me (pid 7 on here), since 20"
    )
    assert outcome.err.endswith(": wait until that process ends, or stop it, then run this again.\n")
    assert verify(session=session.path.name)[1] == ["end", "4"]  # a killed one leaves no lock


@pytest.mark.parametrize("holds", [False, True])
def test_it_ends_with_its_stdin_but_not_in_the_middle_of_a_submission(holds):
    code = (
        "import sys, threading, time; from verl_regress.jobs import watch; busy = threading.Lock()\n"
        "if sys.argv[1]: busy.acquire()\n"
        "watch.leave_with_the_listener(busy); print(flush=True); time.sleep(1 if sys.argv[1] else 60)\n"
        "print('submitted', flush=True)\n"
        "if sys.argv[1]: busy.release()\n"
        "time.sleep(0.2); busy.acquire(); print('another one'); time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code, "1" if holds else ""], stdin=-1, stdout=-1, text=True, env=environment) as process:  # fmt: skip
        process.stdout.readline()
        began = time.monotonic()
        out, _ = process.communicate(timeout=5)
    assert (process.returncode, out) == (1, "submitted\n" if holds else "")
    assert time.monotonic() - began < 5


def test_it_ends_when_nothing_more_comes_from_a_network_that_died():
    code = (
        "import threading, time; from verl_regress.jobs import watch\n"
        "watch.leave_with_the_listener(threading.Lock(), 0.5); time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, env=environment) as process:
        process.stdin.write(b".")
        process.stdin.flush()  # and stays open
        assert process.wait(timeout=50) == 8


def fails_with(error):
    def fails(*_args, **_words):
        raise error

    return fails


@pytest.mark.parametrize(("driver", "status", "word"), [("10.0.0.2", 1, "ok"), ("10.0.0.1", 9, "FAIL")])
def test_a_full_disk_does_not_hide_the_answer_and_the_session_writes_it_later(
    verify, cluster, shared, monkeypatch, driver, status, word
):
    cluster.driver = driver
    write_evidence = Session.write
    with monkeypatch.context() as full:
        full.setattr(report, "write_atomically", fails_with(FULL))
        # The disk is full when the last piece of evidence is written.
        full.setattr(
            Session, "write", lambda *given: fails_with(FULL)() if given[1] == "end" else write_evidence(*given)
        )
        outcome, words = verify()
    session = the_session(shared)
    name = session.path.name
    assert (outcome.status, words) == (status, ["end", str(status)])
    assert outcome.out.splitlines()[1].startswith(f"{word:<6}  placement  every driver ran on a worker")
    said = f"The reports of the session {name} are not written ([Errno 28] No space left on device: '/x'): fix that, then 'make verify SESSION={name}' writes them."
    assert outcome.err.endswith(f"\nerror   {said}\n")
    assert not session.is_over
    outcome, _ = verify("--again", session=name)
    assert outcome.status == (9 if status == 9 else 0)
    assert session.is_over


def test_json_is_the_report_alone_between_the_first_and_the_last_line(verify, cluster, shared):
    outcome, _ = verify(JSON="1")
    session = the_session(shared)
    said = json.loads("".join(outcome.out.splitlines()[1:-1]))
    assert said == json.loads((session.path / "report.json").read_text())


def test_a_run_whose_snapshot_is_gone_is_not_submitted(verify, cluster, shared):
    cluster.ends["ppo-b"] = "STOPPED"
    verify()
    name = the_session(shared).path.name
    aside = shared.path / "aside"
    shutil.move(shared.snapshots / "codeB", aside)
    outcome, words = verify(session=name)
    assert words == ["end", "1"]
    assert f"error   {GONE.format(shared.snapshots / 'codeB')}\n" in outcome.err
    shutil.move(aside, shared.snapshots / "codeB")
    write(shared.snapshots / "codeB" / "verl" / "__init__.py", "# other\n")
    outcome, words = verify(session=name)
    assert (
        f"error   The snapshot codeB was changed after the session began ({shared.snapshots}/codeB: tree "
        in outcome.err
    )
    assert len(cluster.submitted) == 1


def test_a_job_that_failed_because_its_snapshot_went_is_not_bs_failure(verify, cluster, shared, monkeypatch):
    cluster.ends["ppo-b"] = "FAILED"
    aside = shared.path / "aside"
    follow = watch.follow_to_the_end

    def goes(job, deadlines):
        shutil.move(shared.snapshots / "codeB", aside)
        return follow(job, deadlines)

    with monkeypatch.context() as gone:
        gone.setattr(watch, "follow_to_the_end", goes)
        outcome, words = verify()
    session = the_session(shared)
    assert words == ["end", "1"]
    assert f"error   {GONE.format(shared.snapshots / 'codeB')}\n" in outcome.err
    assert session.read("job-ppo_b") is None
    shutil.move(aside, shared.snapshots / "codeB")
    assert verify(session=session.path.name)[1] == ["end", "9"]
    assert cluster.submitted[-1] == f"ppo-b-{session.path.name}-2"


@pytest.fixture
def replays(shared, cluster, sdk):
    """A verl that replays: a job writes the rollouts of two steps where there are none, else it reads them. `spoils` acts when the job begins,
    by the beginning of its id.
    """
    for code in ("codeA", "codeB"):
        config = shared.snapshots / code / "verl/trainer/config/ppo_trainer.yaml"
        more = {"device: cuda": "device: cuda, use_v1: true, rollout_data_dir: null", "train_batch_size: 1024": "train_batch_size: 8, gen_batch_size: null, max_prompt_length: 5, max_response_length: 7", "{model: {path: x}}\ncritic": "{model: {path: x}, rollout: {n: 2}}\ncritic"}  # fmt: skip
        text = config.read_text() + REPLAYS
        for old, new in more.items():
            assert old in text
            text = text.replace(old, new)
        write(config, text)
        record(shared.snapshots / code)
    fake = types.SimpleNamespace(spoils={}, cluster=cluster)
    submitted = sdk.on_submit

    def on_submit(submission_id, **more):
        job = JobDir(shared.jobs / submission_id)
        said = json.loads((job.config / "asked.json").read_text())["said"]["overrides"]
        directory = next(each["text"].partition("=")[2] for each in said if "rollout_tq.dump_dir" in each["text"])
        home = Path(directory)
        for start, spoil in fake.spoils.items():
            if submission_id.startswith(start):
                spoil(home)
        steps = (1, 2) if (home / STEP.format(2)).exists() else ()
        write(job.driver_log, "".join(map(READ.format, steps)))
        for step in () if steps else (1, 2):
            write(home / STEP.format(step), f"rollouts of {step}")
        write(
            job.metrics, "".join(json.dumps({"step": step, "data": {"actor/pg_loss": 0.1}}) + "\n" for step in (1, 2))
        )
        submitted(submission_id, **more)

    sdk.on_submit = on_submit
    return fake


def runs(fake):
    return [job.rpartition("-20")[0] for job in fake.cluster.submitted]


def test_a_records_first_and_b_trains_on_its_rollouts(verify, replays, shared):
    outcome, _ = verify(only="", suite=TWO_STEPS, REPLAY="1")
    session = the_session(shared)
    assert runs(replays)[:2] == ["ppo-a", "ppo-b"]
    assert (
        f"        ppo: A's rollouts are recorded in {session.path}/replay, at most 0.1 MiB for each seed\n"
        in outcome.err
    )
    known = session.read("recording-ppo-100")["files"]
    assert set(known) == {STEP.format(1), STEP.format(2)}
    for side in "ab":
        assert session.read(f"job-ppo_{side}")["misused"] is None
        argv = json.loads((shared.jobs / f"ppo-{side}-{session.path.name}/config/resolved.json").read_text())["argv"]
        assert {"trainer.experiment_name=replay", "skip.rollout_tq.enable=True", "skip.rollout.steps=[1,2]"} <= set(
            argv
        )


def test_a_b_that_generates_itself_is_no_evidence_about_b(verify, replays, shared):
    replays.spoils["ppo-b"] = lambda home: write(home / "r/GBS4/1/0/tq_batch.pt", "x")
    outcome, _ = verify(only="", suite=TWO_STEPS, REPLAY="1")
    said = "it did not leave A's rollouts as they were: r/GBS4/1/0/tq_batch.pt is new"
    assert the_session(shared).read("job-ppo_b")["misused"] == said
    assert "ppo         inconclusive: B's record proves nothing" in outcome.out
    assert said in outcome.out
    assert not (the_session(shared).path / "replay").exists()  # it is over


def test_a_b_that_took_the_rewards_of_a_instead_of_its_own_is_no_evidence(verify, replays, shared):
    verify(only="", suite=TWO_STEPS.replace("steps", "recompute_rewards: true, steps"), REPLAY="1")
    session = the_session(shared)
    for side, misused in ("a", None), ("b", "it computed the rewards of 0 of 2 steps again"):
        assert session.read(f"job-ppo_{side}")["misused"] == misused
        variables = (shared.jobs / f"ppo-{side}-{session.path.name}/config/runtime_env.json").read_text()
        assert "recomputed_rewards" in json.loads(variables)["env_vars"]["VERL_REGRESS_HOOKS"].split(",")


def test_a_lost_recording_begins_with_nothing(verify, replays, shared):
    replays.cluster.ends["ppo-a"] = "STOPPED"
    verify(only="", suite=TWO_STEPS, REPLAY="1")
    session = the_session(shared)
    (session.path / "replay/ppo-100" / STEP.format(1)).unlink()
    replays.cluster.ends.clear()
    seen = []
    replays.spoils["ppo-a-20"] = lambda home: seen.append(home.exists())
    verify(session=session.path.name)
    assert seen == [False]
    assert session.read("job-ppo_b")["misused"] is None


def test_a_recording_that_was_changed_meanwhile_ends_the_session(verify, replays, shared):
    replays.cluster.ends["ppo-b"] = "STOPPED"
    verify(only="", suite=TWO_STEPS, REPLAY="1")
    session = the_session(shared)
    write(session.path / "replay/ppo-100" / STEP.format(1), "cut off")
    outcome, words = verify(session=session.path.name)
    assert words == ["end", "1"]
    assert f"error   The recording {session.path}/replay/ppo-100 is not what A's run wrote ({STEP.format(1)} is of other bytes): begin a new session, which records it again.\n" in outcome.err  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (REPLAYS, "", "verl 0.7.1 of B has no key skip.rollout_tq, which verl has since 0.9.0"),
        ("n: 2", "n: 4", "actor_rollout_ref.rollout.n is 2 in A and 4 in B"),
    ],
)
def test_a_case_that_b_cannot_replay_generates_in_every_run(verify, replays, cluster, shared, old, new, why):
    config = shared.snapshots / "codeB/verl/trainer/config/ppo_trainer.yaml"
    write(config, config.read_text().replace(old, new))
    record(shared.snapshots / "codeB")
    cluster.ends["ppo-b"] = "STOPPED"
    replays.spoils.clear()
    outcome, _ = verify(only="", suite=TWO_STEPS, REPLAY="1", BUDGET="1")
    assert f"skip    the replay of ppo ({why})\n" in outcome.err
    assert the_session(shared).read("replay")["cases"] == {}


def test_rollouts_that_need_more_space_than_there_is(verify, replays, shared, monkeypatch):
    monkeypatch.setattr(replay.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=5))
    outcome, words = verify(only="", suite=TWO_STEPS, REPLAY="1")
    assert (words, runs(replays)) == (["end", "1"], [])
    assert "error   REPLAY=1 needs up to 0.0 GiB for rollouts in " in outcome.err
