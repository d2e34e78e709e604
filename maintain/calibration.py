"""What the judge of verl_verdict is calibrated with: planted regressions and harmless changes (tests/mutations/), runs of A against
runs of A that differ by noise, some of the mutations against such runs, the records of all these runs (tests/recorded/calibration/),
and what the judge says of them.

A record is RUN.json.xz: it maps paths of the job directory to their text, cut down to what the judge reads; `calibration.json` says
what was run. The judge reads it as a job directory.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import lzma
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from verl_regress.jobs import recorded_run
from verl_regress.plan.overrides import of_shape
from verl_verdict.decide import judge
from verl_verdict.decide.statistics import LOOKS
from verl_verdict.decide.verdicts import Verdict, Word
from verl_verdict.read import comparable, metrics
from verl_verdict.read.records import Run as Recorded

REPO = Path(__file__).resolve().parents[1]
MUTATIONS = REPO / "tests" / "mutations"
RECORDS = REPO / "tests" / "recorded" / "calibration"
NOISE = RECORDS / "noise.patch"  # batches, and of SFT all rows, in another order in each run
ROUNDING = RECORDS / "rounding.patch"  # gradients that round otherwise in each run; the data are those of the seed
WORKLOADS = ("sft", "grpo", "ppo")
STEPS = 10
FURTHER = 2  # steps after a resume
MEASURED_RUNS = 6  # of each side: fewer cannot show that B is slower, or needs more memory
SESSION = 6  # pairs of a noisy session: fewer cannot show a difference
SEEN = 60  # noisy pairs of each workload that were seen before the judge's last rule was made; those behind them are held out
MOST_PAIRS = 99
REPLAYED = 67  # from this noisy pair on, records have all metrics, A's first run of PPO and GRPO records its rollouts, and others train on them
REPLAYS = 3  # runs of A that train on one recording
SEEN_REPLAYED = {"grpo": 69, "ppo": 69}  # the last pairs that were seen when the rule for one pair with replay was made
_LOST = {"grpo": 67}  # the pair whose rollouts were not kept: no further run can train on them
# Mutations that are also judged in noise, in the order of their runs. They have no overrides, so the noisy runs of A are their A.
IN_NOISE = (
    "advantage-sign",
    "sft-label-shift",
    "sft-validation-last-batch",
    "harmless-rename",
    "rollout-weights-not-updated",
    "reward-offset",
    "grpo-std-lost",
    "gradient-accumulation-scale",
    "clip-range-tenth",
    "harmless-reordered-sum",
    "actor-frozen",
    "reference-is-actor",
    "kl-dropped",
    "loss-sign",
)
ALARMS = (Word.REGRESSED, Word.CHANGED, Word.IMPROVED)
CAUGHT = (Word.REGRESSED, Word.CHANGED)
# Signals that the judge finds in what a run costs, and words of its sentence on them.
MEASURED = {"speed": (judge.speed, "a step takes"), "memory": (judge.memory, "all processes")}
WITHOUT_METRIC = ("crash", "stops", *MEASURED)  # signals that no metric shows
# Of the many noisy runs only these are kept beside the decisive metrics: what the judge finds wrong on its face, and the step's time.
_KEPT_OF_NOISY = (
    "critic/advantages/max",
    "critic/advantages/min",
    "actor/pg_loss",
    "critic/grad_norm",
    "timing_s/step",
)
_REPLAY = ("skip.", "trainer.experiment_name=", "trainer.project_name=")  # what only says where the rollouts are
_RESOLVED = (
    "submission_id",
    "workload",
    "profile",
    "code_id",
    "shared_root",
    "code_path",
    "model",
    "dataset",
    "reward_fn",
    "job_dir",
    "devices",
    "parent",
)


@dataclass(frozen=True)
class Recipe:
    """What a run trains. Runs with one recipe are compared."""

    workload: str
    overrides: tuple[str, ...] = ()
    steps: int = STEPS
    continues: bool = False  # resumed after `steps`, for FURTHER ones
    measured: bool = False  # for its speed or memory: A and B run in turn, so that both have the same machine

    @property
    def name(self) -> str:
        """`ppo-10`, `grpo-10-1f2e3d` with overrides, `ppo-10-resumed`, `ppo-10-measured`."""
        changed = f"-{_sha256(' '.join(self.overrides))[:6]}" if self.overrides else ""
        return f"{self.workload}-{self.steps}{changed}{'-resumed' if self.continues else ''}{'-measured' if self.measured else ''}"

    @property
    def asked(self) -> tuple[str, ...]:
        """Its overrides. No checkpoint is saved that nobody reads."""
        saves = self.steps if self.continues else -1
        return (f"trainer.total_training_steps={self.steps}", f"trainer.save_freq={saves}", *self.overrides)


@dataclass(frozen=True)
class Run:
    """One run to record. `patches` change the code of A, one after the other."""

    name: str
    recipe: Recipe
    patches: tuple[Path, ...] = ()
    seed: int | None = None
    perturbed: bool = False
    rollouts: str = ""  # of the run whose rollouts it trains on; its own name if it records them

    @property
    def overrides(self) -> tuple[str, ...]:
        """What is asked of the trainer, as make verify does (py/verl_regress/session/replay.py); {shared} is the shared root."""
        if not self.rollouts:
            return self.recipe.asked
        steps = ",".join(map(str, range(1, self.recipe.steps + 1)))
        what = ("enable=True", f"dump_dir={{shared}}/calibrate/{self.rollouts}", f"steps=[{steps}]")
        names = ("trainer.experiment_name=replay", "trainer.project_name=verl-regress")  # parts of the path
        return (*self.recipe.asked, *names, *(f"skip.rollout_tq.{each}" for each in what))

    @property
    def patch_sha256(self) -> str:
        """Of all patches together; empty for A."""
        return _sha256("".join(patch.read_text(encoding="utf-8") for patch in self.patches)) if self.patches else ""


@dataclass(frozen=True)
class Mutation:
    """A planted regression or a harmless change, as tests/mutations/index.yaml describes it."""

    name: str
    title: str
    recipe: Recipe
    harmless: bool = False
    signal: Mapping[str, Any] = field(default_factory=dict)
    is_rounding: bool = False
    noise: Path = NOISE
    from_pair: int = 1  # the first noisy pair whose records have what shows it

    @property
    def runs(self) -> tuple[Run, ...]:
        """Its runs: several if they are measured."""
        if not self.recipe.measured:
            return (Run(self.name, self.recipe, (self.patch,)),)
        return tuple(Run(f"{self.name}-{number}", self.recipe, (self.patch,)) for number in range(1, MEASURED_RUNS + 1))

    @property
    def patch(self) -> Path:
        """What it changes."""
        return MUTATIONS / f"{self.name}.patch"

    @property
    def runs_of_a(self) -> tuple[Run, ...]:
        """The runs of A that it is compared with: two tell whether A repeats itself."""
        count = MEASURED_RUNS if self.recipe.measured else 2
        return tuple(Run(f"A-{self.recipe.name}-{number}", self.recipe) for number in range(1, count + 1))

    @property
    def perturbed(self) -> tuple[Run, ...]:
        """The run of A with perturbed last bits, if the judge needs it."""
        return (Run(f"A-{self.recipe.name}-perturbed", self.recipe, perturbed=True),) if self.is_rounding else ()


@dataclass(frozen=True)
class Result:
    """What the judge says of a mutation."""

    mutation: Mutation
    verdict: Verdict

    @property
    def is_alarm(self) -> bool:
        """The judge says that B differs."""
        return self.verdict.word in ALARMS

    @property
    def is_caught(self) -> bool:
        """A regression that does not pass."""
        return self.verdict.word in CAUGHT

    @property
    def is_named_right(self) -> bool:
        """The first difference is the expected one."""
        signal, first = self.mutation.signal, self.verdict.first
        if "metrics" not in signal:  # the verdict says it, or does not
            said = {"crash": "the job failed", "stops": "the record ends at step"}
            said |= {key: text for key, (_, text) in MEASURED.items()}
            return self.is_caught and any(key in signal and text in self.verdict.reason for key, text in said.items())
        return first is not None and first.step == signal["step"] and first.metric.startswith(tuple(signal["metrics"]))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def mutations() -> list[Mutation]:
    """All of the index."""
    index = yaml.safe_load((MUTATIONS / "index.yaml").read_text(encoding="utf-8"))
    return [_mutation(name, said) for name, said in index.items()]


def _mutation(name: str, said: Mapping[str, Any]) -> Mutation:
    steps = int(said.get("steps", STEPS))
    signal = said.get("signal") or {key: True for key in WITHOUT_METRIC if said.get(key)}
    recipe = Recipe(
        said["workload"],
        tuple(said.get("overrides", ())),
        steps,
        bool(said.get("continues")),
        not MEASURED.keys().isdisjoint(signal),
    )
    noise = {"rounding": ROUNDING}.get(said.get("noise", ""), NOISE)
    from_pair = REPLAYED if said.get("all_metrics") else 1
    return Mutation(
        name, said["title"], recipe, bool(said.get("harmless")), signal, bool(said.get("perturbed")), noise, from_pair
    )


def noisy_pair(workload: str, number: int, noise: Path = NOISE) -> tuple[Run, Run]:
    """Two runs of A with one seed that differ by noise."""
    name = f"{noise.stem}-{workload}-{number}"
    first, second = (Run(f"{name}-{run}", Recipe(workload), (noise,), 100 * number) for run in (1, 2))
    is_recording = number >= REPLAYED and workload != "sft"
    return dataclasses.replace(first, rollouts=first.name if is_recording else ""), second


Pair = tuple[tuple[Run, ...], Run]  # the runs of A with one seed, and that of B


def replays(workload: str, number: int) -> tuple[Run, ...]:
    """The runs of A that train on the rollouts of a pair's first run."""
    first, _ = noisy_pair(workload, number)
    return tuple(
        dataclasses.replace(first, name=f"replayed-{workload}-{number}-{run}") for run in range(1, REPLAYS + 1)
    )


