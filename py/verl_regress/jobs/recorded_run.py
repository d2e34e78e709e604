"""A job as the judge takes it: one run over all attempts, with its seeds, how it ended, and the facts that must be equal.

    PYTHONPATH=py:judge .venv/bin/python -m verl_regress.jobs.recorded_run JOB... --against JOB...

judges job directories without a session, as `verl-verdict` judges files.
"""

import dataclasses
import functools
import hashlib
import json
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from verl_regress.base.errors import Unreadable
from verl_regress.base.files import read_json
from verl_regress.base.layout import JobDir
from verl_regress.base.workloads import WORKLOADS
from verl_regress.cluster import packages
from verl_regress.jobs import memory_records
from verl_verdict.errors import CannotJudge
from verl_verdict.read import comparable, metrics, records
from verl_verdict.read.records import Run

_SEED = re.compile(r"(^|[._])seed$")
# Variables and config keys that name the job itself, or where its files and rollouts are; and whether a breakpoint waits for a person.
_OWN_VARIABLES = (
    "HF_MODULES_CACHE",
    "PYTHONPATH",
    "VERL_FILE_LOGGER_PATH",
    "VERL_REGRESS_JOB_DIR",
    "VERL_REHEARSAL_REPORTS",
    "VERL_REGRESS_SECRETS",
    "VERL_REGRESS_JOB_UIDS",
    "RAY_DEBUG",
    "RAY_DEBUG_POST_MORTEM",
    "VERL_REGRESS_DEBUGGER_HOST",
)
_HOOKS = "VERL_REGRESS_HOOKS"
# These hooks change nothing in training.
_BESIDE_TRAINING = ("job_secrets", "process_memory", "job_exceptions", "debugger")
_CHANGING = {"last_bit": comparable.PERTURBED, "recomputed_rewards": comparable.OWN_REWARDS}  # and these are facts
_OWN_KEYS = re.compile(
    r"^(hydra\.|skip\.|.*rollout\.trace\.experiment_name|"
    r"trainer\.(project_name|experiment_name|default_local_dir|default_hdfs_dir|rollout_data_dir|resume_))"
)
# Where a job continues from is a file of its own side; the steps that it trains show at which step.
_OWN_OVERRIDE = "trainer.resume_from_path"
REPLAY = "REPLAY=1"  # the origin of the overrides that record or replay rollouts
_RECORDING = re.compile(r"\.dump_dir=.*?([^/]+)/replay/[^/]+$")  # SESSION/replay/CASE-SEED
_NODE_RESOURCES = re.compile(r"^(CPU|GPU|cpu|NPU|accelerator_type:.*)$")  # memory varies by some MB from start to start


class JobReader:
    """The judge's reader of job directories (`verl_verdict.read.readers`)."""

    def can_read(self, path: Path) -> bool:
        """Is it the directory of a job?"""
        return JobDir(path).config.is_dir()

    def read(self, path: Path) -> Run:
        """Its run, with the hash of what it sampled. Raises CannotJudge."""
        found = sampled(path)
        return dataclasses.replace(read(path), hashes={records.TOKENS: found} if found else {})


def read(directory: Path) -> Run:
    """The run of a job directory, without hashes, because what was sampled may be large (`sampled`). Raises CannotJudge."""
    try:
        return _read(directory)
    except Unreadable as error:
        raise CannotJudge(str(error)) from None
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError, yaml.YAMLError) as error:
        what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise CannotJudge(
            f"The job directory '{directory}' is damaged ({what}): give its logs/metrics.jsonl."
        ) from None


