"""The checks of a session: pure functions from the evidence to whether a check passes and what was seen.

Every check says what it checked and how many; with nothing to check, it fails. Each has a test that breaks only it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from verl_regress.jobs.checkpoints import step_of
from verl_regress.session import schedule, suites
from verl_regress.session.suites import Case, Suite
from verl_regress.store.sessions import CANARY, jobs_of

Evidence = Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """One acceptance check: its name for ONLY=, its claim, the runs whose evidence it needs, and the function.

    With a suite that has no such runs, it does not apply.
    """

    name: str
    claim: str
    runs: Callable[[Suite], tuple[str, ...] | None]
    problems_in: Callable[[Evidence], list[str]]
    checked: Callable[[Evidence], str]
    cannot: Callable[[Evidence], str | None] = lambda _evidence: None  # why there is nothing that it could check


@dataclass(frozen=True)
class Verdict:
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


def judge(evidence: Evidence, only: set[str]) -> list[Verdict]:
    """The verdict of every check in `only` (all if it is empty). A check that cannot read its evidence fails.

    In a whole session, a check whose runs did not come to their end is skipped: the verdict on their case says what that means.
    """
    try:
        suite = suites.of_recorded(evidence["begin"]["suite"])
    except KeyError:
        return [Verdict(check.name, check.claim, "nothing", ["no evidence of begin"]) for check in CHECKS]
    return [
        _verdict(check, runs, evidence, is_strict=bool(only))
        for check in CHECKS
        if (not only or check.name in only) and (runs := check.runs(suite)) is not None
    ]


def runs_for(suite: Suite, only: set[str]) -> set[str]:
    """The names of the runs that the checks in `only` need."""
    return {run for check in CHECKS if check.name in only for run in check.runs(suite) or ()}


def _verdict(check: Check, runs: tuple[str, ...], evidence: Evidence, *, is_strict: bool) -> Verdict:
    jobs = jobs_of(evidence)
    missing = [name for name in runs if name not in jobs]
    unusable = [*missing, *(name for name in runs if name in jobs and not has_succeeded(jobs[name]))]
    if unusable and not is_strict:
        return Verdict(check.name, check.claim, "nothing", [], f"{', '.join(unusable)} did not train to the end")
    try:
        if not missing and (why := check.cannot(evidence)) is not None:
            return Verdict(check.name, check.claim, "nothing", [why] if is_strict else [], None if is_strict else why)
        problems = [f"no evidence of {', '.join(missing)}"] if missing else check.problems_in(evidence)
        return Verdict(check.name, check.claim, "nothing" if missing else check.checked(evidence), problems)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        return Verdict(check.name, check.claim, "incomplete evidence", [f"{type(error).__name__}: {error}"])


def has_succeeded(job: Mapping[str, Any]) -> bool:
    """The job's launcher recorded that the trainer ended well."""
    return ((job["state"] or {}).get("ended") or {}).get("exit_code") == 0


def may_be_reused(job: Mapping[str, Any], tree: str, taken: Collection[str]) -> bool:
    """Whether a later session, which has `taken` these jobs already, may take this one over as a run of that tree."""
    return (
        "reused_from" not in job
        and job["submission_id"] not in taken
        and (job.get("code") or {}).get("tree_sha256") == tree
        and has_succeeded(job)
    )


def end_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """Why a job failed: its `reason`, and as `cause` the root exception; both None if it did not."""
    ended = job["state"]["ended"] or {"exit_code": None, "reason": "it recorded no end"}
    return {
        "reason": ended["reason"] if ended["exit_code"] != 0 else None,
        "cause": ended.get("cause"),
    }


def own_jobs(evidence: Evidence) -> dict[str, Any]:
    """The jobs of this session; what was reused of earlier sessions was checked there."""
    return {name: job for name, job in jobs_of(evidence).items() if "reused_from" not in job}


def _each(evidence: Evidence, check: Callable[[str, Any], Iterable[str]]) -> list[str]:
    return [problem for name, job in _checked_jobs(evidence).items() for problem in check(name, job)]


def _checked_jobs(evidence: Evidence) -> dict[str, Any]:
    """In a whole session those that trained to the end, because a job that failed may lack anything; with ONLY all of them."""
    is_strict = bool(evidence["begin"]["only"])
    return {name: job for name, job in own_jobs(evidence).items() if is_strict or has_succeeded(job)}