def replayed_pairs(mutation: Mutation) -> list[Pair]:
    """Its pairs with replay, as many as the judge may take: A's recording run, its replay, for the first pair a second one, and B's.

    None of SFT, which samples nothing."""
    workload = mutation.recipe.workload
    found: list[Pair] = []
    for number in range(REPLAYED, MOST_PAIRS) if workload != "sft" else ():
        (first, _), repeats = noisy_pair(workload, number), replays(workload, number)
        b = dataclasses.replace(first, name=f"replayed-{mutation.name}-{number}", patches=(NOISE, mutation.patch))
        if number != _LOST.get(workload) or is_recorded(b):
            found.append(((first, *repeats[: 1 if found else 2]), b))
    return found[: LOOKS[-1]]


def replays_in_turn(workload: str, number: int) -> list[Pair]:
    """A against A with replay: each replay that is recorded is B once, and the ones before it measure the noise; the first follows the last."""
    first, _ = noisy_pair(workload, number)
    recorded = [run for run in replays(workload, number) if is_recorded(run)]
    if len(recorded) < 2:
        return []
    turns = (recorded[at:] + recorded[:at] for at in range(len(recorded)))
    return [((first, *repeats[::-1]), b) for b, *repeats in turns]


def noisy_pairs(mutation: Mutation) -> list[Pair]:
    """A pair for each seed, as many as the judge may take. A runs twice with the first one."""
    found: list[Pair] = []
    for number in range(mutation.from_pair, mutation.from_pair + LOOKS[-1]):
        a = noisy_pair(mutation.recipe.workload, number, mutation.noise)
        b = Run(f"noisy-{mutation.name}-{number}", a[0].recipe, (mutation.noise, mutation.patch), a[0].seed)
        found.append((a[:1] if found else a, b))
    return found


