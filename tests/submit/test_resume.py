"""A further attempt: its request, where it continues, what it refuses, and that earlier attempts are not changed."""

import io
import json
import os
import sys
import tarfile
import types

import pytest
from shared_fixtures import SPEC, record, write, write_checkpoint
from streams import tar

from verl_regress.base.layout import JobDir
from verl_regress.plan import data_files
from verl_regress.session.evidence import digest
from verl_regress.store import snapshot

pytestmark = pytest.mark.slow


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def ended(submit, ray, shared):
    """A job that was submitted and ended with that exit status."""

    def ended(*args, exit_code=1, **kwargs):
        submit("SUBMISSION_ID=me", *args, **kwargs)
        job = JobDir(shared.jobs / "me")
        ray.knows({"submission_id": "me", "status": "SUCCEEDED" if exit_code == 0 else "FAILED"})
        job.write_state("ended", {"exit_code": exit_code, "reason": "the trainer ended"})
        return job

    return ended


# promise: deletes or overwrites what a job wrote
def test_a_retry_asks_for_the_same_again(ended, run, sdk, shared):
    job = ended("OVERRIDES=data.train_batch_size=32", spec=f"{SPEC}env_vars: {{A: b}}\n")
    before = digest(job.path)
    outcome = run("retry", "me")
    assert (outcome.status, outcome.out) == (0, "me.a2\n")
    assert outcome.err.splitlines() == [
        "changed submitted me.a2 (ppo, profile cpu, code codeA: pypi:0.7.1)",
        "        attempt 2 of me, as asked for me, from the beginning",
    ]
    again = job.numbered(2)
    assert again.path == shared.jobs / "me" / "attempts" / "2"
    first, second = read(job.config / "resolved.json"), read(again.config / "resolved.json")
    assert (first["attempt"], first["parent"]) == (1, None)
    assert (second["attempt"], second["parent"]) == (2, {"attempt": 1, "checkpoint": None, "step": 0})
    moved = json.loads(json.dumps(first).replace(str(job.path), str(again.path)))
    moved["argv"] = [word.replace("experiment_name=me", "experiment_name=me.a2") for word in moved["argv"]]
    moved["overrides"][2]["text"] = "trainer.experiment_name=me.a2"
    assert second == {**moved, "attempt": 2, "parent": second["parent"]}
    for name in ("job_spec.json", "job_spec.yaml", "ray_config.yaml", "asked.json", "code.json"):
        assert (again.config / name).read_bytes() == (job.config / name).read_bytes()
    by_ray = sdk.submitted[1]
    assert by_ray["submission_id"] == "me.a2"
    assert by_ray["entrypoint"].endswith(f"launch {again.path}")
    assert by_ray["runtime_env"]["env_vars"]["VERL_FILE_LOGGER_PATH"] == str(again.metrics)
    assert by_ray["runtime_env"]["env_vars"]["VERL_REGRESS_JOB_DIR"] == str(again.path)
    assert (
        by_ray["metadata"].items() >= {"parent_attempt": "1", "parent_checkpoint": "None", "parent_step": "0"}.items()
    )
    again.path.rename(shared.path / "elsewhere")
    again.path.parent.rmdir()
    assert digest(job.path) == before


@pytest.mark.parametrize("command", ["resume", "retry"])
def test_a_dry_run_of_a_further_attempt_prints_it_and_creates_nothing(ended, run, ray, sdk, shared, command):
    job = ended("OVERRIDES=trainer.total_training_steps=6")
    write_checkpoint(job, 2, latest=2)
    asked = len(ray.seen)
    outcome = run(command, "me", "DRY_RUN=1")
    assert (outcome.status, outcome.err, outcome.created) == (0, "", [])
    assert (len(ray.seen), len(sdk.submitted)) == (asked, 1)
    assert "--submission-id me.a2 " in outcome.out.splitlines()[-1]
    assert ("trainer.resume_mode=resume_path" in outcome.out) == (command == "resume")


