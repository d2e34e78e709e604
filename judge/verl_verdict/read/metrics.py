"""What is known about verl's metrics: their names in each release, what is judged, what a first difference usually means.

Names were read in records of verl 0.7.1, 0.8.0, 0.9.1 (V0 and V1 trainer) and main (1dda039b).
"""

import enum
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Series = Mapping[str, Mapping[int, float]]

# Times by their name and unit, utilisation and memory: they differ between any two runs. `timing_s/agent_loop/slowest/*` describes the
# slowest sample. What else varies with the clock, A's own runs tell (exact.restless).
_TIMES = re.compile(
    r"^timing_(s|per_token_ms)/|(^|/)mfu(/|$)|^perf/(time_per_step|throughput)|(^|/)perf/(max_memory|cpu_memory)_"
)

# What the config alone decides, whatever the seed: schedules, coefficients, clip ranges and the count of steps.
_OF_CONFIG = re.compile(
    r"(^|/)(lr|learning_rate|epoch|global_step|entropy_coeff?|clip_?range\w*|clip_ratio_(low|high|c))$"
)
# A coefficient of the KL may be fixed, or follow the KL that was measured: A's runs tell.
_KL_COEFFICIENT = re.compile(r"(^|/)(reward_)?kl_(coeff?|penalty_coeff?)$")

# Other names of the same metric, and the releases that use them. The first that a record has is taken.
_ALIASES = (
    (re.compile(r"^training/num_turns/(.+)$"), r"num_turns/\1"),  # V1 before 0.9.1; from then on it writes both
    (re.compile(r"^mismatch/mismatch_(.+)$"), r"rollout_corr/\1"),  # 0.6
    (re.compile(r"^actor/entropy_loss$"), "actor/entropy"),  # up to 0.4
)

# What only some trainers of some releases write: a metric that A or B lacks for this reason says nothing about the code.
_ONLY_IN = (
    (re.compile(r"^training/(off_policy|num_turns)/"), "only the V1 trainer writes it"),
    (re.compile(r"^num_turns/"), "before verl 0.9.1 the V1 trainer writes training/num_turns instead"),
    # From validation: from 0.9.1 on V1's acc counts answers that failed as 0, and this one leaves them out.
    (re.compile(r"^val-aux/.+/acc_success_only/"), "only the V1 trainer of verl 0.9.1 and later writes it"),
)

# What the V0 and the V1 trainer define in another way: V1 has no padding, so its longest possible length is the batch's own.
_REDEFINED_BY_V1 = re.compile(r"/clip_ratio$")

# Differences of probabilities or log-probabilities: rounding is relative to those, not to their small difference. And shares of all tokens.
_DIFFERENCES_OF_ONES = re.compile(
    r"^(rollout_corr|training/rollout_)|/vf_explained_var$|/ppo_kl$|/kl_loss$|/reward_kl_penalty$|_clipfrac"
)
_FAMILY = re.compile(r"^(.+)/(mean|max|min)$")
_PARTS = ("mean", "max", "min", "std")
_PART = re.compile(rf"[/_]({'|'.join(_PARTS)})$")


@dataclass(frozen=True)
class Stage:
    """Metrics that show at the same point of a step, in causal order.

    `config` matches keys of verl's config that define them, `files` those of verl's files that do (paths of 0.7.1 to 0.9.1).
    """

    metrics: tuple[str, ...]
    means: str
    config: str = r"$^"
    files: str = r"$^"


