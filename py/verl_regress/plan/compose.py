"""Composes overrides with the snapshot's own Hydra config, as the job will, without importing verl.

Read in hydra-core 1.3 (`hydra.compose`) and in verl 0.7.1 to 0.9.1 (`@hydra.main` of each trainer).
"""

import ast
import difflib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import yaml

from verl_regress.base.errors import BadInput, shown
from verl_regress.plan.devices import Devices
from verl_regress.plan.overrides import DETERMINISTIC, OURS, Override
from verl_regress.plan.values import Values

# Text that Hydra and OmegaConf add to their messages, for readers of their manuals.
_BEHIND = re.compile(r"\n(?:See https:|Config search path:| {4}full_key:)")
_NO_KEY = "Could not override '"  # begins Hydra's message
_SHOWN = 3
CONFIG = "verl's config"  # the origin of what no layer sets
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is several times as fast
# Where verl's config names the function. Read in verl 0.7.1 to 0.9.1; in 0.7.1 and 0.8.0 the legacy key exists too.
NEW_REWARD, LEGACY_REWARD = "reward.custom_reward_function", "custom_reward_function"
_COUNTS = tuple(f"trainer.{name}" for name in ("total_training_steps", "total_epochs", "nnodes", "n_gpus_per_node"))


@dataclass(frozen=True)
class Function:
    """The reward function in verl's config: its file and its name, under `key`."""

    path: str
    name: str | None
    key: str

    @classmethod
    def from_config(cls, value: Callable[[str], Any]) -> "Function | None":
        """The function that a job with verl's config loads; `value` gives the value at a dotted key, None if there is none.

        A legacy key that is set replaces the whole new mapping (verl 0.7.1 and 0.8.0, migrate_legacy_reward_impl).
        """
        legacy = any(value(f"{LEGACY_REWARD}.{part}") is not None for part in ("path", "name"))
        key = LEGACY_REWARD if legacy else NEW_REWARD
        path, name = value(f"{key}.path"), value(f"{key}.name")
        return cls(str(path), None if name is None else str(name), key) if path else None

    @property
    def file(self) -> Path:
        """Its path without verl's file://."""
        return Path(self.path.removeprefix("file://"))


@dataclass(frozen=True)
class Composed:
    """The result of composing: the overrides that are kept, the optional ones without a key, and from verl's config its
    YAML, the devices and the reward function.
    """

    overrides: tuple[Override, ...]
    left_out: tuple[Override, ...]
    text: str
    devices: Devices
    reward: Function | None

    @cached_property
    def config(self) -> dict[str, Any]:
        """verl's config as plain data."""
        config: dict[str, Any] = yaml.load(self.text, Loader=_LOADER) or {}
        return config

    def value(self, key: str) -> Any:
        """The config's value at a dotted key; None if there is none."""
        found: Any = self.config
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def origin_of(self, key: str) -> str | None:
        """The layer that set the value at a key, or what is around it; None: it is verl's own."""
        while key and key not in self._origins:
            key = key.rpartition(".")[0]
        return self._origins.get(key)

    def named(self, key: str, value: Any) -> str:
        """A key with its value, as messages name them."""
        return f"{key}={shown(str(value))} (from {self.origin_of(key) or CONFIG})"

    @cached_property
    def _origins(self) -> dict[str, str]:
        return {override.parts()[1]: override.origin for override in self.overrides}


def compose(code_path: Path, code: Mapping[str, Any], module: str, overrides: Sequence[Override]) -> Composed:
    """Compose the config of verl's `module` in the snapshot at `code_path`; `code` is the snapshot's record.

    Raises BadInput for a snapshot without that trainer, and for an override that Hydra cannot parse, whose key the
    config lacks, or whose value it refuses.
    """
    snapshot = f"CODE_ID={code['code_id']} (verl {code['verl_version']})"
    directory, name = _config_of(code_path, module, snapshot)
    # Imported here: Hydra costs the other subcommands more than all the rest together.
    from hydra import initialize_config_dir

    checks = Values(code_path, f"verl {code['verl_version']}")
    with initialize_config_dir(str(directory), version_base=None), _without_verl(), _noted(overrides) as own:
        try:
            config = _compose(name, overrides)
            kept = [override for override in overrides if override not in own.left_out]
            value = partial(_value, config)
            for override in kept:
                if override.text in own.changes and override.origin != OURS:
                    checks.need_type(override.shown, override.text, *own.changes[override.text], value)
                    if not override.optional:
                        checks.need_read(override.shown, override.text, value)
            _check_counts(value, kept)
            return Composed(
                tuple(kept),
                tuple(own.left_out),
                text=_as_yaml(config, kept),
                devices=Devices.from_config(value),
                reward=Function.from_config(value),
            )
        except _HydraRefused as refused:
            raise _sentence(refused, name, own.config, snapshot) from None


