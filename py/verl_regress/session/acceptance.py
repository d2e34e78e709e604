"""`acceptance begin | watch | report`: does this installation keep its promises? For scripts/lib/acceptance.bash, which makes the steps."""

import argparse
import io
import ipaddress
import os
import re
import socket
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from redaction import Redactor
from verl_regress import __version__
from verl_regress.base import processes, say, trust
from verl_regress.base.errors import BadInput, Exit, RegressError
from verl_regress.base.files import as_json, now, read_json, write_atomically
from verl_regress.base.layout import HELPER_DIR, JobDir, SharedRoot
from verl_regress.cluster import nodes, ray_api, ray_internals
from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs import find, progress
from verl_regress.secrets import secret_files
from verl_regress.session import checks, evidence, leaks
from verl_regress.session.checks import Result
from verl_regress.store.sessions import new_directory

_CANARY = "ACCEPTANCE_CANARY"  # the secret of the first job (scripts/lib/acceptance.bash)
_LONGEST = 7200.0  # seconds for which a node waits for the end of a job
_LOOK_EVERY = 0.5
_NOWHERE = ("192.0.2.1", 9)  # an address that no machine has (RFC 5737)
_LEFT_OUT = "logs, death_cause"  # of a bundle of a job whose secrets are gone (jobs/debug.py)
_NEEDED = ("config/resolved.json", "logs/driver.log", "state/ended")  # in the tar of a bundle


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Each step names the report's directory, but for `begin`, which makes it."""
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("begin", help="make the directory of a report, record what is prepared, and print its name")
    watch = steps.add_parser(
        "watch", help="while a job runs, search what /proc of this node shows for the secret on stdin; then its logs"
    )
    report = steps.add_parser(
        "report", help="write and print the report; on stdin the secret, a newline, and a tar of the steps' results"
    )
    for each in (watch, report):
        each.add_argument("--name", required=True)
        each.add_argument("--cluster", required=True)
    watch.add_argument("--job", required=True)
    watch.add_argument("--node", required=True)
    report.add_argument("--profile", required=True)


def run(args: argparse.Namespace) -> int:
    """Returns the exit status: of `report` 9 if a check failed."""
    root = SharedRoot(args.shared_root)
    if args.step == "begin":
        directory = new_directory(root.acceptance)
        write_atomically(directory / "prepared.json", as_json(_prepared(root)))
        print(directory.name)
        return 0
    directory = root.acceptance / args.name
    secrets = {_CANARY: sys.stdin.buffer.readline().decode().strip(), "RAY_TOKEN": ray_api.token() or ""}
    if not secrets[_CANARY]:
        raise BadInput("The secret on stdin is empty, so no search finds it: run 'make acceptance', which makes one.")
    if args.step == "watch":
        seen = _watch(find.of_ray_id(root, args.job), args.cluster, leaks.written(secrets))
        write_atomically(directory / f"node-{args.node}.json", as_json(seen))
        return 0
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        found = ((Path(member.name).name, archive.extractfile(member)) for member in archive)
        files = {name: file.read().decode("utf-8", "replace") for name, file in found if file}
    done = Done(root, RayApi(nodes.ADDRESS), args.cluster, directory, secrets, files)
    return _report(done, f"{args.profile}, cluster {args.cluster}")


def _prepared(root: SharedRoot) -> dict[str, list[int]]:
    """What tells whether a prepared file was written again: inode, size and time of each."""
    files = [path for home in (root.datasets, root.models) for path in home.rglob("*") if path.is_file()]
    return {str(path): [found.st_ino, found.st_size, found.st_mtime_ns] for path in files for found in (path.stat(),)}


def _watch(job: JobDir, cluster: str, secrets: leaks.Written) -> dict[str, Any]:
    """What this node showed until the job was over, and what Ray has written here. Only looks while it trained count."""
    end = time.monotonic() + _LONGEST
    looks = most = 0
    found, peers = set[str](), set[str]()
    while job.read_state("ended") is None and time.monotonic() < end:
        count, shown = leaks.in_processes(secrets)
        looks += job.read_state("started") is not None
        most = max(most, count)
        found |= shown
        peers |= processes.peers(processes.of_cluster(cluster))
        time.sleep(_LOOK_EVERY)
    files = leaks.files_below(ray_internals.ALL_LOGS)
    hosts = {socket.gethostname(), socket.getfqdn(), *processes.addresses()}
    return {
        "looks": looks,
        "processes": most,
        "files": len(files),
        "found": sorted(found) + leaks.in_files(files, secrets),
        "hosts": sorted(hosts),
        "peers": sorted(peers),
        "planted": _plant(),
    }