def planned(pairs: int, only: str = "") -> Iterator[Run]:
    """All runs, in the order in which they are made: A and B in turn, harmless changes and short runs first, then the mutations in noise,
    then so many noisy pairs of each workload.

    `only` is a workload: then they are its noisy pairs alone."""
    seen = set()
    for run in (*(() if only else _of_mutations()), *_of_noise(pairs, (only,) if only else WORKLOADS)):
        if run.name not in seen:
            yield run
        seen.add(run.name)


def _of_mutations() -> Iterator[Run]:
    for mutation in sorted(mutations(), key=_order):
        yield from (*_in_turn(mutation.runs_of_a, mutation.runs), *mutation.perturbed)
    for pairs_of in (noisy_pairs, replayed_pairs):
        for a, b in (pair for mutation in in_noise() for pair in pairs_of(mutation)):
            yield from (*a, b)


def _of_noise(pairs: int, workloads: Sequence[str]) -> Iterator[Run]:
    for number in range(1, pairs + 1):
        for workload in workloads:
            yield from noisy_pair(workload, number)
            if number >= REPLAYED and workload != "sft":
                yield from replays(workload, number)


def _order(mutation: Mutation) -> tuple[int, bool, int]:
    return len(mutation.runs), not mutation.harmless, WORKLOADS.index(mutation.recipe.workload)


