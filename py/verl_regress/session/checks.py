"""The checks of a session: pure functions from the evidence to whether a check passes and what was seen.

A check says how many jobs it checked. One whose runs did not train to the end is skipped: the verdict on their case says what that means.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_regress.base.workloads import WORKLOADS
from verl_regress.jobs.checkpoints import step_of
from verl_regress.session import schedule, suites
from verl_regress.session.suites import Suite
from verl_regress.store.sessions import jobs_of

Evidence = Mapping[str, Any]


@dataclass(frozen=True)
class PairCheck:
    """What a check compares between A and B of each case: what it reads of a job, and what is wrong with these values of all pairs.

    `reads` answers None for a job whose version of verl-regress did not record it. Then nothing is compared, and the report says so.
    """

    reads: Callable[[Any], object]
    problems_of: Callable[[Sequence[tuple[Any, Any]], Evidence], Iterable[str]]


@dataclass(frozen=True)
class Check:
    """One check: its name for ONLY=, its claim, the runs without which it says nothing (none: not of this suite), what is wrong with a job,
    and what it compares in pairs.
    """

    name: str
    claim: str
    runs: Callable[[Suite], Sequence[str]]
    problems_of: Callable[[str, Any, Evidence], Iterable[str]]
    of_pairs: PairCheck | None = None


@dataclass(frozen=True)
class Result:
    """The result of a check: it passed if `problems` is empty. `skipped` says why it was not judged."""

    name: str
    claim: str
    checked: str
    problems: list[str]
    skipped: str | None = None

    @property
    def passed(self) -> bool:
        """It was judged, and no problem was found."""
        return not self.problems and self.skipped is None

    @property
    def failed(self) -> bool:
        """A problem was found."""
        return bool(self.problems)

    @property
    def word(self) -> str:
        """As the reports show it: ok, skip or FAIL."""
        return "ok" if self.passed else "skip" if self.skipped else "FAIL"

    @property
    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        keys = ("name", "claim", "passed", "skipped", "checked", "problems")
        return {key: getattr(self, key) for key in keys}


def rows(found: Sequence[Result]) -> list[str]:
    """Results as a text table."""
    width = max((len(check.name) for check in found), default=0)
    lines = []
    for check in found:
        checked = f"not checked: {check.skipped}" if check.skipped else f"checked {check.checked}"
        lines.append(f"{check.word:<6}  {check.name:<{width}}  {check.claim} ({checked})")
        lines += [f"{'':<6}  {'':<{width}}  - {problem}" for problem in check.problems]
    return lines


def summary(found: Sequence[Result]) -> str:
    """How many passed."""
    skipped = sum(check.skipped is not None for check in found)
    more = f", {skipped} not checked" if skipped else ""
    return f"{sum(check.passed for check in found)} of {len(found)} checks passed{more}"


def judge(evidence: Evidence, only: set[str]) -> list[Result]:
    """The result of every check in `only` (all if it is empty). A check that cannot read its evidence fails."""
    suite = suites.of_recorded(evidence["begin"]["suite"])
    chosen = [check for check in CHECKS if not only or check.name in only]
    return [_result(check, runs, evidence) for check in chosen if (runs := check.runs(suite))]


def runs_for(suite: Suite, only: set[str]) -> set[str]:
    """The names of the runs that the checks in `only` need."""
    return {run for check in CHECKS if check.name in only for run in check.runs(suite)}


def _result(check: Check, runs: Sequence[str], evidence: Evidence) -> Result:
    jobs = {name: job for name, job in jobs_of(evidence).items() if has_succeeded(job)}
    if lacking := [name for name in runs if name not in jobs]:
        return Result(check.name, check.claim, "nothing", [], f"{', '.join(lacking)} did not train to the end")
    own = own_jobs(evidence)
    checked = {name: job for name, job in jobs.items() if name in own}
    try:
        problems = [each for name, job in checked.items() for each in check.problems_of(name, job, evidence)]
        number, of_pairs = _compared(check.of_pairs, evidence) if check.of_pairs else ("", [])
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        return Result(check.name, check.claim, "incomplete evidence", [f"{type(error).__name__}: {error}"])
    return Result(check.name, check.claim, f"{len(checked)} jobs{number}", [*problems, *of_pairs])


def _compared(check: PairCheck, evidence: Evidence) -> tuple[str, list[str]]:
    """How many pairs of a session were compared, and what is wrong with them."""
    jobs, suite = jobs_of(evidence), suites.of_recorded(evidence["begin"]["suite"])
    sides = [[jobs.get(run.name) for run in schedule.first_runs(case)] for case in suite.cases]
    pairs = [(a and check.reads(a), b and check.reads(b)) for a, b in sides]
    unknown = sum(None in pair for pair in pairs)
    if unknown:
        return f", no pairs: {unknown} of {len(pairs)} did not run or recorded nothing to compare", []
    return f" and {len(pairs)} pairs", list(check.problems_of(pairs, evidence))


def has_succeeded(job: Mapping[str, Any]) -> bool:
    """The job's launcher recorded that the trainer ended well."""
    return ((job["state"] or {}).get("ended") or {}).get("exit_code") == 0