# promise: takes a secret that is written as plain text into `env_vars` or an override
def test_what_a_job_may_have_as_plain_text_its_further_attempts_may_have(ended, run, shared):
    secret = "WANDB_API_KEY=notarealkey0123456789"
    ended("ALLOW_PLAIN_SECRETS=1", spec=f"{SPEC}env_vars: {{{secret.replace('=', ': ')}}}\n")
    assert run("retry", "me").status == 0
    ended("SUBMISSION_ID=other")
    override = f"OVERRIDES=+ray_kwargs.ray_init.runtime_env.env_vars.{secret}"
    refused = run("retry", "other", override)
    assert (refused.status, refused.created) == (2, [])
    assert "notarealkey" not in refused.err
    assert run("retry", "other", override, "ALLOW_PLAIN_SECRETS=1", "DRY_RUN=1").status == 0


@pytest.mark.quick
def test_a_resume_continues_from_the_newest_complete_checkpoint(ended, run):
    job = ended("OVERRIDES=trainer.total_training_steps=6")
    checkpoint = write_checkpoint(job, 2, latest=2)
    write_checkpoint(job, 4, "actor")  # half-written
    outcome = run("resume", "me")
    assert (outcome.status, outcome.out) == (0, "me.a2\n")
    assert outcome.err.endswith(f"attempt 2 of me, as asked for me, from {checkpoint} (step 2)\n")
    assert outcome.err.startswith(
        "warning global_step_4 is not complete, because it was not saved to its end, so the attempt continues from an earlier checkpoint\n"
    )
    resolved = read(job.numbered(2).config / "resolved.json")
    assert resolved["parent"] == {"attempt": 1, "checkpoint": str(checkpoint), "step": 2}
    assert resolved["argv"][-3:] == [
        "trainer.resume_mode=resume_path",
        f"trainer.resume_from_path={checkpoint}",
        "trainer.del_local_ckpt_after_load=False",
    ]


def test_overrides_add_to_what_was_asked_and_stay_for_the_next_attempt(ended, run, ray, monkeypatch):
    job = ended("OVERRIDES=data.train_batch_size=32")
    stream = tar({"overrides": b"trainer.total_epochs=3\n"})
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BufferedReader(stream)))
    assert run("retry", "me", "OVERRIDES_FILE=more", "OVERRIDES=trainer.save_freq=5").status == 0
    second = job.numbered(2)
    ray.knows({"submission_id": "me.a2", "status": "FAILED"})
    second.write_state("ended", {"exit_code": 1, "reason": "the trainer ended"})
    assert run("retry", "me").out == "me.a3\n"
    wanted = {"data.train_batch_size=32", "trainer.total_epochs=3", "trainer.save_freq=5"}
    assert wanted <= set(read(job.numbered(3).config / "resolved.json")["argv"])
    origins = {row["text"]: row["origin"] for row in read(job.numbered(3).config / "resolved.json")["overrides"]}
    assert origins["trainer.total_epochs=3"] == "OVERRIDES_FILE more line 1"


def test_a_named_attempt_is_the_one_that_is_repeated(ended, run, ray):
    job = ended()
    run("retry", "me", "OVERRIDES=trainer.total_epochs=3")
    ray.knows({"submission_id": "me.a2", "status": "FAILED"})
    job.numbered(2).write_state("ended", {"exit_code": 1, "reason": "the trainer ended"})
    assert run("retry", "me.a1").out == "me.a3\n"
    resolved = read(job.numbered(3).config / "resolved.json")
    assert "trainer.total_epochs=1" in resolved["argv"]
    assert resolved["parent"]["attempt"] == 1