def _plant() -> list[str]:
    """What py/hooks/egress.py hears of a process on this node that does ask for a host outside: without this, no count means anything."""
    with TemporaryDirectory() as job:
        hooks = str(HELPER_DIR / "py/hooks")
        variables = {"PYTHONPATH": hooks, "VERL_REGRESS_OFFLINE": "1", "VERL_REGRESS_JOB_DIR": job}
        asks = f"import socket; socket.setdefaulttimeout(0.2); socket.socket().connect_ex({_NOWHERE!r})"
        subprocess.run(
            [sys.executable, "-c", asks], env={**os.environ, **variables}, stderr=subprocess.DEVNULL, check=False
        )
        return [one for _, one in _asked(JobDir(Path(job)))]


@dataclass(frozen=True)
class Done:
    """What the steps left: `files` has their logs, and what the script wrote, by name."""

    root: SharedRoot
    api: RayApi
    cluster: str
    directory: Path
    secrets: Mapping[str, str]
    files: Mapping[str, str]

    @property
    def steps(self) -> dict[str, tuple[int, int]]:
        """The status and the seconds of each step that ran."""
        rows = [line.split("\t") for line in self.files.get("steps", "").splitlines()]
        return {name: (int(status), int(seconds)) for name, status, seconds in rows}

    def log(self, step: str) -> str:
        """What a step printed."""
        return self.files.get(f"{step}.log", "")

    def job(self, step: str) -> JobDir:
        """The job that a step submitted. Raises KeyError if it submitted none."""
        return find.of_ray_id(self.root, self.files[f"{step}.job"].strip())

    @property
    def jobs(self) -> list[JobDir]:
        """The jobs of all steps."""
        return [self.job(step) for step in self.steps if self.files.get(f"{step}.job", "").strip()]

    @cached_property
    def nodes(self) -> dict[str, dict[str, Any]]:
        """What each node showed while the job `sft` ran, with its address; nothing more if it was not searched."""
        seen = {node["name"]: node for node in evidence.nodes(self.api)}
        return {
            name: {**node, **(read_json(self.directory / f"node-{name}.json") or {})} for name, node in seen.items()
        }


class Promise(NamedTuple):
    """One promise: the section, its name, the claim, the step that it is about, and what yields problems and returns what was checked."""

    section: str
    name: str
    claim: str
    step: str
    problems_in: Callable[[Done, str], tuple[list[str], str]]


def _result(promise: Promise, done: Done) -> Result:
    """A step that did not run, or a job that failed, leaves nothing that further checks could pass."""
    status = done.steps.get(promise.step, (None, 0))[0]
    if status is None or (status != 0 and promise.name != promise.step):
        return Result(promise.name, promise.claim, "nothing", [], "it was not run")
    try:
        problems, checked = promise.problems_in(done, promise.step)
    except (RegressError, OSError, KeyError, TypeError, ValueError, tarfile.TarError) as error:
        problems, checked = [f"{type(error).__name__}: {error}"], "incomplete records"
    return Result(promise.name, promise.claim, checked, problems)


def _ended(done: Done, step: str) -> list[str]:
    status = done.steps[step][0]
    said = [line for line in done.log(step).splitlines() if line.startswith("error ")]
    return [] if status == 0 else [f"exit {status}: {said[-1][8:] if said else 'its log says why'}"]


def _trained(done: Done, step: str) -> tuple[list[str], str]:
    if problems := _ended(done, step):
        return problems, f"{done.steps[step][1]} s"
    job = done.job(step)
    taken, total = [each.number for each in progress.training(progress.joined(job))], progress.total_steps(job)
    if not taken or taken != list(range(1, (total or 0) + 1)):
        problems = [f"{job.ray_id} recorded the steps {taken} of {total}"]
    return problems, f"{job.ray_id}: {len(taken)} steps, {done.steps[step][1]} s"


def _no_leak(done: Done, step: str) -> tuple[list[str], str]:
    """The secret reached every process of the job, and neither it nor Ray's token is anywhere that others read."""
    job, secrets = done.job(step), leaks.written(done.secrets)
    problems, searched = leaks.in_outputs(done.root, done.api, done.cluster, done.jobs, secrets)
    for name, one in done.nodes.items():
        problems += [f"{found} on {name}" for found in one.get("found", ())]
        problems += [] if one.get("looks") else [f"{name} was not searched while the job ran"]
    problems += _printed(done.files, secrets)
    reports = leaks.reports(job, done.api.job(job.ray_id))
    problems += [f"the process {process} did not get it" for process, names in reports.items() if _CANARY not in names]
    if not reports:
        problems.append("no process of the job reported what it got")
    if not done.nodes:
        problems.append("no node was searched")
    files, processes = (sum(one.get(kind, 0) for one in done.nodes.values()) for kind in ("files", "processes"))
    return problems, (
        f"{searched}, {files} files and {processes} processes of {len(done.nodes)} nodes while the job ran; {len(reports)} processes got it"
    )