def _in_turn(a: Sequence[Run], b: Sequence[Run]) -> Iterator[Run]:
    for number in range(len(a)):
        yield from (*a[number : number + 1], *b[number : number + 1])


def lacking(pairs: int, only: str = "") -> list[Run]:
    """The planned runs that have no record, or one of another patch. In noise the first decision is final: no pair follows it."""
    by_mutation = [pairs_of(each) for each in in_noise() for pairs_of in (noisy_pairs, replayed_pairs)]
    decided = {b.name for pairs in by_mutation if is_decided(looks(pairs)) for _, b in pairs}
    return [run for run in planned(pairs, only) if not is_recorded(run) and run.name not in decided]


# --- records


def is_recorded(run: Run) -> bool:
    """It has a record of its current patch."""
    return _file(run.name).is_file() and about(run.name)["patch_sha256"] == run.patch_sha256


def _file(name: str) -> Path:
    return RECORDS / f"{name}.json.xz"


def _record(name: str) -> dict[str, str]:
    content: dict[str, str] = json.loads(lzma.decompress(_file(name).read_bytes()))
    return content


def about(name: str) -> dict[str, Any]:
    """What was run: workload, patch_sha256, seconds, verl, commit, image, recorded."""
    content: dict[str, Any] = json.loads(_record(name)["calibration.json"])
    return content


def record(run: Run, job: Path, facts: Mapping[str, Any]) -> None:
    """Write the record of a job that has ended, by rename. Raises ValueError if it did not read the rollouts that it was to train on."""
    if run.rollouts not in ("", run.name):
        log = (job / "logs/driver.log").read_text(encoding="utf-8")
        if len(set(re.findall(r"cached trajectories from step (\d+)", log))) != run.recipe.steps:
            raise ValueError(f"{run.name} did not read the rollouts of all steps of {run.rollouts}")
    attempts = [job, *sorted((job / "attempts").glob("[0-9]*"))]
    about = {**facts, "patch_sha256": run.patch_sha256, "seconds": sum(map(_seconds, attempts))}
    content = {"calibration.json": _dumped(about)}
    for attempt in attempts:
        prefix = "" if attempt == job else f"attempts/{attempt.name}/"
        content |= {f"{prefix}{name}": text for name, text in _cut_down(attempt, run).items()}
    RECORDS.mkdir(parents=True, exist_ok=True)
    temporary = RECORDS / f".{run.name}.{os.getpid()}"
    temporary.write_bytes(lzma.compress(_dumped(content).encode(), preset=9 | lzma.PRESET_EXTREME))
    temporary.rename(_file(run.name))
    load.cache_clear()