def test_a_resume_of_a_retry_that_saved_nothing_continues_from_the_attempt_before_it(ended, run, ray):
    job = ended()
    checkpoint = write_checkpoint(job, 10, latest=10)
    run("retry", "me")
    ray.knows({"submission_id": "me.a2", "status": "FAILED"})
    job.numbered(2).write_state("ended", {"exit_code": 1, "reason": "the trainer ended"})
    run("resume", "me")
    assert read(job.numbered(3).config / "resolved.json")["parent"]["checkpoint"] == str(checkpoint)
    newer = write_checkpoint(job.numbered(2), 2, latest=2)
    ray.knows({"submission_id": "me.a3", "status": "FAILED"})
    job.numbered(3).write_state("ended", {"exit_code": 1, "reason": "the trainer ended"})
    run("resume", "me")
    assert read(job.numbered(4).config / "resolved.json")["parent"] == {
        "attempt": 2, "checkpoint": str(newer), "step": 2,
    }  # fmt: skip


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_checkpoint_that_another_user_put_into_the_job_is_not_resumed(ended, run, monkeypatch):
    job = ended("OVERRIDES=trainer.total_training_steps=6")
    checkpoint = write_checkpoint(job, 2, latest=2)
    os.chown(theirs := next(path for path in checkpoint.rglob("*") if path.is_file()), 4242, 4242)
    assert run("resume", "me").is_refusal(
        f"JOB=me is refused, because {theirs} belongs to user 4242, and what is there decides what your job does: set TRUSTED_UIDS=4242 if you "
        "trust that user, or submit a job of your own."
    )
    monkeypatch.setenv("VERL_REGRESS_TRUSTED_UIDS", "4242")
    assert run("resume", "me").out == "me.a2\n"


def test_a_resume_without_a_complete_checkpoint_is_refused(ended, run):
    job = ended()
    assert run("resume", "me").is_refusal(
        f"JOB=me has no complete checkpoint under {job.path}: start it again with 'make retry JOB=me'."
    )
    write_checkpoint(job, 2, "actor critic", latest=2)
    assert run("resume", "me").is_refusal(
        f"JOB=me has no complete checkpoint under {job.path} (global_step_2 is not complete, because it has no data.pt, so the data would begin "
        "again): start it again with 'make retry JOB=me'."
    )


def test_the_snapshot_of_a_job_that_is_gone_is_made_again_as_the_refusal_says(ended, run, shared, tmp_path):
    ended()
    kept = tmp_path / "verl"
    (shared.snapshots / "codeA").rename(kept)
    assert run("retry", "me").is_refusal(
        f"CODE_ID=codeA (from the knob CODE_ID) has no snapshot under {shared.snapshots}: make it again with "
        "'make snapshot CODE_ID=codeA VERL_SOURCE=pypi:0.7.1'."
    )
    (kept / "snapshot.json").unlink()
    (kept / "mvp_marker.py").unlink()
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w") as stream:
            stream.add(kept, ".")
        file.seek(0)
        snapshot.create(shared, "codeA", "pypi:0.7.1", "0.7.1", file)
    assert run("retry", "me").out == "me.a2\n"


@pytest.mark.parametrize("command", ["resume", "retry"])
@pytest.mark.parametrize(("status", "has_saved"), [("PENDING", False), ("RUNNING", False), ("RUNNING", True)])
def test_two_attempts_never_run_at_once(submit, run, ray, shared, command, status, has_saved):
    submit("SUBMISSION_ID=me")
    if has_saved:  # else a resume would name a retry, which is refused as well
        write_checkpoint(JobDir(shared.jobs / "me"), 2, latest=2)
    ray.knows({"submission_id": "me", "status": status})
    assert run(command, "me").is_refusal(
        f"me is {status}: wait for its end ('make wait JOB=me') or stop it ('make stop JOB=me') first."
    )
    assert run(command, "me.a1").status == 2


def test_all_steps_are_done_already(ended, run):
    job = ended(exit_code=0)
    checkpoint = write_checkpoint(job, 10, latest=10)
    write(job.driver_log, "Total training steps: 10\n")
    assert run("resume", "me").is_refusal(
        f"JOB=me has all its 10 steps done ({checkpoint}): ask for more, as in OVERRIDES=trainer.total_training_steps=20."
    )
    assert run("resume", "me", "OVERRIDES=trainer.total_training_steps=10").status == 2


