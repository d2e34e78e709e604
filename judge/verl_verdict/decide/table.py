"""The table that decides: every rule of the judge, in the order in which the rules are tried. The first one that applies decides.

A case is first asked whether its records can be judged (RECORDS), then what is wrong on its face (EVIDENT), then all else (CASE). The
other tables decide what has a verdict of its own.
"""

from verl_verdict.decide import by_pairs, by_value, evident
from verl_verdict.decide.case import CaseRuns
from verl_verdict.decide.cost import Cost
from verl_verdict.decide.invariants import FirstUpdates
from verl_verdict.decide.preconditions import Records
from verl_verdict.decide.relative import OtherDevices
from verl_verdict.decide.resumed import Resumption
from verl_verdict.decide.rollout import Rollout
from verl_verdict.decide.rules import EVERY, Regime, Rule
from verl_verdict.decide.unrun import Unrun
from verl_verdict.decide.verdicts import Word

_EXACT, _REPLAYED, _SAMPLED = Regime.EXACT, Regime.REPLAYED, Regime.SAMPLED
_BY_VALUE = _EXACT | _REPLAYED
_BY_PAIRS = _SAMPLED | _REPLAYED

# May the records be judged at all, and did a run of B fail?
RECORDS: tuple[Rule[Records], ...] = (
    Rule(
        "settings-differ",
        Regime.ONE_SIDED,
        Word.INCOMPARABLE,
        "'{a}' and '{b}' differ in more than their code: {differences}",
        Records.settings_differ,
    ),
    Rule(
        "unusable-baseline",
        Regime.ONE_SIDED,
        Word.INCOMPARABLE,
        "A cannot be the baseline, because in '{run}' {problem}",
        Records.unusable_baseline,
    ),
    Rule(
        "b-failed",
        Regime.ONE_SIDED,
        Word.REGRESSED,
        "A trains to the end, and in B's '{run}' {problem}",
        Records.b_failed,
    ),
    Rule(
        "b-not-finite",
        Regime.ONE_SIDED,
        Word.REGRESSED,
        "A trains to the end, and in B's '{run}' {problem}",
        Records.b_not_finite,
    ),
    Rule(
        "b-lost-steps",
        Regime.ONE_SIDED,
        Word.REGRESSED,
        "A records each step once, and in B's '{run}' {problem}",
        Records.b_lost_steps,
    ),
    Rule(
        "b-proves-nothing",
        Regime.ONE_SIDED,
        Word.INCONCLUSIVE,
        "B's record proves nothing, because in '{run}' {problem}",
        Records.b_proves_nothing,
    ),
)

# What is wrong on its face.
EVIDENT: tuple[Rule[CaseRuns], ...] = (
    Rule(
        "all-ignored",
        Regime.ONE_SIDED,
        Word.INCONCLUSIVE,
        "every metric that decides is ignored ({metrics}): compare one of them",
        evident.all_ignored,
    ),
    Rule(
        "no-pair",
        EVERY,
        Word.INCONCLUSIVE,
        "no run of B has the seed of a run of A: run B with the seeds of A",
        evident.no_pair,
    ),
    Rule(
        "only-logged",
        _EXACT,
        Word.CHANGED,
        "only what is logged changed, by one factor at every step: {factors}; equal are the {equal} and all else",
        evident.only_logged,
    ),
    Rule(
        "opposite-sign",
        EVERY,
        Word.REGRESSED,
        "with equal {equal}, {metric} has the opposite sign in B at step {step}: B trains away from what A trains towards",
        evident.opposite_sign,
    ),
    Rule("stays-zero", Regime.ONE_SIDED, Word.REGRESSED, "{zero}", evident.stays_zero),
    Rule("worse-on-replay", _REPLAYED, Word.REGRESSED, "{worse}", evident.worse_on_replay),
    Rule(
        "mismatch-gone",
        EVERY,
        Word.CHANGED,
        "{metric} is exactly 0 at every step of B, and never in A: B compares the rollout with itself, or not at all",
        evident.mismatch_gone,
    ),
    Rule(
        "no-advantage",
        EVERY,
        Word.INCONCLUSIVE,
        "the advantages are 0 at every step of A and of B, so the rewards train nothing and nothing is shown: change the case",
        evident.no_advantage,
    ),
    Rule(
        "never-recorded",
        Regime.ONE_SIDED,
        Word.INCONCLUSIVE,
        "no run of A or B has {metrics}, which decides this case: name one that is recorded",
        evident.never_recorded,
    ),
)