# The order in which a cause shows within a step. The first difference of the first step that differs is the diagnosis.
STAGES = (
    Stage(
        ("prompt_length/", "train/global_tokens", "train/total_tokens", "training/epoch"),
        "other prompts or another order of the data: data loading, the tokenizer, the chat template or the sampler changed",
        r"^data\.|max_prompt_length|tokenizer|chat_template",
        r"dataset|data_loader|dataloader|tokenizer|chat_template|sampler",
    ),
    Stage(
        (
            "response_length",
            "response/",
            "num_turns/",
            "training/num_turns/",
            "training/off_policy/",
            "global_seqlen/",
            "perf/total_num_tokens",
        ),
        "other tokens were sampled: sampling parameters, seeds, padding or the weights of the rollout changed",
        r"rollout\.(temperature|top_|response_length|prompt_length|n$|do_sample|max_|dtype|name|mode|ignore_eos|seed)|max_response_length|use_v1",
        r"rollout|agent_loop|vllm|sglang|padding",
    ),
    Stage(
        ("training/rollout_probs_diff", "training/rollout_actor_probs_pearson_corr", "rollout_corr/"),
        "rollout and actor disagree in another way about the same tokens: stale rollout weights, another temperature, or another precision",
        r"rollout\.(temperature|dtype|calculate_log_probs|load_format|free_cache)|fsdp_config\.(dtype|model_dtype|mixed_precision)|rollout_correction",
        r"rollout|agent_loop|vllm|sglang|checkpoint_engine|weight|fsdp_utils|sharding_manager",
    ),
    Stage(
        ("critic/score/", "critic/rewards/"),
        "the same answers are rewarded differently: the reward function, its parsing or a penalty in the reward changed",
        r"reward|algorithm\.(use_kl_in_reward|kl_)",
        r"reward",
    ),
    Stage(
        ("critic/values/", "critic/advantages/", "critic/returns/", "critic/vf_explained_var"),
        "the same rewards give other advantages: the estimator, its sign, normalisation, discount or mask changed, or the critic's values",
        r"algorithm\.(adv_estimator|gamma|lam|norm_adv|use_)|critic\.(model|forward)",
        r"core_algos|ray_trainer|trainer_base|ppo/utils|/critic|torch_functional",
    ),
    Stage(
        ("critic/vf_loss", "critic/vf_clipfrac", "critic/vpred_mean", "critic/loss", "critic/grad_norm"),
        "the critic learns something else from the same returns: its loss, clip range, mask or accumulation changed",
        r"^critic\.",
        r"critic|core_algos|losses|torch_functional",
    ),
    Stage(
        (
            "actor/entropy",
            "actor/pg_loss",
            "actor/pg_clipfrac",
            "actor/pg_clipfrac_lower",
            "actor/ppo_kl",
            "actor/kl_loss",
            "actor/kl_coef",
            "actor/loss",
            "train/loss",
        ),
        "the loss of the same samples differs: a term, a coefficient, the clip range, the mask, the aggregation or the labels changed",
        r"actor\.(clip_|loss_agg|entropy_coeff|use_kl_loss|kl_loss|policy_loss|ppo_)|^data\.|loss",
        r"core_algos|losses|/actor|policy_loss|torch_functional|sft_trainer|engine",
    ),
    Stage(
        ("actor/grad_norm", "train/grad_norm", "actor/lr", "critic/lr", "train/lr"),
        "the same loss gives another update: gradient accumulation, clipping, the optimizer or the schedule of the learning rate changed",
        r"optim|grad_clip|micro_batch|strategy|dtype|precision",
        r"engine|optim|/actor|fsdp|lr_sched|torch_functional|sft_trainer",
    ),
    Stage(
        ("val-core/", "val-aux/", "val/"),
        "the trained weights differ, though the metrics of the updates do not: the update itself, or the validation",
        r"val|test_freq",
        r"val|metric",
    ),
)
_OTHER = Stage((), "the judge does not know this metric", r"$^")


class Improves(enum.Enum):
    """When a better value of a metric shows a better training."""

    ALWAYS = "always"
    LATER = "after the first update"
    NEVER = "never"


@dataclass(frozen=True)
class Decisive:
    """A metric that decides a case that is not exact.

    `good`: +1 if more is better, -1 if less is, 0 if neither: then a difference is *changed*. `floor`, `relative_floor`: what
    does not matter, absolute and as a share of A's mean. `path_free`: it hardly depends on the path that training took, so one
    pair of deterministic runs can show that it is worse. `at_first`: its value at the first update decides, too. `may_be_constant`: one
    that is the same in all runs is no reason to doubt the case. `improves`: whether a difference on the good side is *improved*; else
    it is *changed*, because equal weights and tokens give equal values. `is_capped`: a floor that is larger than the metric
    itself is no more than A's own steps vary by.
    """

    pattern: str
    good: int
    floor: float = 0.0
    relative_floor: float = 0.0
    required: bool = False
    path_free: bool = False
    at_first: bool = True
    may_be_constant: bool = False
    improves: Improves = Improves.ALWAYS
    is_capped: bool = False

    @property
    def is_sum_near_0(self) -> bool:
        """Is it a small difference of large terms, which no spread of its own measures?"""
        return self.pattern in ("actor/pg_loss", "actor/loss")

    def matches(self, name: str) -> bool:
        """Does it speak of this metric? A pattern that ends in a slash speaks of all below it."""
        return name.startswith(self.pattern) if self.pattern.endswith("/") else name == self.pattern

    def floor_of(self, size: float) -> float:
        """The difference that does not matter, for a metric of this size."""
        return max(self.floor, self.relative_floor * abs(size))


SCORE = "critic/score/mean"
POLICY_LOSS_BAND = 0.01  # the policy loss is near 0, and changes its sign