def end_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """Why a job failed: its `reason`, and as `cause` the root exception; both None if it did not."""
    ended = job["state"]["ended"] or {"exit_code": None, "reason": "it recorded no end"}
    return {"reason": ended["reason"] if ended["exit_code"] != 0 else None, "cause": ended.get("cause")}


def seconds(job: Mapping[str, Any]) -> float | None:
    """Seconds from Ray's start of a job to its end; None if Ray did not say."""
    ray = job["ray"] or {}
    if not ray.get("start_time") or not ray.get("end_time"):
        return None
    return float(ray["end_time"] - ray["start_time"]) / 1000


def own_jobs(evidence: Evidence) -> dict[str, Any]:
    """The jobs of this session; what was reused of earlier sessions was checked there."""
    return {name: job for name, job in jobs_of(evidence).items() if "reused_from" not in job}


def _driver_on_worker(name: str, job: Any, evidence: Evidence) -> Iterable[str]:
    workers = sorted(node["address"] for node in evidence["end"]["nodes"] if not node["is_head"])
    address = job["ray"]["driver_info"]["node_ip_address"]
    if address not in workers:
        yield f"the driver of {name} ran on {address}; workers are {', '.join(workers) or 'none'}"


def _outputs_kept(_name: str, job: Any, evidence: Evidence) -> Iterable[str]:
    after = evidence["end"]["digests"].get(job["submission_id"])
    if after != job["digest"]:
        yield f"{job['submission_id']} was {'changed' if after else 'removed'} by a later job"


def _checkpoints(name: str, job: Any, _evidence: Evidence) -> Iterable[str]:
    every = _save_freq(job)
    if every is None:
        return
    # verl keeps the last step too, if it saves at all (0.7.1 to 0.9.1).
    keeps_last = every > 0 or WORKLOADS[job["plan"]["workload"]].always_saves_last
    wanted = {
        f"global_step_{step}"
        for step in job["steps"]
        if (every > 0 and step % every == 0) or (keeps_last and step == job["steps"][-1])
    }
    if set(job["checkpoints"]) != wanted:
        asked = f"every {every} steps" if every > 0 else f"save_freq={every}"
        yield f"{name} kept {', '.join(job['checkpoints']) or 'nothing'}; {asked} is {', '.join(sorted(wanted)) or 'nothing'}"


def _save_freq(job: Any) -> int | None:
    """What the job was asked for; every workload has a default, which is among its overrides. None: SFT after each epoch."""
    texts = [override["text"].lstrip("+?") for override in job["plan"]["overrides"]]
    asked = next(text.partition("=")[2] for text in reversed(texts) if text.startswith("trainer.save_freq="))
    return None if "epoch" in asked else int(asked)