def _cut_down(job: Path, run: Run) -> dict[str, str]:
    """The files of an attempt with the fields that the judge reads; verl's resolved config is left out."""
    bundle = min(job.glob("debug/*-submitted/nodes.json"), default=None)
    nodes = [] if bundle is None else (_read(bundle).get("answer") or {}).get("result") or []
    content = {
        "config/asked.json": {"said": _said(job, run)},
        "config/job_spec.json": _some(_read(job / "config/job_spec.json"), ("trainer_overrides",)),
        "config/ray_config.yaml": {"trainer_overrides": _of_profile(job, run, nodes)},
        "config/resolved.json": _some(_read(job / "config/resolved.json"), _RESOLVED),
        "config/runtime_env.json": _some(_read(job / "config/runtime_env.json"), ("env_vars",)),
        "state/ended": _some(
            _read(job / "state/ended"), ("exit_code", "reason", "told_to_stop", "cause", "lost_nodes", "head_gone")
        ),
    }
    if bundle is not None:
        shapes = [_some(node, ("is_head_node", "state", "resources_total")) for node in nodes]
        content[str(bundle.relative_to(job))] = {"answer": {"result": shapes}}
    texts = {name: _dumped(each) for name, each in content.items() if each}
    if run.recipe.measured:
        for path in job.glob("state/memory/*.txt"):
            texts[str(path.relative_to(job))] = path.read_text(encoding="utf-8")
    if (job / "logs/metrics.jsonl").is_file():
        texts["logs/metrics.jsonl"] = _metrics((job / "logs/metrics.jsonl").read_text(encoding="utf-8"), run)
    return texts


def _said(job: Path, run: Run) -> dict[str, Any]:
    """What the user asked for, without where the rollouts are."""
    said = _read(job / "config/asked.json").get("said") or {}
    if run.rollouts:
        said["overrides"] = [each for each in said["overrides"] if not each["text"].startswith(_REPLAY)]
    return {key: said[key] for key in ("seed", "overrides", "deterministic") if said.get(key) is not None}


