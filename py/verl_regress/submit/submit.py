"""JobSpec to Ray: check, plan, reserve the job directory, write `config/`, submit, record. Runs inside the head."""

import argparse
import json
import os
import shlex
import socket
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from verl_regress.base import documents, processes, pulse, say
from verl_regress.base.errors import BadInput, Refusals, RegressError, first
from verl_regress.base.files import as_json, write_atomically
from verl_regress.base.jobspec import BaseConfig, JobSpec
from verl_regress.base.knobs import Knobs
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.base.trust import trusted
from verl_regress.cluster import nodes, packages, ray_internals
from verl_regress.cluster.ray_api import Node, RayApi
from verl_regress.jobs import debug
from verl_regress.jobs.status import submission_of
from verl_regress.plan import needs, overrides, plan, steps
from verl_regress.plan.overrides import Override
from verl_regress.plan.request import CommandLine, Defaults, Request
from verl_regress.secrets import secret_files
from verl_regress.store import mismatch, snapshot
from verl_regress.store.hashes import Hashes
from verl_regress.store.retention import uncollected
from verl_regress.worker import queue

# The members of the stream that scripts/lib/job.bash sends.
_SPEC, BASE, OVERRIDES = "job_spec", "ray_config", "overrides"
_NODES_SECONDS = 60.0  # for a task of Ray on each worker


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The scripts' arguments; the documents come as a tar stream on stdin, so that quoting cannot go wrong."""
    parser.add_argument("--spec-name", required=True, help="the JobSpec's file as the user knows it")
    add_request_arguments(parser)


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    """All but the name of the JobSpec, of which a session has several."""
    parser.add_argument("--perturbed", action="store_true", help="change the last bit of each gradient")
    parser.add_argument("--via", choices=("sdk", "cli"), default="sdk", help="Ray's Python SDK, or `ray job submit`")
    add_shared_arguments(parser)


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that `submit`, `resume` and `retry` have in common; OVERRIDES_FILE comes as a tar on stdin."""
    parser.add_argument("--knobs", type=Knobs.parse, required=True, metavar="JSON", help="all that are set")
    parser.add_argument("--secrets", action="store_true", help="the secrets' values come in front of the tar stream")
    parser.add_argument("--announce", action="store_true", help="print the id when its directory is reserved, too")
    parser.add_argument("--debugger-host", metavar="IP", help="where debugpy listens; the node's address, if left out")


def run(args: argparse.Namespace) -> int:
    """Submit one job; the submission id is the one line on stdout."""
    root = SharedRoot(args.shared_root)
    values = secret_files.read_values(sys.stdin.buffer) if args.secrets else {}
    request = read_request(args)
    # It counts for this submission alone: a session or an export of the same knobs has no debugger, and the judge judges a session's runs.
    said = replace(
        request.said,
        debugger=debugger_of(args.knobs),
        debugger_host=args.debugger_host,
        fail_on=fail_on_of(args.knobs),
    )
    request = replace(request, said=said)
    with uncollected(root):
        planned = plan.make(root, request)
        say_left_out(planned)
        if args.knobs.is_on("DRY_RUN"):
            known = packages.listed(root, planned.request.defaults.cluster)
            if not args.knobs.is_on("ALLOW_MISMATCH"):
                _need_packages(planned, known)
            print_plan(planned)
            return 0
        send(planned, values, args.knobs, via=args.via, announce=args.announce)
    print(planned.job.submission_id)
    return 0


def read_request(args: argparse.Namespace) -> Request:
    """The request in the arguments and on stdin. Raises BadInput."""
    knobs: Knobs = args.knobs
    names = {_SPEC: args.spec_name, BASE: knobs["RAY_BASE_CONFIG"]}
    if knobs["OVERRIDES_FILE"]:
        names[OVERRIDES] = knobs["OVERRIDES_FILE"]
    texts = read_stream(names)
    request = request_of(args, args.spec_name, texts[_SPEC], texts[BASE])
    workload, spec = knobs.typed().get("WORKLOAD") if knobs["JOBSPEC"] else None, request.spec
    if workload not in (None, spec.workload):
        raise BadInput(
            f"WORKLOAD={workload} (from the command line or environment), but {spec.origin} is for {spec.workload}: leave one of them out."
        )
    said = replace(
        request.said,
        code_id=knobs.given("CODE_ID"),
        submission_id=knobs.given("SUBMISSION_ID"),
        overrides=said_overrides(knobs, texts.get(OVERRIDES, "")),
        seed=knobs.number("TRAIN_SEED"),
    )
    return replace(request, said=said, defaults=replace(request.defaults, code_id=knobs["CODE_ID"]))


def request_of(args: argparse.Namespace, spec_name: str, spec_text: str, base_text: str) -> Request:
    """What the arguments, this JobSpec and this base config ask for whatever the code, also of each run of a session. Raises BadInput."""
    knobs: Knobs = args.knobs
    return Request(
        spec=JobSpec.from_document(documents.parse(spec_text, spec_name, "jobspec")),
        base=BaseConfig.from_document(documents.parse(base_text, knobs["RAY_BASE_CONFIG"], "base_config")),
        said=CommandLine(
            deterministic=knobs.is_on("DETERMINISTIC"),
            perturbed=args.perturbed,
            plain_secrets=knobs.is_on("ALLOW_PLAIN_SECRETS"),
        ),
        defaults=Defaults(
            profile=knobs["PROFILE"],
            model=knobs["MODEL"],
            dataset=knobs["DATASET"],
            code_id="",
            cluster=knobs["CLUSTER_NAME"],
            max_running=knobs.number("MAX_RUNNING"),
            workers=int(knobs["WORKERS"]),
            gpus_per_worker=int(knobs["GPUS_PER_WORKER"]),
        ),
        owner=args.owner,
    )


def said_overrides(knobs: Knobs, text: str) -> tuple[Override, ...]:
    """The overrides of OVERRIDES_FILE, given as its text, and of OVERRIDES. Raises BadInput."""
    return overrides.of_command_line(knobs["OVERRIDES_FILE"] or None, text, knobs["OVERRIDES"])


def debugger_of(knobs: Knobs) -> str | None:
    """The knob DEBUGGER; None if it is off."""
    return None if knobs["DEBUGGER"] in ("", "0") else knobs["DEBUGGER"]


def fail_on_of(knobs: Knobs) -> tuple[str, ...]:
    """The knob FAIL_ON."""
    return tuple(filter(None, knobs["FAIL_ON"].split(",")))


def say_left_out(planned: plan.Plan) -> None:
    """Print which optional overrides the snapshot's config has no key for, that a logger was added, which inputs only the nodes may have, and
    which steps and checkpoints there will not be.
    """
    outside = dict.fromkeys(one.named for one in planned.inputs if one.outside)  # a data set has two files
    if outside:
        say.warn(f"{', '.join(outside)}: not under {planned.job.root.path}, so every worker must have the same there.")
    for override in planned.composed.left_out:
        version = planned.code.record["verl_version"]
        say.skip(f"override {override.text} (optional in {override.origin}, verl {version} has no such key)")
    for override in planned.composed.overrides:
        if override.origin.endswith(overrides.WITH_SEED):
            say.info(
                f"{override.text}: 'file' is added, because a run with TRAIN_SEED is compared by what this logger writes"
            )
    release = f"verl {planned.code.record['verl_version']}"
    for warning in steps.warnings(planned.steps, planned.composed, release):
        say.warn(warning)


def print_plan(planned: plan.Plan) -> None:
    """The dry run: prints the resolved config, verl's own with all overrides, runtime_env and a command line to paste."""
    as_text = partial(json.dumps, indent=2, ensure_ascii=False)
    print("# resolved config", as_text(planned.resolved()), "# verl's config", planned.composed.text, sep="\n", end="")
    for secret in planned.environment.secrets:
        print(f"# secret: {secret.described()}")
    print("# runtime_env", as_text(planned.environment.runtime_env()), sep="\n")
    if by_hook := planned.environment.by_hook:
        print("# environment that the hook env_vars sets", as_text(by_hook), sep="\n")
    print(f"# the same as a command in the head (it needs {planned.job.path}/config, which a dry run does not write)")
    print(shlex.join(planned.command_line()))