def _trained_further(name: str, job: Any, evidence: Evidence) -> Iterable[str]:
    for case in suites.of_recorded(evidence["begin"]["suite"]).cases:
        run = next((run for run in schedule.first_runs(case) if run.name == name), None)
        if run is None or not case.continues:
            continue
        first = jobs_of(evidence)[schedule.source_of(run, case).name]
        checkpoint = schedule.start_of(first, case)
        source = f"trainer.resume_from_path={checkpoint}"
        if source not in [override["text"] for override in job["plan"]["overrides"]]:
            yield f"{name} was not asked to resume: no {source}"
        wanted = list(range(step_of(checkpoint.name) + 1, schedule.last_step_after(first, case) + 1))
        if job["steps"] != wanted:
            yield f"{name} trained steps {job['steps']}, not {wanted}"


def _import_origin(name: str, job: Any, _evidence: Evidence) -> Iterable[str]:
    code_path, code_id = job["plan"]["code_path"], job["plan"]["code_id"]
    for wanted in (f"MVP_PRECHECK_VERL_FILE: {code_path}/verl/__init__.py", f"MVP_PRECHECK_MARKER: {code_id}"):
        if wanted not in job["prechecks"]:
            yield f"{name} did not print '{wanted}'"
    identity = job["state"]["identity"] or {"passed": False, "code_path": "", "problems": ["no state/identity"]}
    if not identity["passed"] or identity["code_path"] != code_path or not identity["actors"]:
        why = "; ".join(identity["problems"]) or f"it is of {identity['actors']} actors and {identity['code_path']}"
        yield f"{name} has no proof that its processes loaded {code_path}: {why}"


def _loaded_files(job: Any) -> object:
    """One hash over the files of verl that the job's processes loaded."""
    return (job["state"]["identity"] or {}).get("files_sha256")


def _loaded_the_same(loaded: Sequence[tuple[Any, Any]], evidence: Evidence) -> Iterable[str]:
    """Where A and B are different trees, some case must have loaded different bytes, or nothing of the change was run."""
    trees = evidence["begin"]["trees"]
    if trees["A"] != trees["B"] and all(a == b for a, b in loaded):
        yield "A and B are different trees, and loaded the same bytes in every case: no case runs what differs"


def _workloads_ran(name: str, job: Any, _evidence: Evidence) -> Iterable[str]:
    if job["ray"]["status"] != "SUCCEEDED":
        yield f"{name} is {job['ray']['status']} in Ray"
    if not job["steps"] or job["steps"][-1] != job["total_steps"]:
        yield f"{name} is at step {job['steps'][-1] if job['steps'] else 0} of {job['total_steps']}"


def _b_of_first_case(suite: Suite) -> Sequence[str]:
    return _first_pair(suite)[1:]


def _first_pair(suite: Suite) -> Sequence[str]:
    return [run.name for run in schedule.first_runs(suite.cases[0])]


def _all_pairs(suite: Suite) -> Sequence[str]:
    return [run.name for case in suite.cases for run in schedule.first_runs(case)]


def _first_resumed_pair(suite: Suite) -> Sequence[str]:
    """B of the first case that continues another one, and of that one."""
    b = ((case, schedule.first_runs(case)[1]) for case in suite.cases if case.continues)
    return next(([schedule.source_of(run, case).name, run.name] for case, run in b), [])


CHECKS = (
    Check("placement", "every driver ran on a worker, not on the head", _b_of_first_case, _driver_on_worker),
    Check("outputs", "every job has its own directory, which no later job changed", _first_pair, _outputs_kept),
    Check("checkpoints", "checkpoints come every save_freq steps only", _b_of_first_case, _checkpoints),
    Check("further", "further steps were trained from a checkpoint", _first_resumed_pair, _trained_further),
    Check(
        "imports",
        "every process loaded the requested snapshot, and A and B differ where their trees do",
        _first_pair,
        _import_origin,
        PairCheck(_loaded_files, _loaded_the_same),
    ),
    Check("workloads", "every case ran with A and with B, and is at its step count", _all_pairs, _workloads_ran),
)
