"""A further attempt of a job, from its recorded `config/`: `resume` continues from a checkpoint, `retry` starts over.

Earlier attempts are not changed: the new one has its own directory, `attempts/N`, and its own id in Ray.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from verl_regress.base import say
from verl_regress.base.errors import BadInput, first
from verl_regress.base.files import read_text
from verl_regress.base.knobs import Knobs
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.base.trust import need
from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs import checkpoints, find, progress
from verl_regress.jobs.checkpoints import resume_overrides
from verl_regress.jobs.status import status_of
from verl_regress.plan import plan, request, steps
from verl_regress.plan.overrides import Override
from verl_regress.plan.request import Attempt
from verl_regress.secrets import secret_files
from verl_regress.store.retention import uncollected
from verl_regress.submit import submit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`resume JOB`, `retry JOB`, with further overrides as `submit` takes them."""
    find.add_job(parser)
    submit.add_shared_arguments(parser)


def run_resume(args: argparse.Namespace) -> int:
    """Continue from the newest complete checkpoint. Raises BadInput if there is none, or no step is left."""
    with uncollected(SharedRoot(args.shared_root)):
        asked, left_out = _asked_for(args), list[str]()
        for job in reversed([each for each in asked.attempts() if each.attempt <= asked.attempt]):
            for checkpoint, problem in checkpoints.all_with_problems(job):
                if problem is None:
                    for each in left_out:
                        say.warn(f"{each}, so the attempt continues from an earlier checkpoint")
                    return _begin(args, asked, job, checkpoint)
                left_out.append(f"{checkpoint.name} is not complete, because {problem}")
        found = f" ({'; '.join(left_out)})" if left_out else ""
        raise BadInput(
            f"JOB={args.job} has no complete checkpoint under {asked.first.path}{found}: start it again with "
            f"'make retry JOB={args.job}'."
        )


def run_retry(args: argparse.Namespace) -> int:
    """Start again, from the first step."""
    with uncollected(SharedRoot(args.shared_root)):
        return _begin(args, _asked_for(args))


def _asked_for(args: argparse.Namespace) -> JobDir:
    """The attempt that is asked for, of a job of the user's own that does not run. Raises BadInput, Unreadable, and RegressError.

    Whose job it is comes first: its files say where Ray is, and Ray gets our token.
    """
    asked = find.asked_for(args)
    _need_own(asked)
    _need_over(args, asked)
    return asked


def _begin(
    args: argparse.Namespace, asked: JobDir, parent: JobDir | None = None, checkpoint: Path | None = None
) -> int:
    """Submit a new attempt with the same request as `asked`; its Ray id is the one line on stdout."""
    newest = asked.attempts()[-1]
    attempt = Attempt(newest.numbered(newest.attempt + 1), parent or asked, checkpoint)
    earlier = request.of_job(asked)
    knobs: Knobs = args.knobs
    if knobs["CLUSTER_NAME"]:  # each allocation of Slurm has its own cluster
        earlier = replace(earlier, defaults=replace(earlier.defaults, cluster=knobs["CLUSTER_NAME"]))
    values = secret_files.read_values(sys.stdin.buffer) if args.secrets else {}
    file = knobs["OVERRIDES_FILE"]
    text = submit.read_stream({submit.OVERRIDES: file})[submit.OVERRIDES] if file else ""
    typed = submit.said_overrides(knobs, text)
    said = replace(
        earlier.said,
        overrides=(*earlier.said.overrides, *typed),
        plain_secrets=earlier.said.plain_secrets or knobs.is_on("ALLOW_PLAIN_SECRETS"),
        debugger=submit.debugger_of(knobs),
        debugger_host=args.debugger_host,
        fail_on=submit.fail_on_of(knobs) or earlier.said.fail_on,
    )
    planned = plan.make(SharedRoot(args.shared_root), replace(earlier, said=said, attempt=attempt, owner=args.owner))
    _need_steps_left(planned, attempt, args.job)
    planned = _as_before(planned, attempt, typed, is_allowed=knobs.is_on("ALLOW_MISMATCH"))
    submit.say_left_out(planned)
    if knobs.is_on("DRY_RUN"):
        submit.print_plan(planned)
        return 0
    submit.send(planned, values, knobs, announce=args.announce)
    where = f"{attempt.checkpoint} (step {attempt.step})" if attempt.checkpoint else "the beginning"
    say.info(
        f"attempt {attempt.job_dir.attempt} of {attempt.job_dir.submission_id}, as asked for {asked.ray_id}, from {where}"
    )
    print(attempt.job_dir.ray_id, flush=True)
    return 0


