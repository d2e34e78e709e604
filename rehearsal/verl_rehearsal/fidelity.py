"""Did the rehearsal train what it sampled from? Reads what a finished run has recorded:

    python -m verl_rehearsal.fidelity ppo|grpo|sft METRICS REPORTS [--one-machine] [--on-gpu]

METRICS is the file of verl's logger "file" (VERL_FILE_LOGGER_PATH), REPORTS the run's directory VERL_REHEARSAL_REPORTS.

A rehearsal can run, look fine and be wrong. With the padded path of verl 0.7.1 the rollout samples from another policy
than the one being trained. With one seed for all answers to a prompt, GRPO of verl 0.9.1 ends well and trains nothing.
Only these checks show it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CORRELATION = "training/rollout_actor_probs_pearson_corr"  # verl.utils.debug.metrics, verl 0.7.1 to 0.9.1
MIN_CORRELATION = 0.999
MIN_CORRELATION_ON_GPU = 0.99  # vLLM's kernels are not the trainer's; on an H100 it was 0.99999
MIN_LEARNING_RATE = 1e-4  # below it the weights hardly move, and a stale rollout would pass
MIN_GRADIENT = 0.01  # the smallest in a sound rehearsal was 0.8; GRPO without advantages has about 0
MIN_SHARE = 0.5  # of the steps with a gradient, and of the groups whose answers differ


@dataclass(frozen=True)
class Kind:
    """What to check for a workload: the metrics of its models' gradients and of its learning rate, and whether it samples answers."""

    gradients: dict[str, str]
    learning_rate: str
    samples: bool = True
    groups: bool = False


KINDS = {
    "ppo": Kind({"actor": "actor/grad_norm", "critic": "critic/grad_norm"}, "actor/lr"),
    "grpo": Kind({"actor": "actor/grad_norm"}, "actor/lr", groups=True),
    "sft": Kind({"actor": "train/grad_norm"}, "train/lr", samples=False),
}


@dataclass(frozen=True)
class FidelityCheck:
    """One check: whether it passed, and what was seen."""

    passed: bool
    seen: str


def check(workload: str, metrics: Path, reports: Path, *, one_machine: bool = False) -> Iterator[FidelityCheck]:
    """Yield the checks of a run; a check whose file or value is missing fails. Raises KeyError for another workload.

    `one_machine`: the training actors ran on the same machine; otherwise each must have had one of its own.
    """
    kind = KINDS[workload]
    steps = _steps(metrics)
    if kind.samples:
        yield from _correlation(steps)
    yield _learning_rate(steps, kind.learning_rate)
    if kind.samples:
        yield _weights(_reports(reports, "rollout_weights"))
    yield _placement(_reports(reports, "training_actor"), one_machine=one_machine)
    trained = _reports(reports, "trained_weights")
    for model, gradient in kind.gradients.items():
        yield _gradient(steps, gradient)
        yield _trained(trained, model)
    if kind.samples:
        yield _reward(steps)
        samples = [tuple(sample) for report in _reports(reports, "rollout_samples") for sample in report["samples"]]
        yield _seeds(samples)
        if kind.groups:
            yield _groups(samples)


def check_on_gpu(workload: str, metrics: Path) -> Iterator[FidelityCheck]:
    """Yield the checks of a run on GPUs, where no hook reports: what verl's metrics alone can show. Raises as `check` does."""
    kind = KINDS[workload]
    steps = _steps(metrics)
    for gradient in kind.gradients.values():
        yield _gradient(steps, gradient, least=0.0)
    if kind.samples:
        values = _values(steps, CORRELATION)
        there = sum(value >= MIN_CORRELATION_ON_GPU for value in values)
        yield FidelityCheck(
            len(steps) > 0 and there == len(steps),
            f"rollout_actor_probs_pearson_corr at least {MIN_CORRELATION_ON_GPU}: {there} of {len(steps)} steps "
            f"(lowest {min(values, default=math.nan):.6f}, wanted: all)",
        )
        yield _reward(steps)


def _correlation(steps: list[dict[str, Any]]) -> Iterator[FidelityCheck]:
    nothing: dict[str, Any] = {"step": "none", "data": {}}
    for step in (steps or [nothing])[:1] + (steps or [nothing])[-1:]:
        value = step["data"].get(CORRELATION)
        shown = "missing" if value is None else f"{value:.6f}"
        yield FidelityCheck(
            value is not None and value >= MIN_CORRELATION,
            f"rollout_actor_probs_pearson_corr at step {step['step']}: {shown} (wanted: at least {MIN_CORRELATION})",
        )


def _learning_rate(steps: list[dict[str, Any]], metric: str) -> FidelityCheck:
    rates = _values(steps, metric)
    lowest = min(rates, default=0.0)
    return FidelityCheck(
        lowest >= MIN_LEARNING_RATE,
        f"{metric} over {len(rates)} steps: at least {lowest:g} (wanted: {MIN_LEARNING_RATE:g})",
    )