def _printed(files: Mapping[str, str], secrets: Mapping[str, Collection[str]]) -> list[str]:
    return [
        f"{secret} is in what the step {name.partition('.')[0]} printed"
        for name, text in files.items()
        for secret, forms in secrets.items()
        if any(form in text for form in forms)
    ]


def _asked(job: JobDir) -> list[tuple[str, str]]:
    """The process and the host of each report of py/hooks/egress.py."""
    reports = sorted(job.reports.glob("egress-*.json"))
    return [(path.stem.removeprefix("egress-"), host) for path in reports for host in (read_json(path) or {})["asked"]]


def _nothing_left(done: Done, step: str) -> tuple[list[str], str]:
    """No process of the job asked for a host that is no node, and no program of the cluster had a connection to one."""
    inside = {"localhost"}
    for name, node in done.nodes.items():
        inside |= {node["address"], name, f"{done.cluster}-{name}", *node.get("hosts", ())}
    asked = [(f"the process {process} asked for", host) for process, host in _asked(done.job(step))]
    asked += [
        (f"{name} had a connection to", host) for name, one in done.nodes.items() for host in one.get("peers", ())
    ]
    problems = [f"{who} {host}" for who, host in asked if not _is_inside(host, inside)]
    planted = ":".join(map(str, _NOWHERE))
    problems += [
        f"on {name} the planted connection to {planted} was not noticed"
        for name, one in done.nodes.items()
        if planted not in one.get("planted", [planted])
    ]
    left = f"{len(problems)} of {len(asked)} connections left"
    return problems, f"{left}; on {len(done.nodes)} nodes a planted one was noticed"


def _is_inside(named: str, inside: Collection[str]) -> bool:
    for host in (named, named.rpartition(":")[0]):  # with a port, if it is known
        if host in inside:
            return True
        with suppress(ValueError):
            address = ipaddress.ip_address(host)
            if address.is_loopback or address.is_unspecified or str(address) in inside:
                return True
    return False


def _prepare_skips(done: Done, step: str) -> tuple[list[str], str]:
    before, after = read_json(done.directory / "prepared.json") or {}, _prepared(done.root)
    said = done.log(step).splitlines()
    problems = _ended(done, step) + [f"{path} changed" for path, was in before.items() if after.get(path) != was]
    problems += [f"it said: {line}" for line in said if line.startswith("changed ")]
    if not (before and any(line.startswith("skip ") for line in said)):
        problems.append("there was nothing to skip")
    return problems, f"{len(before)} files"


def _bundles(done: Done, step: str) -> tuple[list[str], str]:
    job = done.job("sft")
    bundles = {path.parent.name: read_json(path) or {} for path in sorted(job.debug.glob("*/bundle.json"))}
    phases = {bundle["phase"] for bundle in bundles.values()}
    problems = _ended(done, step) + [
        f"there is none of '{phase}'" for phase in ("submitted", "ended", "asked") if phase not in phases
    ]
    # A source of the earlier ones may have been late, because the job kept the node busy.
    last = max((name for name in bundles if name.endswith("-asked")), default=None)
    errors = bundles[last]["errors"] if last else {}
    problems += [f"{last} lacks {what}: {error}" for what, error in errors.items() if what != _LEFT_OUT]
    tar = max(job.debug.glob("*.tar.gz"), default=None)
    if tar is None:
        return [*problems, "there is no tar"], f"{len(bundles)} bundles"
    with tarfile.open(tar) as archive:
        members = archive.getnames()
    problems += [f"the tar lacks {name}" for name in _NEEDED if f"{job.ray_id}/{name}" not in members]
    return problems, f"{len(bundles)} bundles, {len(members)} files in the tar"


def _directories(done: Done, _step: str) -> tuple[list[str], str]:
    """Every job's directory is its user's alone to change, and shares no file with another place."""
    entries, problems, homes = 0, [], sorted({job.first.path for job in done.jobs})
    for home in homes:
        for path in (home, *home.rglob("*")):
            entries += 1
            problems += [f"{path} {why}" for why in _shared_ways(path, home)]
    kept = done.root.secrets / done.cluster
    problems += [f"the secrets of {job.ray_id} are still there" for job in done.jobs if (kept / job.ray_id).exists()]
    return problems, f"{entries} files and folders of {len(homes)} jobs"