def _of_profile(job: Path, run: Run, nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The profile's overrides for the workload. They have numbers instead of ${8*workers}, as in earlier records."""
    workers = sum(not node.get("is_head_node") for node in nodes)
    of_all = _read(job / "config/ray_config.yaml").get("trainer_overrides") or {}
    overrides = {key: [of_shape(text, workers, 1) for text in texts] for key, texts in of_all.items()}
    family = "sft" if run.recipe.workload == "sft" else "rl"
    return _some(overrides, (family, run.recipe.workload))


def _metrics(text: str, run: Run) -> str:
    """verl's metrics, byte for byte; of noisy runs before the replayed ones the metrics that decide."""
    if NOISE not in run.patches or (run.seed or 0) >= 100 * REPLAYED:
        return text
    rows = [json.loads(line) for line in text.splitlines()]
    names = {name for row in rows for name in row["data"]}
    kept = {name for name, _ in metrics.decisive_of(run.recipe.workload, names)} | {*_KEPT_OF_NOISY}
    return "".join(
        json.dumps({"step": row["step"], "data": {name: row["data"][name] for name in row["data"] if name in kept}})
        + "\n"
        for row in rows
    )


def _seconds(attempt: Path) -> int:
    """From the start of its driver to its end, without the time in the queue."""
    started, ended = (_read(attempt / f"state/{name}").get("time") for name in ("started", "ended"))
    return (
        round((datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds())
        if started and ended
        else 0
    )


def _some(content: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: content[name] for name in names if name in content}


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def _dumped(content: Any) -> str:
    return json.dumps(content, sort_keys=True, ensure_ascii=False)


@cache
def load(name: str) -> Recorded:
    """The run of a record, as the judge reads a job directory."""
    with tempfile.TemporaryDirectory() as directory:
        job = Path(directory) / name
        for path, text in _record(name).items():
            (job / path).parent.mkdir(parents=True, exist_ok=True)
            (job / path).write_text(text, encoding="utf-8")
        return recorded_run.read(job)


# --- what the judge says


def results() -> list[Result]:
    """What the judge says of each mutation that has all its records."""
    return [
        Result(each, judged(each))
        for each in mutations()
        if all(map(is_recorded, (*each.runs_of_a, *each.runs, *each.perturbed)))
    ]


def judged(mutation: Mutation) -> Verdict:
    """The verdict on a mutation; that on its speed or memory if its signal is that."""
    a, b, perturbed = (
        [load(run.name) for run in runs] for runs in (mutation.runs_of_a, mutation.runs, mutation.perturbed)
    )
    measured = next((case for key, (case, _) in MEASURED.items() if key in mutation.signal), None)
    return measured(a, b, name=mutation.name) if measured else judge.case(a, b, name=mutation.name, perturbed=perturbed)


def known() -> dict[str, dict[str, str]]:
    """What is known to be open, by mutation with its reason: not_caught, and pending, which are not recorded; the same in noise.

    And not_caught_with_replay, and what replay hides."""
    said = yaml.safe_load((RECORDS / "open.yaml").read_text(encoding="utf-8"))
    return {
        key: dict(said.get(key) or {})
        for key in (
            "not_caught",
            "pending",
            "not_caught_in_noise",
            "pending_in_noise",
            "not_caught_with_replay",
            "hidden_by_replay",
        )
    }


def in_noise() -> list[Mutation]:
    """The mutations that are also judged in noise."""
    index = {each.name: each for each in mutations()}
    return [index[name] for name in IN_NOISE]


def looks(pairs: Sequence[Pair]) -> dict[int, Verdict]:
    """What the judge says by the number of pairs: of the first pair and at its declared looks, until it decides."""
    found: dict[int, Verdict] = {}
    for count in (1, *LOOKS) if pairs else ():
        a = [run for side, _ in pairs[:count] for run in side]
        b = [run for _, run in pairs[:count]]
        if is_decided(found) or not all(map(is_recorded, (*a, *b))):
            break
        found[count] = _first_verdict(a, b) if count == 1 else _verdict(a, b)
    return found


def _first_verdict(a: Sequence[Run], b: Sequence[Run]) -> Verdict:
    """The verdict on the first pair. As in a session, A's third run is asked for where two do not decide."""
    verdict = _verdict(a[:2], b)
    return _verdict(a, b) if a[2:] and verdict.word in (Word.INCONCLUSIVE, Word.SAME) else verdict


def _verdict(a: Sequence[Run], b: Sequence[Run]) -> Verdict:
    is_replay = bool(b[0].rollouts)
    return judge.case(*([_loaded(run, is_replay=is_replay) for run in side] for side in (a, b)))


def _loaded(run: Run, *, is_replay: bool) -> Recorded:
    return as_replay(run) if is_replay else load(run.name)


def as_replay(run: Run) -> Recorded:
    """The run as the reader of job directories makes it for a session with replay."""
    loaded = load(run.name)
    facts = {**loaded.facts, comparable.REPLAY: "calibrate"}
    return dataclasses.replace(loaded.without(list(filter(metrics.is_of_recording, loaded.series))), facts=facts)


def is_decided(found: Mapping[int, Verdict]) -> bool:
    """A session makes no further pair: the verdict is one, or says that more pairs would not decide it."""
    return any(not (each.is_open and each.pairs_needed) for each in found.values())


def is_judged(found: Mapping[int, Verdict]) -> bool:
    """These looks have come to an end, with or without a decision."""
    return is_decided(found) or LOOKS[-1] in found


def noisy(workload: str) -> list[tuple[Recorded, Recorded]]:
    """The noisy pairs that are recorded."""
    pairs = [noisy_pair(workload, number) for number in range(1, MOST_PAIRS + 1)]
    return [(load(a.name), load(b.name)) for a, b in pairs if is_recorded(a) and is_recorded(b)]


def verdicts_on_replays(workload: str) -> dict[int, list[Verdict]]:
    """A against A with replay: by the number of the seed, the verdict on each of its pairs alone."""
    numbers = range(REPLAYED, MOST_PAIRS + 1) if workload != "sft" else ()
    pairs = {number: replays_in_turn(workload, number) for number in numbers}
    return {number: [looks([pair])[1] for pair in found] for number, found in pairs.items() if found}


def verdicts_on_noise(workload: str) -> tuple[list[Verdict], list[Verdict]]:
    """A against A: of each pair alone, and of sessions of disjoint pairs."""
    pairs = noisy(workload)
    alone = [judge.case([a], [b]) for a, b in pairs]
    whole = range(0, len(pairs) - SESSION + 1, SESSION)
    groups = [pairs[start : start + SESSION] for start in whole]
    return alone, [judge.case([a for a, _ in group], [b for _, b in group]) for group in groups]