def _n_jobs(evidence: Evidence) -> str:
    return f"{len(_checked_jobs(evidence))} jobs"


def _submitted_from_head(evidence: Evidence) -> list[str]:
    # A session that was continued may have seen several: a container that was made again has another id.
    heads = [evidence["begin"]["head"], *(evidence.get("heads") or {}).get("heads", [])]
    identities, addresses = ({head[key] for head in heads} for key in ("identity", "address"))

    def check(name: str, job: Any) -> Iterable[str]:
        metadata = job["ray"]["metadata"]
        if metadata["submitted_from_container"] not in identities:
            yield f"{name} was submitted from {metadata['submitted_from_container']}, the head is {', '.join(sorted(identities))}"
        if metadata["submitted_from_ip"] not in addresses:
            yield f"{name} was submitted from {metadata['submitted_from_ip']}, the head is at {', '.join(sorted(addresses))}"

    return _each(evidence, check)


def _driver_on_worker(evidence: Evidence) -> list[str]:
    head = {node["address"] for node in evidence["end"]["nodes"] if node["is_head"]}
    workers = {node["address"] for node in evidence["end"]["nodes"] if not node["is_head"]}

    def check(name: str, job: Any) -> Iterable[str]:
        address = job["ray"]["driver_info"]["node_ip_address"]
        if address in head or address not in workers:
            yield f"the driver of {name} ran on {address}; workers are {', '.join(sorted(workers)) or 'none'}, the head is {', '.join(head)}"

    return _each(evidence, check)


def _head_is_empty(evidence: Evidence) -> list[str]:
    problems = []
    for moment in ("begin", "end"):
        heads = [node for node in evidence[moment]["nodes"] if node["is_head"]]
        if len(heads) != 1:
            problems.append(f"at the {moment} Ray listed {len(heads)} heads")
        for head in heads:
            problems += [
                f"at the {moment} the head had {kind} {head['resources'][kind]:g}"
                for kind in ("CPU", "GPU")
                if head["resources"].get(kind)
            ]
    return problems


def _outputs_apart(evidence: Evidence) -> list[str]:
    found = own_jobs(evidence)
    directories = [job["job_dir"] for job in found.values()]
    problems = [] if len(set(directories)) == len(directories) else ["two jobs share a directory"]
    problems += [
        f"{name} wrote to {job['job_dir']}"
        for name, job in found.items()
        if not job["job_dir"].endswith(f"/jobs/{job['submission_id']}")
    ]
    before = {**evidence["begin"]["digests"], **{job["submission_id"]: job["digest"] for job in found.values()}}
    after = evidence["end"]["digests"]
    problems += [
        f"{job} was {'changed' if job in after else 'removed'} by a later job"
        for job in before
        if after.get(job) != before[job]
    ]
    problems += [
        f"{job['submission_id']} was there before"
        for job in found.values()
        if job["submission_id"] in evidence["begin"].get("jobs", evidence["begin"]["digests"])
    ]
    return problems


def _second_prepare_skips(evidence: Evidence) -> list[str]:
    before, after = evidence["begin"]["artefacts"], evidence["prepare"]["artefacts"]
    log = evidence["prepare"]["log"].splitlines()
    problems = [] if before else ["no artefact was there"]
    for directory, files in before.items():
        changed = [name for name, seen in files.items() if after.get(directory, {}).get(name) != seen]
        problems += [f"{directory}: {len(changed)} of {len(files)} files changed ({changed[0]})"] if changed else []
    problems += [f"the second prepare made {directory}" for directory in after if directory not in before]
    if not any(line.startswith("skip ") for line in log):
        problems.append("the second prepare said no 'skip'")
    return problems + [f"the second prepare said: {line}" for line in log if line.startswith("changed ")]


def _checkpoints(evidence: Evidence) -> list[str]:
    def check(name: str, job: Any) -> Iterable[str]:
        every = _save_freq(job)
        # verl keeps the last step too, if it saves at all; SFT always does (0.7.1 to 0.9.1).
        keeps_last = every > 0 or job["plan"]["workload"] == "sft"
        wanted = {
            f"global_step_{step}"
            for step in job["steps"]
            if (every > 0 and step % every == 0) or (keeps_last and step == job["steps"][-1])
        }
        if set(job["checkpoints"]) != wanted:
            asked = f"every {every} steps" if every > 0 else f"save_freq={every}"
            yield f"{name} kept {', '.join(job['checkpoints']) or 'nothing'}; {asked} is {', '.join(sorted(wanted)) or 'nothing'}"

    return _each(evidence, check)