def _weights(reports: list[dict[str, Any]]) -> FidelityCheck:
    updates = [update for report in reports for update in report["updates"]]
    equal = sum(update["actor_sha256"] == update["rollout_sha256"] for update in updates)
    distinct = len({update["actor_sha256"] for update in updates})
    return FidelityCheck(
        len(updates) > 0 and equal == len(updates) and distinct > 1,
        f"rollout's weights hash equal to the actor's: {equal} of {len(updates)} updates on {len(reports)} replicas, "
        f"{distinct} distinct weights",
    )


def _placement(reports: list[dict[str, Any]], *, one_machine: bool) -> FidelityCheck:
    places = {report["rank"]: report["node_ip"] for report in reports}
    size = max((report["world_size"] for report in reports), default=0)
    shown = ", ".join(f"rank {rank} on {places[rank]}" for rank in sorted(places)) or "none reported"
    whole = sorted(places) == list(range(size)) and size > 0
    machines, wanted = (1, "on one machine") if one_machine else (size, "each on a worker of its own")
    return FidelityCheck(whole and len(set(places.values())) == machines, f"training actors, {wanted}: {shown}")


def _gradient(steps: list[dict[str, Any]], metric: str, least: float = MIN_GRADIENT) -> FidelityCheck:
    norms = _values(steps, metric)
    there = sum(math.isfinite(norm) and norm >= least and norm > 0 for norm in norms)
    return FidelityCheck(
        len(norms) > 0 and there >= MIN_SHARE * len(norms),
        f"{metric} {f'at least {least:g}' if least else 'above 0'}: {there} of {len(norms)} steps (wanted: at least half)",
    )


def _trained(reports: list[dict[str, Any]], model: str) -> FidelityCheck:
    found = [report["models"][model] for report in reports if model in report["models"]]
    steps = sum(report["optimizer_steps"] for report in found)
    distinct = sum(report["distinct"] for report in found)
    return FidelityCheck(
        steps > 0 and distinct == steps,
        f"{model}'s weights changed by every step of its optimizer: {distinct} of {steps} on {len(found)} ranks",
    )


def _reward(steps: list[dict[str, Any]]) -> FidelityCheck:
    lowest, highest = _values(steps, "critic/score/min"), _values(steps, "critic/score/max")
    shown = f"from {min(lowest):g} to {max(highest):g}" if lowest and highest else "missing"
    return FidelityCheck(
        bool(lowest and highest) and min(lowest) < max(highest),
        f"critic/score over {len(highest)} steps: {shown} (wanted: more than one value)",
    )


def _seeds(samples: list[tuple[Any, ...]]) -> FidelityCheck:
    own = len({(step, prompt, seed) for step, prompt, seed, _ in samples})
    return FidelityCheck(
        len(samples) > 0 and own == len(samples),
        f"samples with a seed of their own: {own} of the first {len(samples)}",
    )


def _groups(samples: list[tuple[Any, ...]]) -> FidelityCheck:
    answers: dict[tuple[Any, Any], list[Any]] = defaultdict(list)
    for step, prompt, _seed, answer in samples:
        answers[step, prompt].append(answer)
    groups = [group for group in answers.values() if len(group) > 1]
    differ = sum(len(set(group)) > 1 for group in groups)
    return FidelityCheck(
        len(groups) > 0 and differ >= MIN_SHARE * len(groups),
        f"groups whose answers differ: {differ} of the first {len(groups)} (wanted: at least half)",
    )


def _steps(metrics: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()] if metrics.is_file() else []


def _values(steps: list[dict[str, Any]], metric: str) -> list[float]:
    return [step["data"][metric] for step in steps if metric in step["data"]]


def _reports(directory: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(directory.glob(f"{kind}-*.json"))]


def main(argv: list[str] | None = None) -> int:
    """Print every check; 0 when all pass, 9 (a verification check failed) when one does not."""
    parser = argparse.ArgumentParser(prog="python -m verl_rehearsal.fidelity", allow_abbrev=False)
    parser.add_argument("workload", choices=KINDS)
    parser.add_argument("metrics", type=Path, help="the file of verl's logger 'file'")
    parser.add_argument("reports", type=Path, help="the directory that VERL_REHEARSAL_REPORTS named")
    parser.add_argument("--one-machine", action="store_true", help="the training actors shared a machine")
    parser.add_argument("--on-gpu", action="store_true", help="not a rehearsal: check what verl's metrics show")
    asked = parser.parse_args(argv)
    if asked.on_gpu:
        checks = list(check_on_gpu(asked.workload, asked.metrics))
    else:
        checks = list(check(asked.workload, asked.metrics, asked.reports, one_machine=asked.one_machine))
    good = sum(one.passed for one in checks)
    for one in (*checks, FidelityCheck(good == len(checks), f"fidelity: {good} of {len(checks)} checks passed")):
        print(f"{'ok' if one.passed else 'FAIL':<8}{one.seen}")
    return 0 if good == len(checks) else 9


if __name__ == "__main__":
    raise SystemExit(main())