def send(
    planned: plan.Plan, secrets: Mapping[str, str], knobs: Knobs, *, via: str = "sdk", announce: bool = False
) -> None:
    """Compare with the nodes' packages, reserve the directory, write `config/` and the secrets, submit, record the result.

    The result goes to `state/submitted`, with the checks of `make doctor` that the user left out. ALLOW_MISMATCH counts, too. With `announce`, the id is printed on stdout as soon as a job may come of it.
    """
    secret_files.check(secrets, planned.environment.secrets, planned.request.spec.origin)
    api = RayApi(planned.driver.address)
    up = nodes.alive_nodes(api)
    _need_on_workers(planned, up)
    planned = with_hashes(_with_packages(_with_room(planned, up), up, is_allowed=knobs.is_on("ALLOW_MISMATCH")))
    job, cluster, origin = planned.job, planned.request.defaults.cluster, {**submitted_from(), "submitted_via": via}
    _make_directories(planned.job)
    # What we write belongs to whomever a server makes its owner (`root_squash`).
    with tempfile.TemporaryFile(dir=job.state) as file:
        owners = {*trusted(), str(os.fstat(file.fileno()).st_uid)}
    planned = replace(planned, environment=planned.environment.with_owners(owners))
    if announce:
        print(job.ray_id, flush=True)
    with submission_of(job), secret_files.written(planned.environment.secrets_file, secrets):
        _write_config(planned)
        queue.line_up(job, cluster, planned.composed.devices.count)
        try:
            _hand_over(planned, api, via, origin)
        except RegressError as error:
            queue.leave(job, cluster)
            job.write_state("submitted", {"accepted": False, "error": str(error), **origin})
            raise RegressError(f"{error} ({job.path} is marked as never submitted)", error.status) from error
        unchecked = {"skip_doctor": knobs["SKIP_DOCTOR"]} if knobs["SKIP_DOCTOR"] else {}
        job.write_state("submitted", {"accepted": True, **origin, **unchecked})
    debug.attempt(job, planned.driver.address, "submitted")
    say.changed(
        f"submitted {job.ray_id} ({planned.request.spec.workload}, profile {planned.request.defaults.profile}, "
        f"code {planned.code.code_id}: {snapshot.origin_of(planned.code.record)})"
    )
    _warn_of_debugger(planned)