def _save_freq(job: Any) -> int:
    """What the job was asked for; every workload has a default, which is among its overrides."""
    texts = [override["text"].lstrip("+?") for override in job["plan"]["overrides"]]
    asked = next(text.partition("=")[2] for text in reversed(texts) if text.startswith("trainer.save_freq="))
    if asked.strip("'\"") == "after_each_epoch":  # SFT: only its checkpoints tell how many steps that is
        kept = sorted(map(step_of, job["checkpoints"]))
        return math.gcd(*(kept[:-1] or kept))
    return int(asked)


def _continued(evidence: Evidence) -> list[tuple[str, Any, Any, Case]]:
    """Each job of the session that continues another one: its name, that one, itself, and its case."""
    suite, jobs = suites.of_recorded(evidence["begin"]["suite"]), jobs_of(evidence)
    return [
        (run.name, jobs[schedule.source_of(run, case).name], jobs[run.name], case)
        for case in suite.cases
        if case.continues
        for run in schedule.first_runs(case)
        if run.name in own_jobs(evidence)
    ]


def _trained_further(evidence: Evidence) -> list[str]:
    problems = []
    for name, first, further, case in _continued(evidence):
        checkpoint = schedule.start_of(first, case)
        source = f"trainer.resume_from_path={checkpoint}"
        if source not in [override["text"] for override in further["plan"]["overrides"]]:
            problems.append(f"{name} was not asked to resume: no {source}")
        wanted = list(range(step_of(checkpoint.name) + 1, schedule.last_step_after(first, case) + 1))
        if has_succeeded(further) and further["steps"] != wanted:
            problems.append(f"{name} trained steps {further['steps']}, not {wanted}")
        if has_succeeded(further) and _reports_weights(first, further):
            problems += _other_weights(name, first, further, str(checkpoint))
    return problems


def _reports_weights(*jobs: Any) -> bool:
    return all(job.get("checkpoint_weights") is not None for job in jobs)


def _other_weights(name: str, first: Any, further: Any, checkpoint: str) -> Iterable[str]:
    """Step numbers and overrides prove nothing about weights: every rank must begin with those that it had when it saved."""
    saved, loaded = first["checkpoint_weights"]["saved"], further["checkpoint_weights"]["loaded"]
    places = [place for place in saved if place.startswith((f"{checkpoint}/", f"{checkpoint} "))]
    if not places:
        yield f"no process of {first['submission_id']} reported the weights that it saved in {checkpoint}"
    for place in places:
        if place not in loaded:
            yield f"{name} did not load the weights of {place}"
        elif loaded[place] != saved[place]:
            yield f"{name} began with other weights than those of {place}: {loaded[place][:12]}, not {saved[place][:12]}"


def _continued_jobs(evidence: Evidence) -> str:
    """What `further` checked. Where no hook reports weights, as on GPUs, it says that it did not compare them."""
    continued = _continued(evidence)
    blind = [name for name, first, further, _ in continued if not _reports_weights(first, further)]
    unsaid = f"; the weights that {' and '.join(blind)} loaded were not compared, because no hook reported them"
    return f"{len(continued)} jobs that continue" + (unsaid if blind else ", and the weights that they loaded")


def _debug_states(evidence: Evidence) -> list[str]:
    def check(name: str, job: Any) -> Iterable[str]:
        kinds = {file for bundle in job["bundles"] for file in bundle["files"] if file not in (bundle["errors"] or {})}
        phases = {bundle["phase"] for bundle in job["bundles"] if bundle["asked"]}
        if len(phases) < 2:
            yield f"{name} has debug bundles of {len(phases)} moments ({', '.join(sorted(phases))}), 2 are wanted"
        if len(kinds) < 4:
            yield f"{name} has {len(kinds)} kinds of state in debug/ ({', '.join(sorted(kinds))}), 4 are wanted"

    return _each(evidence, check)