def _read(directory: Path) -> Run:
    attempts = JobDir(directory).attempts()
    resolved = _config(directory, "resolved.json")
    failure, unfinished = _end(attempts[-1])
    recorded = [(attempt, text) for attempt in attempts if (text := _metrics(attempt)).strip()]
    if recorded:
        texts = [text for _, text in recorded]
        starts = [_start(attempt) for attempt, _ in recorded[1:]]
        run = records.parse(texts, directory.name, str(JobDir(directory).metrics), starts)
    elif failure is None and unfinished is None:
        has = "an empty" if JobDir(directory).metrics.exists() else "no"
        raise CannotJudge(
            f"The job directory '{directory}' has {has} logs/metrics.jsonl: give a job that has trained, or a metrics.jsonl."
        )
    else:
        run = Run(name=directory.name, series={})
    overrides = _overrides(directory, resolved.get("workload", ""))
    facts = _facts(directory, resolved, overrides)
    if comparable.REPLAY in facts:
        run = run.without(list(filter(metrics.is_of_recording, run.series)))
    return dataclasses.replace(
        run,
        workload=resolved.get("workload") or run.workload,
        seed=" ".join(sorted(text for text in overrides if is_seed(text))) or "verl's default seeds",
        failure=failure,
        unfinished=unfinished,
        code=resolved.get("code_id"),
        facts=facts,
        config=_flat_config(JobDir(directory).config / "verl_config.yaml", resolved),
        memory=memory_records.read(attempts),
        packages=packages.in_job(_config(directory, "packages.json")),
        is_job=True,
    )


def _metrics(attempt: JobDir) -> str:
    return attempt.metrics.read_text(encoding="utf-8") if attempt.metrics.exists() else ""


def _start(attempt: JobDir) -> int:
    """The step after which an attempt continued; 0 if it began from scratch, and so replaces all before it."""
    return int((_config(attempt.path, "resolved.json").get("parent") or {}).get("step") or 0)


def sampled(directory: Path, only: Collection[str] = ()) -> str | None:
    """The hash of what a job sampled at all steps, or at these `only`, as its last attempt made them: `samples/N.jsonl` has the answers in
    any order (0.7.1 to 0.9.1). None if there are none, or if they cannot be read to the end.
    """
    known = hashlib.sha256()
    try:
        attempts = JobDir(directory).attempts()
        steps = {path.stem: path for attempt in attempts for path in attempt.samples.glob("*.jsonl")}
        steps = {step: path for step, path in steps.items() if not only or step in only}
        for step, path in sorted(steps.items()):
            with path.open(encoding="utf-8") as file:
                answers = [json.loads(line) for line in file]
            known.update(json.dumps([step, sorted([each["input"], each["output"]] for each in answers)]).encode())
    except (LookupError, OSError, TypeError, ValueError):
        return None
    return known.hexdigest() if steps else None


def _end(attempt: JobDir) -> tuple[str | None, str | None]:
    """Why the job failed, and why it did not run to its end although its code did not fail."""
    ended = attempt.read_state("ended")
    if not ended:
        return None, "the job recorded no end: it is running, or was lost" if attempt.state.is_dir() else None
    if ended.get("lost_nodes") or ended.get("head_gone"):
        return None, f"the job lost a node, which says nothing about its code ({ended.get('reason')})"
    if ended.get("told_to_stop"):
        return None, "the job was stopped"
    if ended.get("exit_code") == 0:
        return None, None
    cause = ended.get("cause")
    if isinstance(cause, Mapping):  # the root exception, verl_regress.jobs.failure
        cause = f"{cause.get('type')}: {cause.get('message')}" + (f" ({cause['where']})" if cause.get("where") else "")
    return str(cause or ended.get("reason") or f"exit status {ended.get('exit_code')}"), None


def _overrides(directory: Path, workload: str) -> list[str]:
    """What was asked of the trainer: JobSpec, base config and command line. Not what came of it: that may depend on the release."""
    base = _yaml(directory / "config/ray_config.yaml").get("trainer_overrides") or {}
    said = _config(directory, "asked.json").get("said") or {}
    asked = [each for each in said.get("overrides") or [] if each.get("origin") != REPLAY]
    keys = WORKLOADS[workload].profile_keys if workload in WORKLOADS else ()
    texts = [text for key in keys for text in base.get(key) or []]
    texts += _config(directory, "job_spec.json").get("trainer_overrides") or []
    if said.get("seed") is not None:  # TRAIN_SEED: which keys it sets depends on the release
        texts.append(f"seed={said['seed']}")
    return [*map(str, texts), *(str(each["text"]) for each in asked)]


def is_seed(override: str) -> bool:
    """Does it set a key for a seed, `data.seed=3`?"""
    return bool(_SEED.search(_key(override)))