def reserve(planned: plan.Plan, secrets: Mapping[str, str]) -> None:
    """Make the job's directory with its plan, for KubeRay to submit; the launcher joins the queue itself. Raises BadInput."""
    secret_files.check(secrets, planned.environment.secrets, planned.request.spec.origin)
    planned = with_hashes(planned)
    _make_directories(planned.job)
    with submission_of(planned.job), secret_files.written(planned.environment.secrets_file, secrets):
        _write_config(planned)
    say.changed(f"reserved {planned.job.path} for {planned.job.ray_id}")


def with_hashes(planned: plan.Plan) -> plan.Plan:
    """Add to the plan what its inputs on the shared root contain. Raises BadInput if one cannot be read.

    Of the others, it may have what they contained before: the launcher compares.
    """
    hashes, found = Hashes(planned.job.root), dict[Path, str | None]()
    for one in filter(lambda each: planned.job.root.has(each.path), planned.inputs):
        try:
            with pulse.during(f"hashing {one.path}"):
                found[one.path] = hashes.content_of(one.path, is_read=one.fact is not None, is_code=one.is_code)
        except OSError as error:
            raise BadInput(
                f"{one.named} was changed, or cannot be read, while it was hashed ({error}): make it readable, and submit the job again."
            ) from None
    return replace(planned, hashes={**planned.hashes, **found})