_BEYOND = "{metric}: {values}, beyond the margin of {margin} (p {p})"
_OPEN = "after {pairs} pairs it is not known whether B differs from A in {what}: {ask}"

# All else.
CASE: tuple[Rule[CaseRuns], ...] = (
    # Worse.
    Rule("worse-by-value", _EXACT, Word.REGRESSED, "{worse}", by_value.worse),
    Rule("worse-by-pairs", EVERY, Word.REGRESSED, _BEYOND, by_pairs.worse),
    Rule("far-outside", EVERY, Word.REGRESSED, "{outlier}", by_pairs.far_outside),
    # Better by statistics, and by nothing else otherwise.
    Rule("better-by-pairs", EVERY, Word.IMPROVED, _BEYOND, by_pairs.better),
    # It differs.
    Rule("law-broken", _BY_PAIRS, Word.CHANGED, "{breach}{more}", by_pairs.breach),
    Rule(
        "first-update-differs",
        _SAMPLED,
        Word.CHANGED,
        "all runs of A have one train/loss at step {step}, before any update, and no run of B has it: {values}",
        by_pairs.first_update,
    ),
    Rule(
        "differs-by-value", _BY_VALUE, Word.CHANGED, "{says} from step {step} on ({metric}: {values})", by_value.differs
    ),
    Rule("one-sided-by-value", EVERY, Word.CHANGED, "{what} {metrics}", by_value.recorded_by_one_side),
    Rule("other-hashes", EVERY, Word.CHANGED, "all metrics are {equal}, but the {what} are not", by_value.other_hashes),
    Rule("apart-by-pairs", EVERY, Word.CHANGED, _BEYOND, by_pairs.apart),
    Rule("one-sided-by-pairs", EVERY, Word.CHANGED, "{what} {metrics}", by_pairs.one_sided),
    Rule(
        "others-apart",
        EVERY,
        Word.CHANGED,
        "of all other metrics ({number}), which have one test together, these differ by more than A's own noise: {metrics} (p {p})",
        by_pairs.others_apart,
    ),
    Rule(
        "restless-apart",
        EVERY,
        Word.CHANGED,
        "a metric that varies between equal runs of A is far from all that they do in every run of B: {metric}",
        by_pairs.restless_apart,
    ),
    Rule("outside", EVERY, Word.CHANGED, "{outlier}", by_pairs.outside),
    # Not decided. First what more runs of the right kind would decide.
    Rule("shows-nothing", EVERY, Word.INCONCLUSIVE, "{why}", by_value.shows_nothing),
    Rule(
        "grows",
        _EXACT,
        Word.INCONCLUSIVE,
        "the difference begins as rounding and grows beyond {than} ({what}){ask}",
        by_value.grows,
    ),
    Rule(
        "hidden-by-replay",
        _REPLAYED,
        Word.INCONCLUSIVE,
        "on A's rollouts B is no farther from A than A's repeats may be (up to {size} of a metric's size), which could hide a change of up to {share} of {metric}: {ask}",
        by_value.hidden_by_replay,
    ),
    Rule("too-few-pairs", _SAMPLED, Word.INCONCLUSIVE, "{why}: {ask}", by_pairs.too_few),
    Rule("not-decided", EVERY, Word.INCONCLUSIVE, _OPEN, by_pairs.not_decided),
    Rule("outside-in-some", EVERY, Word.INCONCLUSIVE, "{outlier}{ask}", by_pairs.outside_in_some),
    Rule(
        "lacks-metric", EVERY, Word.INCONCLUSIVE, "'{run}' has no {metric}, which decides this case", by_pairs.lacking
    ),
    Rule(
        "nothing-decisive",
        EVERY,
        Word.INCONCLUSIVE,
        "the runs have no decisive metric in common",
        by_pairs.nothing_decisive,
    ),
    Rule(
        "steady",
        EVERY,
        Word.INCONCLUSIVE,
        "{metric} is {value} in every run of A, so it cannot show that B is the same: choose another decisive metric, or a case in which it varies",
        by_pairs.steady,
    ),
    Rule("never-decided", EVERY, Word.INCONCLUSIVE, _OPEN, by_pairs.never_decided),
    # Nothing differs.
    Rule("identical", EVERY, Word.IDENTICAL, "B is bit-equal to A", by_value.identical),
    Rule(
        "same-but-rounding",
        _BY_VALUE,
        Word.SAME,
        "B differs from A only by rounding (at most {size} of a metric's size), as A does from itself",
        by_value.same,
    ),
    Rule(
        "same-as-perturbed",
        _EXACT,
        Word.SAME,
        "B differs from A by no more than rounding grows to (up to {size} of a metric's size), as A with perturbed last bits shows",
        by_value.same_as_perturbed,
    ),
    Rule(
        "same-on-replay",
        _REPLAYED,
        Word.SAME,
        "B differs from A on its rollouts by no more than noise (up to {size} of a metric's size), as A does from itself",
        by_value.same_on_replay,
    ),
    Rule(
        "same-by-pairs",
        EVERY,
        Word.SAME,
        "B is within A's margin in all {number} values of the decisive metrics",
        by_pairs.same,
    ),
)