def _import_origin(evidence: Evidence) -> list[str]:
    def check(name: str, job: Any) -> Iterable[str]:
        code_path, code_id = job["plan"]["code_path"], job["plan"]["code_id"]
        for wanted in (f"MVP_PRECHECK_VERL_FILE: {code_path}/verl/__init__.py", f"MVP_PRECHECK_MARKER: {code_id}"):
            if wanted not in job["prechecks"]:
                yield f"{name} did not print '{wanted}'"
        identity = job["state"]["identity"]
        if identity is None:
            yield f"{name} has no state/identity"
            return
        yield from (f"{name}: {problem}" for problem in identity["problems"])
        if not identity["passed"] or identity["code_path"] != code_path:
            yield f"{name}: the proof is of {identity['code_path']}, {code_path} was asked for"
        if identity["processes"] <= 1 or identity["modules"] == 0 or identity["actors"] == 0:
            yield f"{name}: only {identity['processes']} processes with {identity['modules']} modules and {identity['actors']} actors reported"

    return [*_each(evidence, check), *_loaded_the_same(evidence)]


def _loaded_the_same(evidence: Evidence) -> Iterable[str]:
    """Where A and B are different trees, some case must have loaded different bytes, or nothing of the change was run."""
    suite, jobs, trees = suites.of_recorded(evidence["begin"]["suite"]), jobs_of(evidence), evidence["begin"]["trees"]
    pairs = [[jobs.get(run.name) for run in schedule.first_runs(case)] for case in suite.cases]
    loaded = [
        [((job or {}).get("state", {}).get("identity") or {}).get("files_sha256") for job in pair] for pair in pairs
    ]
    if trees["A"] != trees["B"] and all(a == b is not None for a, b in loaded):
        yield "A and B are different trees, and loaded the same bytes in every case: no case runs what differs"


def _workloads_ran(evidence: Evidence) -> list[str]:
    def ran(name: str, job: Any) -> Iterable[str]:
        if not job["state"]["started"]:
            yield f"{name} never ran"
        if job["ray"]["status"] != "SUCCEEDED":
            yield f"{name} is {job['ray']['status']} in Ray"
        if not any(bundle["phase"] == "running" for bundle in job["bundles"]):
            yield f"{name} was never seen RUNNING"
        if not job["steps"] or job["steps"][-1] != job["total_steps"]:
            yield f"{name} is at step {job['steps'][-1] if job['steps'] else 0} of {job['total_steps']}"

    return _each(evidence, ran)


def _same_rules(evidence: Evidence) -> list[str]:
    jobs = {
        name: job for name, job in jobs_of(evidence).items() if has_succeeded(job) or name in _checked_jobs(evidence)
    }
    reference = next(iter(jobs.values()))
    problems = []
    for name, job in jobs.items():
        problems += [f"{name} has no {part}" for part in reference["entries"] if part not in job["entries"]]
        problems += [f"{name} has no config/{part}" for part in reference["config"] if part not in job["config"]]
        phases, wanted = ({bundle["phase"] for bundle in one["bundles"]} for one in (job, reference))
        problems += [f"{name} has no debug bundle '{phase}'" for phase in sorted(wanted - phases)]
    return problems


def _token_nowhere(evidence: Evidence) -> list[str]:
    search = evidence["end"]["token"]
    if not (search["token_characters"] and search["files"] and search["answers"]):
        return ["nothing was searched"]
    return [f"the token is in {place}" for place in search["found_in"]]


def _searched(evidence: Evidence) -> str:
    search = evidence["end"]["token"]
    return f"{search['files']} files and {search['answers']} answers of Ray"


def _canary_nowhere(evidence: Evidence) -> list[str]:
    def reached(name: str, job: Any) -> Iterable[str]:
        if not job["secrets"]:
            yield f"no process of {name} reported which secrets it has"
        for one in job["secrets"]:
            if CANARY not in one["names"]:
                yield f"the process {one['process']} of {name} did not get it"

    search, nodes = evidence["canary"], _nodes_searched(evidence)
    problems = [f"{node} was not searched" for node, one in nodes.items() if not (one["files"] and one["processes"])]
    if not (nodes and search["files"] and search["answers"]):
        problems.append("nothing was searched")
    if not all(one["canary_characters"] for one in (search, *nodes.values())):
        problems.append("nothing was searched for")
    problems += [f"Ray did not answer about {what}" for what in search["unanswered"]]
    problems += [f"it is in {place}" for place in search["found_in"]]
    problems += [f"it is in {place} on {node}" for node, one in nodes.items() for place in one["found_in"]]
    return [*problems, *_each(evidence, reached)]