def _make_directories(job: JobDir) -> None:
    """Make the attempt's directory, which must not exist yet, and its contents. Raises BadInput."""
    job.path.parent.mkdir(0o755, exist_ok=True)
    try:
        job.path.mkdir(0o755)
    except FileExistsError:
        raise BadInput(f"{job.path} was made a moment ago by another submission: see 'make jobs'.") from None
    for directory in (job.state, job.config, job.driver_log.parent, job.checkpoints, job.hf_modules, job.debug):
        directory.mkdir(0o755)


def _hand_over(planned: plan.Plan, api: RayApi, via: str, origin: Mapping[str, str]) -> None:
    if via == "cli":
        api.submit_by_command(planned.job.ray_id, planned.command_line(**origin))
        return
    api.submit(
        submission_id=planned.job.ray_id,
        entrypoint=planned.driver.entrypoint,
        entrypoint_num_cpus=planned.driver.entrypoint_num_cpus,
        entrypoint_resources=dict(planned.driver.entrypoint_resources),
        runtime_env=planned.environment.runtime_env(),
        metadata={**origin, **planned.metadata()},
    )


def _with_packages(planned: plan.Plan, up: Sequence[Node], *, is_allowed: bool) -> plan.Plan:
    """Add the nodes' packages to the plan. Raises BadInput if the snapshot needs others and the user did not allow that."""
    known, unknown = packages.of_nodes(planned.job.root, planned.request.defaults.cluster, up)
    _need_debugpy(planned, known)
    if not is_allowed:
        _need_packages(planned, known)
    found = mismatch.compare(planned.code.record, known, unknown)
    if not is_allowed:
        found.check()
    if found.note:
        say.warn(found.note)
    if found.problems:
        say.warn(f"{found.sentence}: {mismatch.ALLOW}")
    verdict = {"mismatch": list(found.problems), "is_allowed": is_allowed}
    return replace(planned, packages={**verdict, **packages.recorded(known)})


def _need_on_workers(planned: plan.Plan, up: Sequence[Node]) -> None:
    """Raise BadInput for an input outside the shared root that a worker lacks. If Ray does not say, the launcher will for its own node."""
    outside = {str(one.path): one.named for one in planned.inputs if one.outside and one.needed}
    workers = {node.node_id: node.name for node in up if not node.is_head}
    if not outside or not workers:
        return
    try:
        missing = ray_internals.missing_on("auto", [*workers], [*outside], _NODES_SECONDS)
    except RegressError as error:
        say.info(f"whether the workers have it is unknown: {error}")
        return
    for path, named in outside.items():
        lacking = sorted(workers[node] for node, paths in missing.items() if path in paths)
        if lacking:
            raise BadInput(
                f"{named} is missing on {first(lacking)}: put it on the shared root, which every node has, or on every worker."
            )


def _need_packages(planned: plan.Plan, known: Sequence[packages.NodePackages]) -> None:
    """Raise BadInput for settings that need packages which a worker lacks, all in one."""
    with Refusals() as wrong:
        for package in needs.packages_of(planned.composed):
            lacking = [one.node for one in packages.workers(known) if not package.is_in(one.packages)]
            if lacking:
                with wrong.noted():
                    raise BadInput(
                        f"{package.named} needs the package {package.name}, which {first(lacking)} {'lack' if len(lacking) > 1 else 'lacks'}: "
                        f"leave it out, build an image with it (docker/requirements.in), or set {mismatch.ALLOW}."
                    )


def _need_debugpy(planned: plan.Plan, known: Sequence[packages.NodePackages]) -> None:
    """Raise BadInput if a worker lacks what Ray's debugger needs: Ray would pass over each breakpoint (2.60)."""
    asked = planned.request.said.debugger
    lacking = [one.node for one in packages.workers(known) if "debugpy" not in one.packages]
    if asked is not None and lacking:
        raise BadInput(
            f"DEBUGGER={asked} needs the package debugpy, and {' and '.join(lacking)} {'lack' if len(lacking) > 1 else 'lacks'} it: "
            "build the node image again ('make build down up'), or install it there."
        )