@dataclass(frozen=True)
class WorkloadMetrics:
    """What the judge knows of one of verl's workloads.

    A record that has a metric which begins as one of `marks` is its own, unless a workload before it claims the record. `decisive` decide its
    cases. `on_other_devices` are compared if A and B ran on other devices, the first always: those round otherwise, and sample other
    tokens. `first_loss` is a loss that depends on no sampled token; without an update before it, equal code gives one value.
    """

    marks: tuple[str, ...]
    decisive: tuple[Decisive, ...]
    on_other_devices: tuple[str, ...]
    first_loss: str = ""


_RL = (
    Decisive("critic/score/mean", +1, floor=0.02, required=True, is_capped=True),
    Decisive("val-core/", +1, floor=0.02, is_capped=True),
    Decisive("training/rollout_probs_diff_mean", -1, relative_floor=0.5, path_free=True, improves=Improves.NEVER),
    Decisive("response_length/mean", 0, relative_floor=0.05),
    Decisive("actor/entropy", 0, relative_floor=0.05),
    Decisive("actor/pg_loss", 0, floor=POLICY_LOSS_BAND),
    Decisive("actor/grad_norm", 0, relative_floor=0.2, required=True),
)
_RL_ON_OTHER_DEVICES = ("critic/rewards/mean", "actor/pg_loss")
# The names are those of verl_regress.base.workloads and of verl_rehearsal.train; tests/test_workloads.py compares them.
WORKLOADS: Mapping[str, WorkloadMetrics] = {
    "ppo": WorkloadMetrics(
        marks=("critic/values/", "critic/vf_", "critic/vpred_", "critic/grad_norm"),  # GRPO has none of them
        decisive=(
            *_RL,
            Decisive("critic/advantages/max", 0, relative_floor=0.1),
            Decisive("critic/advantages/min", 0, relative_floor=0.1),
            Decisive("critic/vf_loss", 0, relative_floor=0.1),
            # 0 in each first update after sampling, and always where a batch has one update.
            Decisive("actor/pg_clipfrac", 0, floor=0.01, at_first=False, may_be_constant=True),
        ),
        on_other_devices=(*_RL_ON_OTHER_DEVICES, "critic/vf_loss"),
    ),
    "grpo": WorkloadMetrics(
        marks=("critic/score/",),
        decisive=(
            *_RL,
            # 0 at first: the actor is still the reference.
            Decisive("actor/kl_loss", 0, floor=1e-4, relative_floor=0.2, at_first=False),
        ),
        on_other_devices=_RL_ON_OTHER_DEVICES,
    ),
    "sft": WorkloadMetrics(
        marks=("train/loss",),
        decisive=(
            Decisive("train/loss", -1, relative_floor=0.02, required=True, path_free=True, improves=Improves.LATER),
            Decisive("val/loss", -1, relative_floor=0.02, path_free=True),
            Decisive("train/grad_norm", 0, relative_floor=0.2, required=True),
        ),
        on_other_devices=("train/loss", "val/loss"),
        first_loss="train/loss",
    ),
}
_UNKNOWN = WorkloadMetrics(marks=(), decisive=(), on_other_devices=_RL_ON_OTHER_DEVICES)


def of_workload(name: str) -> WorkloadMetrics:
    """What the judge knows of this workload. One that it does not know has no decisive metrics."""
    return WORKLOADS.get(name, _UNKNOWN)


@functools.cache
def is_time(name: str) -> bool:
    """Is it a time, a utilisation or a use of memory?"""
    return bool(_TIMES.search(name))


def is_of_config(name: str) -> bool:
    """Does the config alone decide it, so that one run of A tells what it must be?"""
    return bool(_OF_CONFIG.search(name))


def is_of_data(name: str) -> bool:
    """Does it show which prompts or rows were read?"""
    return stage_of(name) is STAGES[0]


def is_before_sampling(name: str) -> bool:
    """Is it known before a token is sampled: the config, a fixed coefficient, prompts, data and their counts?"""
    return is_of_config(name) or bool(_KL_COEFFICIENT.search(name)) or is_of_data(name)


def canonical(series: Mapping[str, dict[int, float]]) -> dict[str, dict[int, float]]:
    """The series under one name for all releases. A record that has both names keeps both."""
    renamed: dict[str, dict[int, float]] = {}
    for name, values in series.items():
        new = name
        for pattern, replacement in _ALIASES:
            new = pattern.sub(replacement, new)
        renamed[name if new in series else new] = values
    return renamed


def is_of_v1(name: str) -> bool:
    """Does verl's V1 trainer alone write it, the age of the rollouts?"""
    return name.startswith("training/off_policy/")