def _facts(directory: Path, resolved: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, str]:
    """What must be equal for A and B, as text. What was not recorded is left out."""
    root, devices = str(resolved.get("shared_root", "")), resolved.get("devices") or {}
    named = ("profile", "model", "dataset", "reward_fn")
    facts = {name: str(resolved[name]).removeprefix(root) for name in named if resolved.get(name)}
    theirs = [text for text in overrides if not is_seed(text) and _key(text) != _OWN_OVERRIDE]
    facts |= {f"override {_key(text)}": text.lstrip("?!") for text in theirs}
    if devices:
        facts["devices"] = f"{devices.get('count')} x {devices.get('resource')}"
    facts |= _variable_facts(directory, resolved)
    facts |= _session_facts(_config(directory, "asked.json").get("said") or {})
    nodes = _nodes(directory)
    return facts | packages_fact(_config(directory, "packages.json")) | ({"nodes": nodes} if nodes else {})


def _variable_facts(directory: Path, resolved: Mapping[str, Any]) -> dict[str, str]:
    """The job's environment without what is its own, and hooks that change the training by what they do."""
    facts: dict[str, str] = {}
    variables = _config(directory, "runtime_env.json").get("env_vars") or {}
    if _HOOKS in variables:
        hooks = [hook for hook in str(variables[_HOOKS]).split(",") if hook not in _BESIDE_TRAINING]
        variables = {**variables, _HOOKS: ",".join(hook for hook in hooks if hook not in _CHANGING)}
        facts |= {_CHANGING[hook]: "True" for hook in hooks if hook in _CHANGING}
    for name, value in variables.items():
        if name not in _OWN_VARIABLES:
            facts[f"variable {name}"] = _without_own(str(value), resolved)
    return facts


def _session_facts(said: Mapping[str, Any]) -> dict[str, str]:
    """How a session asked for the run: deterministic, and on which session's rollouts."""
    facts = {"deterministic": "True"} if said.get("deterministic") else {}
    recordings = (str(each["text"]) for each in said.get("overrides") or [] if each.get("origin") == REPLAY)
    if session := next((found[1] for text in recordings if (found := _RECORDING.search(text))), None):
        facts[comparable.REPLAY] = session
    return facts


def packages_fact(record: Mapping[str, Any]) -> dict[str, str]:
    """The fact of a config/packages.json, without the head's list; nothing if that was not recorded."""
    found = {
        f"Python {each['python']}, {len(each['packages'])} packages (sha256 {each['sha256'][:12]})"
        for each in packages.of_workers(record)
    }
    return {"packages": "; ".join(sorted(found))} if found else {}


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("?!+~")


def _nodes(directory: Path) -> str | None:
    """The shapes of the workers, as the debug bundle of the submission saw them: `2 x CPU 64, GPU 4`."""
    found = sorted(directory.glob("debug/*-submitted/nodes.json"))
    answer = ((read_json(found[0]) or {}).get("answer") or {}) if found else {}
    workers = [
        each for each in answer.get("result") or [] if not each.get("is_head_node") and each.get("state") == "ALIVE"
    ]
    amounts = [sorted(each["resources_total"].items()) for each in workers]
    shapes = [", ".join(f"{name} {value:g}" for name, value in each if _NODE_RESOURCES.match(name)) for each in amounts]
    return "; ".join(f"{shapes.count(shape)} x {shape}" for shape in sorted(set(shapes))) or None


def _flat_config(path: Path, resolved: Mapping[str, Any]) -> dict[str, str]:
    """verl's resolved config, flat, without what names this job, its code or its seeds."""
    flat: dict[str, str] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                walk(f"{prefix}.{key}" if prefix else str(key), each)
        elif not _OWN_KEYS.search(prefix) and not _SEED.search(prefix):
            flat[prefix] = _without_own(json.dumps(value, default=str), resolved)

    walk("", _yaml(path))
    return flat


def _without_own(text: str, resolved: Mapping[str, Any]) -> str:
    for name in ("job_dir", "code_path", "submission_id"):
        if resolved.get(name):
            text = text.replace(str(resolved[name]), f"<{name}>")
    return text


def _config(directory: Path, name: str) -> dict[str, Any]:
    return JobDir(directory).read_config(name) or {}


@functools.lru_cache(maxsize=64)
def _yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file that never changes; empty if there is none. A session reads it again with each run that it adds."""
    if not path.exists():
        return {}
    content = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return content if isinstance(content, dict) else {}


if __name__ == "__main__":
    from verl_verdict.__main__ import main

    sys.exit(main(readers=[JobReader()]))