def _warn_of_debugger(planned: plan.Plan) -> None:
    """Ray's debugger has no password (2.60): whoever reaches its port while a breakpoint waits runs code in the job."""
    said, job = planned.request.said, planned.job.ray_id
    if said.debugger is not None:
        where = said.debugger_host or "its node's address"
        say.warn(
            f"{job} has Ray's debugger on (DEBUGGER={said.debugger}): a process that waits in a breakpoint listens on {where}, "
            f"without a password, and whoever connects runs code as the job; 'make debugger JOB={job}' lists them."
        )


def _with_room(planned: plan.Plan, up: Sequence[Node]) -> plan.Plan:
    """Add the cluster's total devices to the plan. Raises BadInput if the nodes will never suffice, however long the job waits.

    A driver that asks for more than any node has is left for Ray to refuse, in its own time.
    """
    wanted = planned.composed.devices
    has = sorted(filter(None, (int(node.resources.get(wanted.resource, 0)) for node in up)), reverse=True)
    pool = wanted.misfit(has)
    if wanted.count > sum(has):
        problem = (
            f"The job asks for {wanted.count} {wanted.resource} (trainer.nnodes times trainer.n_gpus_per_node of verl's "
            f"config), but the nodes that are up have {sum(has)}"
        )
        cure = ": ask for less, or bring up more with 'make up'."
    elif pool is not None:
        nodes, on_each, total = f"{pool.key}.nnodes", f"{pool.key}.n_gpus_per_node", pool.nodes * pool.on_each
        sizes = (each for each in range(has[0], 0, -1) if total % each == 0)
        size = next(each for each in sizes if sum(node // each for node in has) * each >= total)
        problem = (
            f"{nodes}={pool.nodes} and {on_each}={pool.on_each} of verl's config ask for {pool.on_each} {wanted.resource} on "
            f"{'one node' if pool.nodes == 1 else f'each of {pool.nodes} nodes'}, but the nodes that are up have {' and '.join(map(str, has))}"
        )
        cure = f": write {nodes}={total // size} {on_each}={size}."
    else:
        return replace(planned, cluster_has=sum(has))
    # For a new job of a base config that takes the number of devices from knobs.
    request, origin_of = planned.request, planned.composed.origin_of
    workers, each = request.defaults.workers, request.defaults.gpus_per_worker
    is_of_base = {origin_of(f"trainer.{name}") for name in ("nnodes", "n_gpus_per_node")} == {request.base.origin}
    if is_of_base and not request.attempt and wanted.count == workers * each:
        cure = f"; WORKERS={workers} and GPUS_PER_WORKER={each} decide this: set them as for 'make up', best in env/local.env, or bring up more."
    raise BadInput(problem + cure)


def _write_config(planned: plan.Plan) -> None:
    spec, base = planned.request.spec.document, planned.request.base.document
    files = {
        "job_spec.json": as_json(spec.content),
        "ray_config.yaml": base.text,
        "asked.json": as_json(planned.request.recorded()),
        "resolved.json": as_json(planned.resolved()),
        "verl_config.yaml": planned.composed.text,
        "runtime_env.json": as_json(planned.environment.runtime_env()),
        "submit_cmd.txt": shlex.join(planned.command_line()) + "\n",
        "code.json": as_json(planned.code.record),
        "packages.json": as_json(planned.packages),
    }
    if planned.environment.by_hook:
        files["env_vars.json"] = as_json(planned.environment.by_hook)
    if not spec.origin.endswith(".json"):
        files["job_spec.yaml"] = spec.text
    for name, text in files.items():
        write_atomically(planned.job.config / name, text)


def submitted_from() -> dict[str, str]:
    """The container and address of this process: proof that the submission was made in the head."""
    return {
        "submitted_from_container": processes.container() or socket.gethostname(),
        "submitted_from_ip": nodes.own_address(),
    }


def read_stream(names: Mapping[str, str]) -> dict[str, str]:
    """The members of the tar stream on stdin; `names` are the files' names as the user knows them. Raises BadInput."""
    texts = {}
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as stream:
        for member in stream:
            file = stream.extractfile(member)
            if file is not None:
                texts[member.name] = documents.text_of(file.read(), names[member.name])
    return texts
