"""Hydra overrides: where they come from, and how the layers become one list."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from verl_regress.base.errors import BadInput, Refusals, shown
from verl_regress.base.workloads import FIXED_KEYS, Workload
from verl_regress.plan import values

# Origins: keys that the knob adds; what a JobSpec's own fields set, such as its model; the seeds that the knob sets.
DETERMINISTIC, OURS, TRAIN_SEED = "DETERMINISTIC=1", "verl-regress", "TRAIN_SEED"
WITH_SEED = f", with {TRAIN_SEED}"  # ends the origin of loggers that got the file logger
LOGGER = "trainer.logger"
_LOGGERS = re.compile(rf"(\+{{0,2}}{LOGGER}=)(?:\[\s*([^\[\]]*?)\s*\]|(\w+))")
# Only ~key needs no value.
_OVERRIDE = re.compile(r"(?P<prefix>\+\+?|~)?(?P<key>[^=\s?+~-][^=\s]*)(?P<value>=.*)?", re.DOTALL)
# A word of OVERRIDES. Spaces end it, except in Hydra's quotes or after its backslash (hydra-core 1.3, OverrideLexer.g4). Quotes are kept:
# they are Hydra's. An unclosed quote takes the rest, and Hydra reports what is wrong.
_WORD = re.compile(r"""(?:\\.|'(?:\\.|[^\\'])*(?:'|\Z)|"(?:\\.|[^\\"])*(?:"|\Z)|\\\Z|[^\s\\'"])+""", re.DOTALL)
# How many workers and GPUs a cluster has, or a multiple of it: ${workers}, ${8*gpus}.
_COUNT = re.compile(r"\$\{(?:(\d{1,6})\*)?(workers|gpus_per_worker|gpus)\}")


@dataclass(frozen=True)
class Override:
    """One Hydra override and the layer it comes from.

    An optional one is left out if its key does not exist, or for + and ++ the mapping around it. No other layer may change a fixed one.
    """

    text: str
    origin: str
    optional: bool = False
    fixed: bool = False

    @property
    def shown(self) -> str:
        """As messages show it."""
        return f"The override {shown(repr(self.text))} (from {self.origin})"

    def parts(self) -> tuple[str, str]:
        """Hydra's prefix (+, ++, ~ or nothing) and the dotted key. Raises BadInput."""
        if self.origin != OURS:
            values.need_no_shell(self.shown, self.text)
        match = _OVERRIDE.fullmatch(self.text)
        if match is None and self.text.startswith("-"):
            raise BadInput(
                f"{self.shown} is an option of Hydra's command line, and the workload names verl's config: leave it out, and for Megatron "
                "write model_engine=megatron, or for SFT engine=megatron and optim=megatron."
            )
        if match is None or (match["value"] is None and match["prefix"] != "~"):
            quotes = ", a value with spaces in quotes" if self.origin == "OVERRIDES" else ""
            raise BadInput(f"{self.shown} is not Hydra's key=value: write it as a.b.c=value{quotes}.")
        return match["prefix"] or "", match["key"]


def of_command_line(file: str | None, text: str, knob: str) -> tuple[Override, ...]:
    """The overrides in the `text` of OVERRIDES_FILE, one per line without quoting, then those in the knob OVERRIDES, separated by white space.

    Empty lines and lines that begin with # are skipped.
    """
    lines = enumerate(text.replace("\r\n", "\n").split("\n"), start=1)
    kept = [(number, line) for number, line in lines if line.strip() and not line.startswith("#")]
    of_file = (Override(line, f"OVERRIDES_FILE {file} line {number}") for number, line in kept)
    return (*of_file, *(Override(word, "OVERRIDES") for word in _WORD.findall(knob)))


def of_shape(text: str, workers: int, gpus_per_worker: int) -> str:
    """`text` with the numbers of a cluster's workers and GPUs filled in; every other ${…} is left to Hydra."""
    counts = {"workers": workers, "gpus_per_worker": gpus_per_worker, "gpus": workers * gpus_per_worker}
    return _COUNT.sub(lambda found: str(int(found[1] or 1) * counts[found[2]]), text)


def of_profile(workload: Workload, by_workload: Mapping[str, Sequence[str]], origin: str) -> Iterator[list[Override]]:
    """The layers from lists in the base config; ? makes an override optional, ! fixed."""
    for key in workload.profile_keys:
        yield [
            Override(text.lstrip("?!"), origin, optional=text[:1] == "?", fixed=text[:1] == "!")
            for text in by_workload.get(key, [])
        ]


def merge(*layers: Sequence[Override], wrong: Refusals) -> list[Override]:
    """Later layers win key by key, in the order of first mention. Keys of FIXED_KEYS stay as in the first layer.

    A key that one layer adds (+, ++) stays an added key when a later one only sets it: Hydra would refuse it otherwise.
    A key that is added and then deleted (~) is left out, for the same reason. What cannot be used is left out, and noted in `wrong`.
    """
    merged: dict[str, Override] = {}
    for number, layer in enumerate(layers):
        for override in layer:
            with wrong.noted():
                _add(merged, override, is_ours=number == 0)
    return list(merged.values())


def _add(merged: dict[str, Override], override: Override, *, is_ours: bool) -> None:
    """Let an override win over what `merged` has for its key. Raises BadInput for one that cannot be used."""
    prefix, key = override.parts()
    before = merged.get(key)
    if not is_ours and any(f"{fixed}.".startswith(f"{key}.") for fixed in FIXED_KEYS):
        raise BadInput(f"{override.shown} is refused: a job writes only into its own directory; leave it out.")
    if before is not None and before.fixed and override.text != before.text:
        raise BadInput(f"{override.shown} is refused: here it is always {before.text} ({before.origin}); leave it out.")
    earlier = before.parts()[0] if before is not None else ""
    if (earlier, prefix) == ("+", "~"):
        del merged[key]
        return
    kept = earlier.replace("~", "") if not prefix else ""
    merged[key] = replace(override, text=kept + override.text)


def with_file_logger(override: Override) -> Override:
    """An override of trainer.logger with verl's file logger, by which runs with TRAIN_SEED are compared; any other one as it is."""
    match = _LOGGERS.fullmatch(override.text)
    if match is None or re.search(r"\bfile\b", override.text):
        return override
    loggers = ",".join(filter(None, (match[2] or match[3], "file")))
    return replace(override, text=f"{match[1]}[{loggers}]", origin=f"{override.origin}{WITH_SEED}")