def _check_counts(value: Callable[[str], Any], overrides: Sequence[Override]) -> None:
    """Refuse a trainer that could never take a step, or for which verl would count with text. Raises BadInput."""
    for key in _COUNTS:
        count = value(key)
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            given = next((each.shown for each in overrides if each.parts()[1] == key), f"{key}={shown(str(count))}")
            raise BadInput(f"{given} is not usable: {key} must be a whole number of at least 1.")


class _HydraRefused(Exception):
    """Hydra's message, and the override that it is about (None: it does not say)."""

    def __init__(self, error: Exception, culprit: Override | None) -> None:
        said = error.__cause__ if str(error).startswith("Error merging override ") else error
        super().__init__(shown(" ".join(_BEHIND.split(str(said))[0].split()), 500))
        self.lacks_key = str(error).startswith(_NO_KEY)
        self.culprit = culprit


def _culprit(message: str, overrides: Sequence[Override]) -> Override | None:
    """The override that Hydra's message quotes, or else the one with a key that it names."""
    for override in overrides:
        if re.search(rf"(^|\s|'){re.escape(override.text)}('|\s|$)", message):
            return override
    return next((override for override in overrides if f"'{override.parts()[1]}'" in message), None)


def _config_of(code_path: Path, module: str, snapshot: str) -> tuple[Path, str]:
    """The directory and the name of the config, from the snapshot's own `@hydra.main`."""
    file = code_path.joinpath(*module.split(".")).with_suffix(".py")
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise BadInput(
            f"{snapshot} has no {module} that can be read ({error}): name a snapshot that has it, or another workload."
        ) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "hydra.main":
            given = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
            return file.parent / given["config_path"], given["config_name"]
    raise BadInput(
        f"{snapshot} has no @hydra.main in {file}, which would name its config: name another snapshot, or another workload."
    )


@contextmanager
def _without_verl() -> Iterator[None]:
    """Block verl in the submitter, whether the image's or another: Hydra would import it to look into pkg://verl….

    Give OmegaConf (2.3), which builds its loader on `yaml.SafeLoader` for each file, libyaml's, which does the same in C.
    """
    slow, sys.modules["verl"] = yaml.SafeLoader, None  # type: ignore[assignment]  # Python: it cannot be imported
    setattr(yaml, "SafeLoader", _LOADER)  # noqa: B010  # mypy: a type
    try:
        yield
    finally:
        del sys.modules["verl"]
        setattr(yaml, "SafeLoader", slow)  # noqa: B010


@dataclass
class _Own:
    """verl's own config, with Hydra's, to which the overrides are applied; by text of an override what it sets: verl's value, the new one; and
    the optional overrides without a key.
    """

    config: Any = None
    changes: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    left_out: list[Override] = field(default_factory=list)