def _shared_ways(path: Path, home: Path) -> Iterator[str]:
    """In which ways a file or folder of a job is not its user's alone."""
    found = path.lstat()
    if (other := trust.foreign(found, (), path)) is not None:
        yield other.why
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        yield f"has {found.st_nlink} names, so another place shares it"
    if stat.S_ISLNK(found.st_mode) and not path.resolve().is_relative_to(home.resolve()):
        yield "is a link that leads out of the job"


def _fault_found(done: Done, step: str) -> tuple[list[str], str]:
    status, seconds = done.steps[step]
    is_found = status == Exit.CHECK_FAILED and re.search(r"(?m)^verdict +regressed ", done.log(step))
    return [] if is_found else [f"exit {status}, and no verdict regressed", *_ended(done, step)], f"{seconds} s"


PROMISES = (
    Promise("installation", "sft", "SFT trains to its end", "sft", _trained),
    Promise(
        "installation",
        "secrets",
        "a secret reached every process of that job; neither it nor Ray's token is in any output or in /proc",
        "sft",
        _no_leak,
    ),
    Promise(
        "installation",
        "prepare",
        "a second 'make prepare' skips, and changes no file that was there",
        "prepare",
        _prepare_skips,
    ),
    Promise("installation", "bundles", "debug bundles of that job are complete", "bundles", _bundles),
    Promise(
        "installation",
        "directories",
        "what a job writes is its own: nobody else can change it, and no other place shares it",
        "sft",
        _directories,
    ),
    Promise(
        "egress", "egress", "neither that job nor a node asked for a host outside the cluster", "sft", _nothing_left
    ),
    Promise("training", "grpo", "GRPO trains to its end", "grpo", _trained),
    Promise("training", "ppo", "PPO trains to its end", "ppo", _trained),
    Promise("training", "resume", "PPO continues from its checkpoint", "resume", _trained),
    Promise(
        "training",
        "verify",
        "'make verify' calls an SFT without the shift of its loss mask regressed",
        "verify",
        _fault_found,
    ),
)


def _report(done: Done, where: str) -> int:
    results, time_now = [_result(promise, done) for promise in PROMISES], now()
    status = Exit.CHECK_FAILED if any(result.failed for result in results) else Exit.SUCCEEDED
    lines = [f"acceptance  {time_now}, verl-regress {__version__}, profile {where}"]
    for section in dict.fromkeys(promise.section for promise in PROMISES):
        of_section = [result for promise, result in zip(PROMISES, results, strict=True) if promise.section == section]
        lines += [f"{section}:", *checks.rows(of_section)]
    text = "\n".join([*lines, f"{checks.summary(results)} (exit status {int(status)})"])
    facts = {
        "time": time_now,
        "version": __version__,
        "where": where,
        "status": int(status),
        "nodes": evidence.nodes(done.api),
        "packages": [job.read_config("packages.json") for job in done.jobs[:1]],
        "checks": [
            {"section": promise.section, "result": "not run" if result.skipped else result.word, **result.as_dict}
            for promise, result in zip(PROMISES, results, strict=True)
        ],
    }
    hidden = secret_files.redactor(done.root, **done.secrets)
    written = {"report.txt": f"{text}\n", "report.json": as_json(facts)}
    written |= {f"logs/{name}": log for name, log in done.files.items() if name.endswith(".log")}
    for name, said in written.items():
        (done.directory / name).parent.mkdir(exist_ok=True)
        write_atomically(done.directory / name, hidden.text(said))
    archive = _pack(done, hidden)
    print(say.shown(f"{text}\nreport: {done.directory}/report.txt, report.json; to send: {archive}"))
    return status


def _pack(done: Done, hidden: Redactor) -> Path:
    """What to send to those who help, in one archive and without secrets."""
    archive = done.directory / "acceptance.tar.gz"
    with tarfile.open(archive, "w:gz") as target:
        for name, path in _to_send(done):
            content = hidden.text(path.read_text(encoding="utf-8", errors="replace")).encode()
            member = tarfile.TarInfo(f"acceptance-{done.directory.name}/{name}")
            member.size, member.mtime = len(content), int(path.stat().st_mtime)
            target.addfile(member, io.BytesIO(content))
    return archive


def _to_send(done: Done) -> Iterator[tuple[str, Path]]:
    """The report and the records of its jobs, without checkpoints and samples, by the name in the archive."""
    homes = [("", done.directory)]
    homes += [
        (f"jobs/{job.ray_id}/{part}/", job.path / part)
        for job in done.jobs
        for part in ("config", "state", "logs", "debug")
    ]
    for name, home in homes:
        for path in sorted(home.rglob("*")):
            if path.is_file() and not path.name.endswith((".tar.gz", ".tmp")):
                yield f"{name}{path.relative_to(home)}", path