def is_of_recording(name: str) -> bool:
    """Is it another one in a replayed run by design: the age of the rollouts, or what the order of the batch leaves to each rank?"""
    return is_of_v1(name) or (name.startswith("global_seqlen/") and not name.endswith("/mean"))


def is_v1(series: Series) -> bool:
    """Did verl's V1 trainer write this record?"""
    return any(map(is_of_v1, series))


def is_redefined(name: str, a: Series, b: Series) -> bool:
    """Do A and B mean something else by this name, because one of them ran verl's V0 trainer and the other one V1?"""
    return is_redefined_by_v1(name) and is_v1(a) != is_v1(b)


def is_redefined_by_v1(name: str) -> bool:
    """Does the V1 trainer mean something else by this name than V0?"""
    return bool(_REDEFINED_BY_V1.search(name))


def why_one_sided(name: str) -> str | None:
    """Why a metric may be in the records of one release only; None if no release explains it."""
    return next((why for pattern, why in _ONLY_IN if pattern.search(name)), None)


def workload_of(series: Series) -> str:
    """The workload that writes such metrics; empty if the judge knows none."""
    return next(
        (workload for workload, of_it in WORKLOADS.items() if any(each.startswith(of_it.marks) for each in series)), ""
    )


@functools.cache
def stage_of(name: str) -> Stage:
    """The stage in which a metric shows."""
    return next((stage for stage in STAGES if name.startswith(stage.metrics)), _OTHER)


def is_unknown(name: str) -> bool:
    """Is it a metric of which the judge knows nothing?"""
    return stage_of(name) is _OTHER


def is_of_mismatch(name: str) -> bool:
    """Does it show how far rollout and actor disagree about the same tokens?"""
    return stage_of(name) is STAGES[2]


def is_difference_of_rollout(name: str) -> bool:
    """Is it how far the probabilities of rollout and actor are apart, which rounding alone keeps from being 0?"""
    return bool(
        re.match(r"training/rollout_probs_diff_(mean|max|std)$|rollout_corr/(kl|k3_kl|log_ppl_abs_diff)$", name)
    )


def is_of_sampling(name: str) -> bool:
    """Does it show which tokens were sampled: lengths, probabilities, scores?"""
    return stage_of(name) in STAGES[1:4]


def is_before_rewards(name: str) -> bool:
    """Does it show before rewards can: prompts, lengths, mismatch, or the schedule and the entropy of the actor?"""
    return is_before_sampling(name) or stage_of(name) in STAGES[:3] or name == "actor/entropy"


def is_of_update(name: str) -> bool:
    """Does it show what an update did: losses and gradients?"""
    return stage_of(name) in STAGES[5:8]


@functools.cache
def causal_rank(name: str) -> tuple[int, int, int, str]:
    """Sorts metrics in the order in which a cause shows within a step."""
    stage = stage_of(name)
    position = next((at for at, prefix in enumerate(stage.metrics) if name.startswith(prefix)), 0)
    ending = _PART.search(name)
    part = _PARTS.index(ending[1]) if ending else 0
    return STAGES.index(stage) if stage in STAGES else len(STAGES), position, part, name


def mean_of_family(name: str) -> str:
    """The mean beside a maximum, a minimum or a share of the same quantity; the metric itself if it is none of these."""
    family = re.match(r"(.+)/(mean|max|min|clip_ratio)$", name)
    return f"{family[1]}/mean" if family else name


def scale_of(name: str, series: Series, *, is_sum: bool = False) -> float:
    """What rounding of this metric is relative to: its largest value, or that of its mean, max and min; with `is_sum` that of a loss's terms."""
    family = _FAMILY.match(name)
    names = [f"{family[1]}/{part}" for part in ("mean", "max", "min")] if family else [name]
    if is_sum and name in ("actor/pg_loss", "actor/loss"):
        names += ["critic/advantages/max", "critic/advantages/min"]
    largest = max((max(map(abs, series[each].values())) for each in names if series.get(each)), default=0.0)
    return max(largest, 1.0) if _DIFFERENCES_OF_ONES.search(name) else largest


def decisive_of(workload: str, names: Iterable[str], chosen: Iterable[Decisive] = ()) -> list[tuple[str, Decisive]]:
    """The decisive metrics among `names`, in causal order: those of the workload, or the chosen ones."""
    wanted = tuple(chosen) or of_workload(workload).decisive
    found = [(name, decisive) for name in names for decisive in wanted if decisive.matches(name)]
    return sorted(found, key=lambda pair: causal_rank(pair[0]))