@contextmanager
def _noted(overrides: Sequence[Override]) -> Iterator[_Own]:
    """Note what Hydra (1.3) applies the overrides to, and leave out optional ones. To compose again without them takes as long as the first time."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.errors import ConfigCompositionException

    apply, own = ConfigLoaderImpl._apply_overrides_to_config, _Own()
    optional = {override.text: override for override in overrides if override.optional}
    needed = [override.parts()[1] for override in overrides if not override.optional]

    def note(given: Any, config: Any) -> None:
        own.config = config
        for each in given:
            if not each.is_delete() and each.value() is not None:
                own.changes[each.input_line] = (_value(config, each.key_or_group), each.value())
        for each in given:
            override = optional.get(each.input_line)
            above = each.key_or_group.rpartition(".")[0]
            if override is not None and override.is_optional_addition and above:
                is_made = any(f"{key}.".startswith(f"{above}.") for key in needed)  # by another override
                if not is_made and not isinstance(_value(config, above), Mapping):
                    own.left_out.append(override)
                    continue
            try:
                apply([each], config)
            except ConfigCompositionException as error:
                if override is None or not str(error).startswith(_NO_KEY):
                    raise
                own.left_out.append(override)

    setattr(ConfigLoaderImpl, "_apply_overrides_to_config", staticmethod(note))  # noqa: B010  # mypy: a method
    try:
        yield own
    finally:
        setattr(ConfigLoaderImpl, "_apply_overrides_to_config", staticmethod(apply))  # noqa: B010


def _compose(name: str, overrides: Sequence[Override]) -> Any:
    from hydra import compose

    try:
        return compose(name, overrides=[override.text for override in overrides])
    except Exception as error:  # apart from its own errors, Hydra raises ValueError and AssertionError
        said = f"{getattr(error, 'override', '')}\n{error}"
        raise _HydraRefused(error, _culprit(said, overrides)) from error


def _as_yaml(config: Any, overrides: Sequence[Override]) -> str:
    """The config with every ${…} filled in, except where only the job's processes have the value."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return str(OmegaConf.to_yaml(config, resolve=True))
    except OmegaConfBaseException as error:
        where = f"{error.full_key}."
        for override in overrides:
            if where.replace("[", ".").startswith(f"{override.parts()[1]}."):
                raise _HydraRefused(error, override) from error
        return f"# ${{…}} is not filled in: {str(error).splitlines()[0]}\n{OmegaConf.to_yaml(_filled_in(config))}"


def _filled_in(config: Any) -> Any:
    """The values of a config, or of a list in it, as plain data, with each ${…} filled in that can be."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    values: Any = OmegaConf.to_container(config)
    for key in values if isinstance(values, dict) else range(len(values)):
        with suppress(OmegaConfBaseException):
            value = config[key]
            values[key] = _filled_in(value) if OmegaConf.is_config(value) else value
    return values


def _value(config: Any, key: str) -> Any:
    """The config's value at a dotted key; None if there is none, or only the job's processes have it."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.select(config, key)
    except OmegaConfBaseException:
        return None


def _sentence(refused: _HydraRefused, name: str, config: Any, snapshot: str) -> BadInput:
    culprit = refused.culprit
    if culprit is None:
        return BadInput(f"The overrides do not fit {name} of {snapshot}, as Hydra says ({refused}): fix them.")
    given = culprit.shown
    if not refused.lacks_key:
        return BadInput(
            f"{given} does not fit {name} of {snapshot}, as Hydra says ({refused}): fix it, leave it out, or quote its value as in key='a, b'."
        )
    if culprit.origin == DETERMINISTIC:
        return BadInput(
            f"{DETERMINISTIC} needs {culprit.parts()[1]}, which {name} of {snapshot} lacks: name a snapshot whose verl has it, or "
            f"leave DETERMINISTIC out."
        )
    near = _nearest(config, culprit.parts()[1])
    cure = f"did you mean {' or '.join(near)}? To add" if near else "to add"
    return BadInput(
        f"{given} sets a key that {name} of {snapshot} lacks: {cure} a new key, write '+{shown(culprit.text)}'."
    )


def _nearest(config: Any, key: str) -> list[str]:
    """The real keys that `key` may have meant: those with the same end first, then the most similar."""
    from omegaconf import OmegaConf

    found = dict.fromkeys(key for key, _ in leaves(OmegaConf.to_container(config)))
    keys = [key for key in found if not key.startswith("hydra.")]
    alike = [other for other in keys if other.split(".")[-1] == key.split(".")[-1]]
    near = [
        *difflib.get_close_matches(key, alike, _SHOWN, cutoff=0.3),
        *difflib.get_close_matches(key, keys, _SHOWN, cutoff=0.75),
    ]
    return list(dict.fromkeys(near))[:_SHOWN]


def leaves(node: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted keys of a document, each with its value; a value in a list has the key of the list."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from leaves(value, f"{above}.{key}" if above else str(key))
    elif isinstance(node, list) and node:
        for value in node:
            yield from leaves(value, above)
    else:
        yield above, node