# Runs on other devices, compared by the mean relative error of their reward and losses.
DEVICES: tuple[Rule[OtherDevices], ...] = (
    Rule(
        "error-above-limit",
        EVERY,
        Word.CHANGED,
        "the mean relative error of {metrics} is above {limit:.2%}",
        OtherDevices.above,
    ),
    Rule(
        "error-unknown",
        EVERY,
        Word.INCONCLUSIVE,
        "no step of both sides has {metrics} with a value that is not 0: compare records that have",
        OtherDevices.without_value,
    ),
    Rule(
        "error-within-limit",
        EVERY,
        Word.SAME,
        "the mean relative error of {metrics} is at most {limit:.2%}",
        OtherDevices.within,
    ),
)

# The time of a step, and the memory of a run.
COST: tuple[Rule[Cost], ...] = (
    Rule("cost-unmeasured", Regime.ONE_SIDED, Word.INCONCLUSIVE, "{why}", Cost.unmeasured),
    Rule(
        "cost-unpaired",
        EVERY,
        Word.INCONCLUSIVE,
        "no run of B has the seed of a run of A: run B with the seeds of A",
        Cost.unpaired,
    ),
    Rule("cost-few-pairs", EVERY, Word.INCONCLUSIVE, "{means}, in {pairs}: run {needed} more", Cost.few),
    Rule("cost-worse", EVERY, Word.REGRESSED, "{shown}", Cost.worse),
    Rule("cost-in-noise", EVERY, Word.INCONCLUSIVE, "{shown}: {what_to_do}", Cost.hidden),
    Rule("cost-needs-pairs", EVERY, Word.INCONCLUSIVE, "{shown}: run {more}", Cost.needs_more),
    Rule("cost-open", EVERY, Word.INCONCLUSIVE, "{shown}: more pairs would not decide it", Cost.open),
    Rule("cost-better", EVERY, Word.IMPROVED, "{shown}", Cost.better),
    Rule("cost-same", EVERY, Word.SAME, "{shown}", Cost.same),
)

# Runs of one code that must agree with each other.
INVARIANTS: tuple[Rule[FirstUpdates], ...] = (
    Rule(
        "invariant-unmeasured",
        Regime.ONE_SIDED,
        Word.INCONCLUSIVE,
        "the runs of {side} cannot be compared, because with {config} {why}",
        FirstUpdates.unmeasured,
    ),
    Rule("invariant-broken", EVERY, Word.REGRESSED, "B breaks what A holds: {off}", FirstUpdates.broken),
    Rule(
        "invariant-broken-by-both",
        EVERY,
        Word.INCONCLUSIVE,
        "A breaks it too, so B is not to blame: {off}; either both have a fault, or that override changes what is computed",
        FirstUpdates.broken_by_both,
    ),
    Rule("invariant-fixed", EVERY, Word.IMPROVED, "B holds what A breaks: {off}", FirstUpdates.fixed),
    Rule(
        "invariant-held",
        EVERY,
        Word.SAME,
        "all {configs} agree in {metrics}, with A and with B (B's by {size:.1g} of a metric's size)",
        FirstUpdates.held,
    ),
)

