"""Makes the runs of a session: submits the job of a run, or follows one that exists, and records how it ended."""

import argparse
import itertools
import shutil
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from verl_regress.base import pulse, say
from verl_regress.base.errors import BadInput, Exit, RegressError
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.cluster.ray_api import RayApi, Unreachable
from verl_regress.jobs import status, stop, watch
from verl_regress.plan import plan
from verl_regress.plan.request import Request
from verl_regress.session import composition, evidence, replay, schedule, suites
from verl_regress.session.schedule import Recording, ScheduledRun
from verl_regress.session.suites import Case, Suite
from verl_regress.store import snapshot
from verl_regress.store.retention import uncollected
from verl_regress.store.sessions import Session
from verl_regress.submit import submit

_LOSSES = 2  # how often a run is repeated because it was stopped or lost a node
_TO_STOP = 60.0  # seconds
_KNOWN_ENDS = (Exit.SUCCEEDED, Exit.JOB_FAILED, Exit.STOPPED, Exit.NOT_SCHEDULABLE, Exit.STALLED, Exit.LOST)


@dataclass(frozen=True)
class SessionDriver:
    """One session on a cluster: requests and the values of their secrets, by JobSpec, and the arguments of `verify run`. `busy` is held while
    a job is submitted.
    """

    root: SharedRoot
    api: RayApi
    session: Session
    requests: Mapping[str, Request]
    secrets: Mapping[str, Mapping[str, str]]
    args: argparse.Namespace
    busy: threading.Lock

    @cached_property
    def suite(self) -> Suite:
        """What it trains."""
        return suites.of_recorded(self._begin["suite"])

    @cached_property
    def _begin(self) -> Mapping[str, Any]:
        return self.session.read("begin") or {}

    def make(self, run: ScheduledRun) -> JobDir | None:
        """Make a run and record it. Returns a job that was stopped because it made no progress: every node must be searched for what is
        left of it, and then this is called again.

        Raises RegressError if the user must act first.
        """
        job = self._job_of(run)
        is_new = not job.path.exists()
        if is_new:
            self._need_code(run.side)
        spec = self.suite.case(run.case).spec
        say.step(f"verify: {run.name} ({spec} with {run.side}, {self.code(run.side)}, seed {run.seed})")
        if is_new:
            self._prepare_recording(run)
        if is_new and not self._submit(run, job):
            return None
        kept = self.session.read(f"ended-{job.submission_id}")
        end = Exit(kept["outcome"]) if kept else watch.follow_to_the_end(job, self.args.deadlines)
        if end not in _KNOWN_ENDS:
            raise RegressError(
                f"It is unknown how the job {job.submission_id} of {run.name} ended (the reason is above): fix that, then continue the session.",
                end,
            )
        if end in (Exit.NOT_SCHEDULABLE, Exit.STALLED) and not kept:  # it would keep its devices from the next job
            stop.end(job, _TO_STOP)
            self.session.write(f"ended-{job.submission_id}", {"outcome": end})
            return job
        with pulse.during(f"recording the job {run.name}"):
            self.record(run, job, end)
        if end is Exit.NOT_SCHEDULABLE:
            raise RegressError(
                f"The job {job.submission_id} of {run.name} could not be scheduled: continue the session when its devices are free.",
                end,
            )
        if end is Exit.STOPPED and is_new:
            raise RegressError(
                f"The job {job.submission_id} of {run.name} was stopped: continue the session; it submits another job for this run, twice at most.",
                end,
            )
        return None

    def decide_replays(self) -> None:
        """Record once which cases of the session are replayed, if it asks for that. Raises RegressError without space for that."""
        if self._begin.get("replay") and self.session.read("replay") is None:
            with self.busy, pulse.during("composing the configs for the replay"), uncollected(self.root):
                self.session.write(
                    "replay", {"cases": replay.decide(self.suite, self._recordings, self._replayed_plan)}
                )

    @property
    def _recordings(self) -> Path:
        return self.session.path / replay.DIRECTORY

    def _replayed_plan(self, case: Case, side: str) -> plan.Plan:
        run = next(each for each in schedule.first_runs(case) if each.side == side)
        request = self._request(run, self._job_of(run))
        asked = (*request.said.overrides, *replay.overrides(self._recordings / case.name, 1))
        try:
            return plan.make(self.root, replace(request, said=replace(request.said, overrides=asked)))
        except BadInput as error:
            if side == "B":  # A's config was composed before
                self._refuse(run, error)
            raise

    def _job_of(self, run: ScheduledRun) -> JobDir:
        """The job of a run, which may not exist yet. Another one follows a job that Ray never had, or that was lost.

        A session's jobs have ids of their own, so that an interrupted session finds them again.
        """
        name = f"{run.name.replace('_', '-')}-{self.session.path.name}"
        jobs = (JobDir(self.root.jobs / (f"{name}-{number}" if number > 1 else name)) for number in itertools.count(1))
        return next(job for job in jobs if not (job.path.exists() and self._is_void(job)))

    def _is_void(self, job: JobDir) -> bool:
        """The job is over and says nothing about the run. If Ray does not answer, it is not void: whoever follows the job waits for Ray."""
        if self.session.read(f"lost-{job.submission_id}") is not None:
            return True
        try:
            return status.status_of(job, self.api.job(job.ray_id)).status is status.Status.NOT_SUBMITTED
        except Unreachable:
            return False

    def code(self, side: str) -> str:
        """The code id of A or B."""
        return str(self._begin["codes"][side])

    def _need_code(self, side: str) -> None:
        """The snapshot of that side is the one that the session began with: what goes wrong without it says nothing about the code."""
        record = {
            "tree_sha256": self._begin["trees"][side],
            "source": self._begin.get("sources", {}).get(side, "…"),
            "revision": self._begin.get("revisions", {}).get(side),  # sessions of 1.3.0 and before have none
        }
        target = self.root.snapshots / self.code(side)
        use = snapshot.Use("the session began", ", and continue the session", RegressError)
        snapshot.need_whole(target, record, f"The snapshot {target.name}", use)

    def _submit(self, run: ScheduledRun, job: JobDir) -> bool:
        """Submit the job of a run; False if verl refuses its config with B and takes it with A, which is B's failure."""
        spec, request = self.suite.case(run.case).spec, self._request(run, job)
        with self.busy, pulse.during("submitting the job"):
            try:
                with uncollected(self.root):
                    planned = self._plan(run, request)
                    if planned is None:
                        return False
                    submit.say_left_out(planned)
                    submit.send(planned, self.secrets[spec], self.args.knobs)
            except RegressError as error:
                say.error(str(error))
                raise RegressError(
                    f"The job {run.name} of this session was not submitted: the reason is above; fix it, then continue the session."
                ) from error
        return True

    def _prepare_recording(self, run: ScheduledRun) -> None:
        """A run that records begins with nothing, also after one that was lost; any other one gets what A wrote. Raises RegressError."""
        recording = schedule.recording_of(run, self.session.evidence())
        if recording is None:
            return
        directory = self._recordings / recording.name
        if not recording.is_made:
            replay.need_unchanged(directory, self._files_of(recording))
        elif directory.exists():
            shutil.rmtree(directory)

    def _misused(self, run: ScheduledRun, job: JobDir, trained: Collection[int]) -> str | None:
        """Why the rollouts of a run that trained to the end were not those of its recording; None if they were, or it has none."""
        recording = schedule.recording_of(run, self.session.evidence())
        if recording is None:
            return None
        directory = self._recordings / recording.name
        if not recording.is_made:
            is_scored = self.suite.case(run.case).recompute_rewards
            return replay.misused(job, self._files_of(recording), directory, trained, is_scored=is_scored)
        files = replay.files_of(directory)
        problem = replay.unrecorded(files, trained)
        if problem is None:
            self.session.write(recording.evidence, {"files": files})
        return problem

    def _files_of(self, recording: Recording) -> dict[str, str]:
        return dict((self.session.read(recording.evidence) or {})["files"])

    def _request(self, run: ScheduledRun, job: JobDir) -> Request:
        case, known = self.suite.case(run.case), self.session.evidence()
        added = composition.overrides_of(self.suite, case, schedule.overrides_of(run, self.suite, known))
        if recording := schedule.recording_of(run, known):
            added += replay.overrides(self._recordings / recording.name, recording.steps)
        asked = self.requests[case.spec]
        request = composition.request_of(asked, self.code(run.side), run, job.submission_id, added)
        said = replace(
            request.said,
            perturbed=run.kind == schedule.PERTURBED,
            recompute_rewards=case.recompute_rewards and schedule.is_replayed(case, known),
        )
        return replace(request, said=said)

    def _plan(self, run: ScheduledRun, request: Request) -> plan.Plan | None:
        """The plan of a run; None if B's config refuses a job that A's accepts, which is recorded."""
        try:
            return plan.make(self.root, request)
        except BadInput as error:
            if run.side != "B" or not self._takes_a(request):
                raise
            self._refuse(run, error)
            return None

    def _refuse(self, run: ScheduledRun, error: BadInput) -> None:
        """Record that B's config refuses this run, which A's accepts."""
        self._need_code("B")
        composition.record_refusal(self.session, run.name, str(error))

    def _takes_a(self, request: Request) -> bool:
        try:
            plan.make(self.root, replace(request, said=replace(request.said, code_id=self.code("A"))))
        except RegressError:
            return False
        return True

    def record(self, run: ScheduledRun, job: JobDir, end: Exit) -> None:
        """The evidence of a run's job, which is over.

        One that was stopped, or lost a node, says nothing about the code: the run is repeated, twice at most. So is one that outlived its
        head, because half of its evidence went with that. One that failed after its snapshot was removed or changed says nothing
        either: then the user must act first.
        """
        name, session = job.submission_id, self.session
        losses = sum(key.startswith("lost-") and each["run"] == run.name for key, each in session.evidence().items())
        # The head that is there now does not know it, and the one before went away before it saw the end.
        seen = (job.read_state("observed") or {}).get("status")
        outlived = self.api.job(job.ray_id) is None and seen in ("PENDING", "RUNNING")
        if (outlived or end in (Exit.STOPPED, Exit.LOST, Exit.NOT_SCHEDULABLE)) and losses < _LOSSES:
            session.write(f"lost-{name}", {"run": run.name, "outcome": end})
            what = "lost" if outlived or end is Exit.LOST else "stopped"
            say.info(f"{run.name}: {name} was {what}, which says nothing about the code: the run is repeated")
            return
        if end in (Exit.JOB_FAILED, Exit.STALLED):
            try:
                self._need_code(run.side)
            except RegressError:
                session.write(f"lost-{name}", {"run": run.name, "outcome": end})
                raise
        more = {
            "artefacts": evidence.artefact_hashes(job),
            "image": self.args.image or None,
            "stalled": end is Exit.STALLED,
        }
        found = evidence.job(job, self.api)
        if end is Exit.SUCCEEDED:
            more["misused"] = self._misused(run, job, found["steps"])
        session.write_job(run.name, {**found, **more})
