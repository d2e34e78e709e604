"""A case of which there is nothing to compare: B's config is refused, or runs are missing, unreadable or unusable."""

from collections.abc import Sequence
from dataclasses import dataclass

from verl_verdict.decide.rules import Evidence, Regime
from verl_verdict.decide.verdicts import Verdict, undecided


@dataclass(frozen=True)
class Unrun:
    """What is known of such a case. What does not hold is left out."""

    case: str
    refusal: str | None = None  # why B's config refuses what A takes
    is_rollout: bool = False  # the case is the rollout half: its runs generate, and do not train
    unreadable: str | None = None  # why the records cannot be read
    baseline: tuple[str, str] | None = None  # a run of A, and why it is no baseline
    missing: Sequence[str] = ()  # runs of which there is no job
    why: str = ""  # why they did not run
    regime = Regime.ONE_SIDED

    @property
    def base(self) -> Verdict:
        """The verdict so far."""
        return undecided(self.case, how="nothing was compared")

    def config_refused(self) -> Evidence | None:
        """B's config refuses what A trains with."""
        if self.refusal is None or self.is_rollout:
            return None
        return Evidence({"refusal": self.refusal}, how="the config, composed by A and by B")

    def rollout_refused(self) -> Evidence | None:
        """B's config refuses what A generates with."""
        return None if self.refusal is None else Evidence({"refusal": self.refusal})

    def records_unreadable(self) -> Evidence | None:
        """A record of A or B cannot be read."""
        if self.unreadable is None:
            return None
        return Evidence({"why": self.unreadable}, how="the records cannot be read")

    def no_baseline(self) -> Evidence | None:
        """A run of A is unusable, whatever B does."""
        if self.baseline is None:
            return None
        run, why = self.baseline
        return Evidence({"run": run, "why": why}, how="the records of A")

    def not_run(self) -> Evidence | None:
        """Runs are missing."""
        return Evidence({"runs": " and ".join(self.missing), "why": self.why})