def _need_own(job: JobDir) -> None:
    """An attempt is made in the job's directory, which is its owner's, and nobody else may have changed it. Raises BadInput."""
    uid = job.first.path.stat().st_uid
    if os.geteuid() not in (uid, 0):
        raise BadInput(
            f"{job.ray_id} belongs to uid {uid}, who alone can add an attempt to it: submit a job of your own, as in "
            f"'make submit JOBSPEC={say.shown(job.config)}/job_spec.json'."
        )
    need(job.first.path, f"JOB={job.ray_id}", "or submit a job of your own")


def _as_before(planned: plan.Plan, attempt: Attempt, typed: Sequence[Override], *, is_allowed: bool) -> plan.Plan:
    """Compare code and inputs with the record of the attempt's parent. Returns the plan with what inputs outside the shared root contained
    then, for the launcher to compare. Raises BadInput for a change that nobody typed, unless ALLOW_MISMATCH=1 allows it.
    """
    parent, chosen = attempt.parent, _inputs_set_by(typed, planned)
    before = {path: sha256 for path, sha256 in _hashes_of(parent).items() if path not in chosen}
    hashed = submit.with_hashes(planned)
    changed = _changed_code(planned, parent)
    changed += [str(path) for path, sha256 in hashed.hashes.items() if before.get(path, sha256) != sha256]
    if not changed:
        return replace(hashed, hashes={**before, **hashed.hashes})
    sentence = f"{first(changed)} changed after {parent.ray_id} was submitted"
    if is_allowed:
        say.warn(f"{sentence}: ALLOW_MISMATCH=1")
        return hashed
    begin = f" OVERRIDES='{' '.join(resume_overrides(attempt.checkpoint))}'" if attempt.checkpoint else ""
    raise BadInput(
        f"{sentence}, so a further attempt would be another job: put that back, submit it as a job of its own with 'make submit "
        f"JOBSPEC={say.shown(parent.config)}/job_spec.json{begin}', or set ALLOW_MISMATCH=1."
    )


def _hashes_of(job: JobDir) -> dict[Path, str]:
    """What the inputs of a job contained, as its launcher recorded it and as its plan has it, which wins."""
    before = {Path(path): sha256 for path, sha256 in find.inputs_of(job).items() if sha256}
    inputs = find.plan_of(job).get("inputs") or ()
    return before | {Path(each["path"]): each["sha256"] for each in inputs if each["sha256"]}


def _inputs_set_by(typed: Sequence[Override], planned: plan.Plan) -> set[Path]:
    """The inputs that these overrides set, directly or through a mapping around their key."""
    keys = [override.parts()[1] for override in typed]
    return {one.path for one in planned.inputs if any(f"{one.key}.".startswith(f"{key}.") for key in keys)}


def _changed_code(planned: plan.Plan, parent: JobDir) -> list[str]:
    """The code id with both trees, if it has another tree than the record of the parent; else nothing."""
    was = (parent.read_config("code.json") or {}).get("tree_sha256")
    now = planned.code.record["tree_sha256"]
    return [] if was in (None, now) else [f"CODE_ID={planned.code.code_id} (tree {now[:12]}, it was {was[:12]})"]


def _need_over(args: argparse.Namespace, asked: JobDir) -> None:
    """Two attempts of a job never run at once, whatever else is wrong. Raises BadInput; RegressError if Ray does not answer.

    A dry run asks nobody.
    """
    if args.knobs.is_on("DRY_RUN"):
        return
    job = asked.attempts()[-1]
    judgement = status_of(job, RayApi(find.plan_of(job)["address"]).job(job.ray_id))
    if judgement.status.exit is None:
        raise BadInput(
            f"{job.ray_id} is {judgement.status.value}: wait for its end ('make wait JOB={job.ray_id}') or stop it "
            f"('make stop JOB={job.ray_id}') first."
        )


def _need_steps_left(planned: plan.Plan, attempt: Attempt, asked: str) -> None:
    """From a checkpoint of the last step verl would train nothing, or one step too many (0.7.1, 0.8.0). Raises BadInput."""
    found = planned.steps
    if found.last is None:  # only a trainer that has read the data knows; the parent's did
        before = yaml.safe_load(read_text(attempt.parent.config / "verl_config.yaml"))["trainer"]
        if planned.composed.value("trainer.total_epochs") == before.get("total_epochs"):
            found = replace(found, last=progress.total_steps(attempt.parent))
    if attempt.checkpoint is not None and found.count == 0:
        raise BadInput(
            f"JOB={asked} has all its {found.last} steps done ({attempt.checkpoint}): ask for more, as in "
            f"{steps.asking_for_more(found, planned.composed)}."
        )
