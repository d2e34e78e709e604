"""Composes every case of a suite with A's and B's code before there is a session, as its runs will be."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from verl_regress.base import say
from verl_regress.base.errors import BadInput
from verl_regress.base.layout import SharedRoot
from verl_regress.plan import plan
from verl_regress.plan.overrides import Override
from verl_regress.plan.request import Request
from verl_regress.session import schedule
from verl_regress.session.schedule import ScheduledRun
from verl_regress.session.suites import Case, Suite
from verl_regress.store.sessions import Session


def request_of(
    asked: Request, code_id: str, run: ScheduledRun, submission_id: str, overrides: Sequence[Override]
) -> Request:
    """What a run asks for: `asked` is what its JobSpec does, whatever the code."""
    said = replace(asked.said, code_id=code_id, submission_id=submission_id, overrides=tuple(overrides), seed=run.seed)
    return replace(asked, said=said, defaults=replace(asked.defaults, code_id=code_id))


def overrides_of(suite: Suite, case: Case, texts: Sequence[str]) -> tuple[Override, ...]:
    """What a case adds to its JobSpec; messages name the case."""
    return tuple(Override(text, f"case {case.name} of {suite.name}") for text in texts)


def refusals_of_b(
    root: SharedRoot, suite: Suite, requests: Mapping[str, Request], codes: Mapping[str, str]
) -> dict[str, str]:
    """By run, why B's code refuses a case that A's takes: that decides the case. `requests` are by JobSpec, `codes` by side.

    A case that continues another one is composed without the checkpoint, which is not there yet. Raises BadInput for what A's code refuses.
    """
    refusals = {}
    for case in suite.cases:
        for run in schedule.first_runs(case):
            texts = [*case.overrides, *([f"trainer.total_training_steps={case.steps}"] if case.steps else [])]
            name = f"{run.name.replace('_', '-')}-{secrets.token_hex(8)}"  # no job has it
            request = request_of(requests[case.spec], codes[run.side], run, name, overrides_of(suite, case, texts))
            try:
                plan.make(root, request)
            except BadInput as error:
                if run.side == "A":
                    raise
                refusals[run.name] = str(error)
    return refusals


def record_refusal(session: Session, run: str, reason: str) -> None:
    """Record that B's code refuses this run, which A's takes."""
    say.error(reason)
    session.write(f"refused-{run}", {"reason": reason})
    say.info(f"{run}: B's config refuses a job that A's accepts, which decides this case")