@pytest.mark.parametrize("more", ["trainer.total_training_steps=11", "trainer.total_epochs=2"])
def test_a_job_that_is_over_is_resumed_for_more(ended, run, more):
    job = ended(exit_code=0)
    write_checkpoint(job, 10, latest=10)
    write(job.driver_log, "Total training steps: 10\n")
    assert run("resume", "me", f"OVERRIDES={more}").out == "me.a2\n"


@pytest.mark.parametrize("earlier", [None, '{"origins": {}, "said": {"option_that_went": 1}}', "{}", '{"said'])
def test_a_job_of_an_earlier_version_or_a_damaged_one_is_one_sentence(ended, run, earlier):
    file = ended().config / "asked.json"
    file.unlink() if earlier is None else file.write_text(earlier)
    assert run("retry", "me").is_refusal(
        f"The request in {file.parent} cannot be repeated, because it is damaged, an earlier version wrote it, or its submitter died: submit "
        "the job again with 'make submit'.",
        status=1,
    )


@pytest.mark.parametrize("command", ["resume", "retry"])
@pytest.mark.parametrize("change", ["code", "data"])
def test_an_attempt_is_compared_with_the_one_that_it_comes_from(ended, run, shared, command, change):
    """A snapshot that was made again under its id was taken without a word."""
    job = ended()
    checkpoint = write_checkpoint(job, 2, latest=2)
    was = read(job.config / "code.json")["tree_sha256"]
    if change == "code":
        write(shared.snapshots / "codeA" / "verl" / "__init__.py", "other = 1\n")
        now = json.loads(record(shared.snapshots / "codeA"))["tree_sha256"]
        changed = f"CODE_ID=codeA (tree {now[:12]}, it was {was[:12]})"
    else:
        changed = str(write(shared.datasets / "sums" / "train.parquet", "other rows"))
    begin = f" OVERRIDES='trainer.resume_mode=resume_path trainer.resume_from_path={checkpoint}'"
    assert run(command, "me").is_refusal(
        f"{changed} changed after me was submitted, so a further attempt would be another job: put that back, submit it as a job of its own with "
        f"'make submit JOBSPEC={job.config}/job_spec.json{begin if command == 'resume' else ''}', or set ALLOW_MISMATCH=1."
    )
    outcome = run(command, "me", "ALLOW_MISMATCH=1")
    assert outcome.out == "me.a2\n"
    assert f"warning {changed} changed after me was submitted: ALLOW_MISMATCH=1\n" in outcome.err


def test_an_input_that_is_typed_for_an_attempt_may_be_another(ended, run, shared):
    ended()
    file = write(shared.datasets / "sums" / "train.parquet", "other rows")
    assert run("retry", "me", f"OVERRIDES=data.train_files={file}").out == "me.a2\n"


def test_what_only_a_worker_has_is_compared_there(ended, run, tmp_path):
    job = ended(f"OVERRIDES=data.val_files={tmp_path}/own.parquet")
    path = f"{tmp_path}/own.parquet"
    job.write_state("inputs", {"inputs": [{"path": path, "sha256": "1" * 64}]})
    assert run("retry", "me").out == "me.a2\n"
    planned = {each["path"]: each["sha256"] for each in read(job.numbered(2).config / "resolved.json")["inputs"]}
    assert planned[path] == "1" * 64


def test_a_resume_at_the_end_of_the_data_is_refused_with_more_epochs(ended, run, monkeypatch):
    job = ended("OVERRIDES=data.train_batch_size=8 trainer.total_training_steps=20")
    monkeypatch.setattr(data_files, "check", lambda *_: data_files.Data(rows=64))
    checkpoint = write_checkpoint(job, 8, latest=8)
    assert run("resume", "me").is_refusal(
        f"JOB=me has all its 8 steps done ({checkpoint}): ask for more, as in OVERRIDES=trainer.total_epochs=3."
    )
    assert run("resume", "me", "OVERRIDES=trainer.total_epochs=3").out == "me.a2\n"
