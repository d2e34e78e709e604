"""The checks of a session: pure functions from the evidence to whether a check passes and what was seen.

Every check says what it checked and how many; with nothing to check, it fails. Each has a test that breaks only it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from verl_regress.store.sessions import CANARY, jobs_of

Evidence = Mapping[str, Any]

STEPS = 10  # every shipped JobSpec saves at this step, and a regression run trains at least so many


@dataclass(frozen=True)
class Check:
    """One acceptance check: its name for ONLY=, its claim, the jobs whose evidence it needs, and the function."""

    name: str
    claim: str
    jobs: tuple[str, ...]
    problems_in: Callable[[Evidence], list[str]]
    checked: Callable[[Evidence], str]


@dataclass(frozen=True)
class Verdict:
    """The result of a check: it passed if `problems` is empty."""

    name: str
    claim: str
    checked: str
    problems: list[str]

    @property
    def passed(self) -> bool:
        """No problem was found."""
        return not self.problems


def judge(evidence: Evidence, only: set[str]) -> list[Verdict]:
    """The verdict of every check in `only` (all if it is empty). A check that cannot read its evidence fails."""
    return [_verdict(check, evidence) for check in CHECKS if not only or check.name in only]


def _verdict(check: Check, evidence: Evidence) -> Verdict:
    missing = [name for name in check.jobs if f"job-{name}" not in evidence]
    try:
        problems = [f"no evidence of {', '.join(missing)}"] if missing else check.problems_in(evidence)
        return Verdict(check.name, check.claim, "nothing" if missing else check.checked(evidence), problems)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        return Verdict(check.name, check.claim, "incomplete evidence", [f"{type(error).__name__}: {error}"])


def _each(evidence: Evidence, check: Callable[[str, Any], Iterable[str]]) -> list[str]:
    return [problem for name, job in jobs_of(evidence).items() for problem in check(name, job)]


def _n_jobs(evidence: Evidence) -> str:
    return f"{len(jobs_of(evidence))} jobs"


def _submitted_from_head(evidence: Evidence) -> list[str]:
    head = evidence["begin"]["head"]

    def check(name: str, job: Any) -> Iterable[str]:
        metadata = job["ray"]["metadata"]
        if metadata["submitted_from_container"] != head["identity"]:
            yield f"{name} was submitted from {metadata['submitted_from_container']}, the head is {head['identity']}"
        if metadata["submitted_from_ip"] != head["address"]:
            yield f"{name} was submitted from {metadata['submitted_from_ip']}, the head is at {head['address']}"

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
    found = jobs_of(evidence)
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
        if job["submission_id"] in evidence["begin"]["digests"]
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
        # verl keeps the last step too, whatever save_freq says.
        wanted = {f"global_step_{step}" for step in job["steps"] if step % STEPS == 0 or step == job["steps"][-1]}
        if not wanted or set(job["checkpoints"]) != wanted:
            yield f"{name} kept {', '.join(job['checkpoints']) or 'nothing'}; every {STEPS} steps is {', '.join(sorted(wanted)) or 'nothing'}"

    return _each(evidence, check)


def _trained_further(evidence: Evidence) -> list[str]:
    first, further = evidence["job-ppo_a"], evidence["job-further"]
    source = f"trainer.resume_from_path={first['job_dir']}/checkpoints/global_step_{STEPS}"
    problems = (
        []
        if source in [override["text"] for override in further["plan"]["overrides"]]
        else [f"it was not asked to resume: no {source}"]
    )
    if further["steps"] != [STEPS + 1]:
        problems.append(f"it trained steps {further['steps']}, not [{STEPS + 1}]")
    return problems + _ended_well("further", further)


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
        if not identity["holds"] or identity["code_path"] != code_path:
            yield f"{name}: the proof is of {identity['code_path']}, {code_path} was asked for"
        if identity["processes"] <= 1 or identity["modules"] == 0 or identity["actors"] == 0:
            yield f"{name}: only {identity['processes']} processes with {identity['modules']} modules and {identity['actors']} actors reported"

    problems = _each(evidence, check)
    if {"job-ppo_a", "job-ppo_b"} <= evidence.keys():
        a, b = (evidence[f"job-ppo_{code}"]["state"]["identity"] or {} for code in "ab")
        if a.get("files_sha256") == b.get("files_sha256"):
            problems.append("A and B loaded the same bytes: nothing distinguishes them")
    return problems


def _ended_well(name: str, job: Any) -> list[str]:
    problems, ended = [], job["state"]["ended"] or {}
    if ended.get("exit_code") != 0:
        hint = (ended.get("cause") or {}).get("hint")
        problems.append(
            f"{name} failed: {ended.get('reason', 'it recorded no end')}" + (f" (hint: {hint})" if hint else "")
        )
    if not job["state"]["started"]:
        problems.append(f"{name} never ran")
    if job["ray"]["status"] != "SUCCEEDED":
        problems.append(f"{name} is {job['ray']['status']} in Ray")
    return problems


def _workloads_ran(evidence: Evidence) -> list[str]:
    def check(name: str, job: Any) -> Iterable[str]:
        yield from _ended_well(name, job)
        if not any(bundle["phase"] == "running" for bundle in job["bundles"]):
            yield f"{name} was never seen RUNNING"
        if not job["steps"] or job["steps"][-1] != job["total_steps"]:
            yield f"{name} is at step {job['steps'][-1] if job['steps'] else 0} of {job['total_steps']}"
        if name != "further" and len(job["steps"]) < STEPS:
            yield f"{name} trained {len(job['steps'])} steps, at least {STEPS} are wanted"

    return _each(evidence, check)


def _same_rules(evidence: Evidence) -> list[str]:
    reference = evidence["job-ppo_a"]
    problems = []
    for name in ("grpo", "sft"):
        job = evidence[f"job-{name}"]
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
    reports = sum(len(job["secrets"]) for job in jobs_of(evidence).values())
    return (
        f"{search['files'] + sum(one['files'] for one in nodes)} files, {search['answers']} answers of Ray, "
        f"{sum(one['processes'] for one in nodes)} processes of {len(nodes)} nodes, and the reports of {reports} that got it"
    )


_ALL = ("ppo_a", "ppo_b", "grpo", "sft", "further")

CHECKS = (
    Check("submission", "every job was submitted from the head", ("ppo_a",), _submitted_from_head, _n_jobs),
    Check("placement", "every driver ran on a worker, not on the head", ("ppo_a",), _driver_on_worker, _n_jobs),
    Check("head", "the head has CPU 0 and GPU 0", (), _head_is_empty, lambda evidence: f"{len(evidence['begin']['nodes'])} nodes, twice"),
    Check("outputs", "outputs are kept apart by submission id, nothing was reused or overwritten", ("ppo_a", "ppo_b"), _outputs_apart, lambda evidence: f"{len(evidence['end']['digests'])} job directories"),
    Check("prepare", "a second prepare skips and changes nothing", (), _second_prepare_skips, lambda evidence: f"{sum(map(len, evidence['begin']['artefacts'].values()))} files of {len(evidence['begin']['artefacts'])} artefacts"),
    Check("checkpoints", f"checkpoints come every save_freq={STEPS} steps only", ("ppo_a",), _checkpoints, _n_jobs),
    Check("further", f"one further step was trained from global_step_{STEPS}", ("ppo_a", "further"), _trained_further, lambda _: "2 jobs"),
    Check("debug", "debug/ holds at least 4 kinds of state, time-stamped, from at least 2 moments", ("ppo_a",), _debug_states, lambda evidence: f"{sum(len(job['bundles']) for job in jobs_of(evidence).values())} bundles"),
    Check("imports", "every process loaded the requested snapshot, and A and B differ", ("ppo_a", "ppo_b"), _import_origin, lambda evidence: f"{sum((job['state']['identity'] or {}).get('processes', 0) for job in jobs_of(evidence).values())} processes"),
    Check("workloads", "PPO, GRPO and SFT ran and are at their step count", _ALL, _workloads_ran, _n_jobs),
    Check("rules", "GRPO and SFT keep the same directory and debug rules as PPO", ("ppo_a", "grpo", "sft"), _same_rules, lambda _: "3 jobs"),
    Check("token", "Ray's token is in no file, log or answer of Ray", ("ppo_a",), _token_nowhere, _searched),
    Check("secrets", "a secret reached every process of the jobs, and is nowhere when they are over", ("ppo_a",), _canary_nowhere, _canary_searched),
)  # fmt: skip