# Resumed runs beside the straight runs that saved their checkpoints. If no rule applies, the verdict on the resumed
# runs stays.
RESUMED: tuple[Rule[Resumption], ...] = (
    Rule(
        "resume-off",
        Regime.EXACT,
        Word.REGRESSED,
        "B does not go on where its checkpoint was, and A does: {where}",
        Resumption.off,
    ),
    Rule(
        "resume-further-off",
        Regime.EXACT,
        Word.REGRESSED,
        "B is further off than A is: {where}",
        Resumption.further_off,
    ),
    Rule(
        "resume-fixed",
        Regime.EXACT,
        Word.IMPROVED,
        "B goes on where its checkpoint was, and A does not: {where}",
        Resumption.fixed,
    ),
    Rule(
        "resume-goes-on",
        EVERY,
        Word.SAME,
        "A and B each go on where their checkpoints were, from runs of {source} that differ already ({word}): see there",
        Resumption.both_go_on,
    ),
    Rule(
        "resume-source-differs",
        EVERY,
        Word.INCONCLUSIVE,
        "A and B both resume, but continue from runs of {source} that differ already ({word}): see there",
        Resumption.source_differs,
    ),
)

# What B samples itself in a replayed case.
ROLLOUT: tuple[Rule[Rollout], ...] = (
    Rule(
        "rollout-unrecorded",
        Regime.ONE_SIDED,
        Word.INCONCLUSIVE,
        "the runs did not record what they sampled at the first step",
        Rollout.unrecorded,
    ),
    Rule(
        "rollout-mismatch",
        EVERY,
        Word.REGRESSED,
        "the rollout of B disagrees more with the actor: {worse}",
        Rollout.mismatch,
    ),
    Rule(
        "rollout-bit-equal",
        EVERY,
        Word.IDENTICAL,
        "B samples A's tokens, and all that is known of them is bit-equal",
        Rollout.bit_equal,
    ),
    Rule(
        "rollout-rounding",
        EVERY,
        Word.SAME,
        "B samples A's tokens, and all that is known of them is equal but for rounding",
        Rollout.rounding,
    ),
    Rule(
        "rollout-unknown-noise",
        Regime.SAMPLED,
        Word.INCONCLUSIVE,
        "B samples {what}, and one run of A does not tell whether it repeats itself",
        Rollout.unknown_noise,
    ),
    Rule(
        "rollout-changed",
        Regime.EXACT,
        Word.CHANGED,
        "B samples {what}, and A's own runs sample the same",
        Rollout.changed,
    ),
    Rule(
        "rollout-in-noise",
        Regime.SAMPLED,
        Word.SAME,
        "{varies} in each run, and B's lengths, log-probs and scores differ no more than that",
        Rollout.within_noise,
    ),
    Rule(
        "rollout-open",
        Regime.SAMPLED,
        Word.INCONCLUSIVE,
        "{varies} in each run, and one step does not tell whether B differs more: run REPLAY=0",
        Rollout.open,
    ),
)

# A case of which there is nothing to compare.
UNRUN: tuple[Rule[Unrun], ...] = (
    Rule(
        "config-refused",
        Regime.ONE_SIDED,
        Word.REGRESSED,
        "B refuses what A takes, before it trains: {refusal}",
        Unrun.config_refused,
    ),
    Rule(
        "rollout-refused",
        Regime.ONE_SIDED,
        Word.REGRESSED,
        "B refuses what A takes, before it generates: {refusal}",
        Unrun.rollout_refused,
    ),
    Rule("records-unreadable", Regime.ONE_SIDED, Word.INCOMPARABLE, "{why}", Unrun.records_unreadable),
    Rule(
        "no-baseline",
        Regime.ONE_SIDED,
        Word.INCOMPARABLE,
        "A cannot be the baseline, because in '{run}' {why}",
        Unrun.no_baseline,
    ),
    Rule("not-run", Regime.ONE_SIDED, Word.INCONCLUSIVE, "{runs} did not run: {why}", Unrun.not_run),
)