def _nodes_searched(evidence: Evidence) -> dict[str, Any]:
    """What was found on each node that Ray lists. Raises KeyError for a node that was not searched."""
    return {node["name"]: evidence[f"canary-{node['name']}"] for node in evidence["end"]["nodes"]}


def _canary_searched(evidence: Evidence) -> str:
    search, nodes = evidence["canary"], _nodes_searched(evidence).values()
    own = own_jobs(evidence)
    reports = sum(len(job["secrets"]) for job in own.values())
    of = len(search.get("jobs") or own)
    return (
        f"{search['files'] + sum(one['files'] for one in nodes)} files, {search['answers']} answers of Ray, "
        f"{sum(one['processes'] for one in nodes)} processes of {len(nodes)} nodes, and the reports of {reports} that got it"
        + (
            f"; only for the secret of {of} of {len(own)} jobs, because the session was continued"
            if of < len(own)
            else ""
        )
    )


def _canary_unknown(evidence: Evidence) -> str | None:
    is_any = evidence["canary"].get("jobs") != []
    return (
        None
        if is_any
        else "every job was submitted before the session was continued, with a secret that nobody knows now"
    )


def _none(_suite: Suite) -> tuple[str, ...]:
    return ()


def _one(suite: Suite) -> tuple[str, ...]:
    return (schedule.first_runs(suite.cases[0])[1].name,)


def _pair(suite: Suite) -> tuple[str, ...]:
    return tuple(run.name for run in schedule.first_runs(suite.cases[0]))


def _every(suite: Suite) -> tuple[str, ...]:
    return tuple(run.name for case in suite.cases for run in schedule.first_runs(case))


def _continuing(suite: Suite) -> tuple[str, ...] | None:
    """B of the first case that continues another one, and of that one."""
    case = next((case for case in suite.cases if case.continues), None)
    if case is None:
        return None
    b = schedule.first_runs(case)[1]
    return schedule.source_of(b, case).name, b.name


CHECKS = (
    Check("submission", "every job was submitted from the head", _one, _submitted_from_head, _n_jobs),
    Check("placement", "every driver ran on a worker, not on the head", _one, _driver_on_worker, _n_jobs),
    Check("head", "the head has CPU 0 and GPU 0", _none, _head_is_empty, lambda evidence: f"{len(evidence['begin']['nodes'])} nodes, twice"),
    Check("outputs", "outputs are kept apart by submission id, nothing was reused or overwritten", _pair, _outputs_apart, lambda evidence: f"{len(evidence['end']['digests'])} job directories"),
    Check("prepare", "a second prepare skips and changes nothing", _none, _second_prepare_skips, lambda evidence: f"{sum(map(len, evidence['begin']['artefacts'].values()))} files of {len(evidence['begin']['artefacts'])} artefacts"),
    Check("checkpoints", "checkpoints come every save_freq steps only", _one, _checkpoints, _n_jobs),
    Check("further", "further steps were trained from a checkpoint", _continuing, _trained_further, _continued_jobs),
    Check("debug", "debug/ holds at least 4 kinds of state, time-stamped, from at least 2 moments", _one, _debug_states, lambda evidence: f"{sum(len(job['bundles']) for job in own_jobs(evidence).values())} bundles"),
    Check("imports", "every process loaded the requested snapshot, and A and B differ where their trees do", _pair, _import_origin, lambda evidence: f"{sum((job['state']['identity'] or {}).get('processes', 0) for job in own_jobs(evidence).values())} processes"),
    Check("workloads", "every case ran with A and with B, and is at its step count", _every, _workloads_ran, _n_jobs),
    Check("rules", "all jobs keep the same directory and debug rules", _every, _same_rules, lambda evidence: f"{len(jobs_of(evidence))} jobs"),
    Check("token", "Ray's token is in no file, log or answer of Ray", _one, _token_nowhere, _searched),
    Check("secrets", "a secret reached every process of the jobs, and is nowhere when they are over", _one, _canary_nowhere, _canary_searched, _canary_unknown),
)  # fmt: skip
