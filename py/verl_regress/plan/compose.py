"""Composes overrides with the snapshot's own Hydra config, as the job will, without importing verl.

Read in hydra-core 1.3 (`hydra.compose`) and in verl 0.7.1 to 0.9.1 (`@hydra.main` of each trainer).
"""

import ast
import difflib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_regress.base.errors import BadInput, shown
from verl_regress.base.files import value_at
from verl_regress.plan.devices import Devices
from verl_regress.plan.overrides import DETERMINISTIC, OURS, Override
from verl_regress.plan.values import Values

# Text that Hydra and OmegaConf add to their messages, for readers of their manuals.
_BEHIND = re.compile(r"\n(?:See https:|Config search path:| {4}full_key:)")
_NO_KEY = "Could not override '"  # begins Hydra's message
_SHOWN = 3
CONFIG = "verl's config"  # the origin of what no layer sets
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is several times as fast
_COUNTS = tuple(f"trainer.{name}" for name in ("total_training_steps", "total_epochs", "nnodes", "n_gpus_per_node"))


@dataclass(frozen=True)
class Composed:
    """The result of composing: the overrides that are kept, the optional ones without a key, and verl's config as YAML."""

    overrides: tuple[Override, ...]
    left_out: tuple[Override, ...]
    text: str

    @cached_property
    def config(self) -> dict[str, Any]:
        """verl's config as plain data."""
        config: dict[str, Any] = yaml.load(self.text, Loader=_LOADER) or {}
        return config

    @cached_property
    def devices(self) -> Devices:
        """What the job takes from the cluster."""
        return Devices.from_config(self.value)

    def value(self, key: str) -> Any:
        """The config's value at a dotted key; None if there is none."""
        return value_at(self.config, key)

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

    Raises BadInput for a snapshot without that trainer, and for an override that Hydra, verl's config or `Values` refuses.
    """
    snapshot = f"CODE_ID={code['code_id']} (verl {code['verl_version']})"
    directory, name = _config_of(code_path, module, snapshot)
    checks, where = Values(code_path, f"verl {code['verl_version']}"), f"{name} of {snapshot}"
    with hydra.initialize_config_dir(str(directory), version_base=None), _noting_what_applies(overrides) as own:
        try:
            config = hydra.compose(name, overrides=[override.text for override in overrides])
        except Exception as error:  # apart from its own errors, Hydra raises ValueError and AssertionError
            raise _refusal(error, overrides, own.config, where) from None
    kept, value = tuple(override for override in overrides if override not in own.left_out), partial(_value, config)
    for override in kept:
        if override.text in own.changes and override.origin != OURS:
            checks.need_type(override.shown, override.text, *own.changes[override.text], value)
            if not override.optional:
                checks.need_read(override.shown, override.text, value)
    composed = Composed(kept, tuple(own.left_out), _as_yaml(config, kept, where))
    for key in _COUNTS:
        count = composed.value(key)
        if count is not None and (type(count) is not int or count < 1):
            raise BadInput(f"{composed.named(key, count)} is not usable: it must be a whole number of at least 1.")
    return composed


def _config_of(code_path: Path, module: str, snapshot: str) -> tuple[Path, str]:
    """The directory and the name of the config, from the snapshot's own `@hydra.main`."""
    file = code_path.joinpath(*module.split(".")).with_suffix(".py")
    try:
        calls = [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.Call)]
        [hydra_main] = [node for node in calls if ast.unparse(node.func) == "hydra.main"]
    except (OSError, SyntaxError, ValueError) as error:
        raise BadInput(
            f"{snapshot} has no {module} with @hydra.main that can be read ({error}): name a snapshot that has it, or another workload."
        ) from None
    given = {word.arg: ast.literal_eval(word.value) for word in hydra_main.keywords}
    return file.parent / given["config_path"], given["config_name"]


@dataclass
class _Own:
    """verl's own config, with Hydra's; by text of an override verl's value and the new one; the optional overrides without a key."""

    config: Any = None
    changes: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    left_out: list[Override] = field(default_factory=list)


@contextmanager
def _noting_what_applies(overrides: Sequence[Override]) -> Iterator[_Own]:
    """Note what Hydra (1.3) applies the overrides to, and leave out optional ones. To compose again without them takes as long as the first time.

    verl is blocked, whether the image's or another: Hydra would import it to look into pkg://verl…. And OmegaConf (2.3), which builds its
    loader on `yaml.SafeLoader` for each file, gets libyaml's, which does the same in C.
    """
    loader: Any = ConfigLoaderImpl
    yaml_module: Any = yaml
    apply, slow, own = loader._apply_overrides_to_config, yaml.SafeLoader, _Own()
    optional = {override.text: override for override in overrides if override.optional}
    needed = [f"{override.parts()[1]}." for override in overrides if not override.optional]

    def note(given: Any, config: Any) -> None:
        own.config = config
        for each in given:
            if not each.is_delete() and each.value() is not None:
                own.changes[each.input_line] = (_value(config, each.key_or_group), each.value())
        for each in given:
            override, above = optional.get(each.input_line), each.key_or_group.rpartition(".")[0]
            is_there = isinstance(_value(config, above), Mapping) or any(key.startswith(f"{above}.") for key in needed)
            if override is None:
                apply([each], config)
            elif above and "+" in override.parts()[0] and not is_there:  # nor does another override make it
                own.left_out.append(override)
            else:
                try:
                    apply([each], config)
                except ConfigCompositionException as error:
                    if not str(error).startswith(_NO_KEY):
                        raise
                    own.left_out.append(override)

    loader._apply_overrides_to_config, yaml_module.SafeLoader = staticmethod(note), _LOADER
    sys.modules["verl"] = None  # type: ignore[assignment]  # Python: it cannot be imported
    try:
        yield own
    finally:
        loader._apply_overrides_to_config, yaml_module.SafeLoader = staticmethod(apply), slow
        del sys.modules["verl"]


def _as_yaml(config: Any, overrides: Sequence[Override], where: str) -> str:
    """The config with every ${…} filled in, except where only the job's processes have the value."""
    try:
        return str(OmegaConf.to_yaml(config, resolve=True))
    except OmegaConfBaseException as error:
        key = f"{error.full_key}.".replace("[", ".")
        for override in overrides:
            if key.startswith(f"{override.parts()[1]}."):
                raise _does_not_fit(error, override, where) from None
        return f"# ${{…}} is not filled in: {str(error).splitlines()[0]}\n{OmegaConf.to_yaml(_filled_in(config))}"


def _filled_in(config: Any) -> Any:
    """The values of a config, or of a list in it, as plain data, with each ${…} filled in that can be."""
    values: Any = OmegaConf.to_container(config)
    for key in values if isinstance(values, dict) else range(len(values)):
        with suppress(OmegaConfBaseException):
            value = config[key]
            values[key] = _filled_in(value) if OmegaConf.is_config(value) else value
    return values


def _value(config: Any, key: str) -> Any:
    """The config's value at a dotted key; None if there is none, or only the job's processes have it."""
    try:
        return OmegaConf.select(config, key)
    except OmegaConfBaseException:
        return None


def _refusal(error: Exception, overrides: Sequence[Override], config: Any, where: str) -> BadInput:
    """Hydra's error as a sentence about the override that it quotes, or else the one with a key that it names."""
    said = f"{getattr(error, 'override', '')}\n{error}"
    quoted = [each for each in overrides if re.search(rf"(^|\s|'){re.escape(each.text)}('|\s|$)", said)]
    culprit = next(iter([*quoted, *(each for each in overrides if f"'{each.parts()[1]}'" in said)]), None)
    if culprit is None or not str(error).startswith(_NO_KEY):
        return _does_not_fit(error, culprit, where)
    key = culprit.parts()[1]
    if culprit.origin == DETERMINISTIC:
        cure = "name a snapshot whose verl has it, or leave DETERMINISTIC out"
        return BadInput(f"{DETERMINISTIC} needs {key}, which {where} lacks: {cure}.")
    near = _nearest(config, key)
    cure = f"did you mean {' or '.join(near)}? To add" if near else "to add"
    return BadInput(f"{culprit.shown} sets a key that {where} lacks: {cure} a new key, write '+{shown(culprit.text)}'.")


def _does_not_fit(error: Exception, culprit: Override | None, where: str) -> BadInput:
    cause = error.__cause__ if str(error).startswith("Error merging override ") else error
    words = shown(" ".join(_BEHIND.split(str(cause))[0].split()), 500)
    if culprit is None:
        return BadInput(f"The overrides do not fit {where}, as Hydra says ({words}): fix them.")
    cure = "fix it, leave it out, or quote its value as in key='a, b'"
    return BadInput(f"{culprit.shown} does not fit {where}, as Hydra says ({words}): {cure}.")


def _nearest(config: Any, key: str) -> list[str]:
    """The real keys that `key` may have meant: those with the same end first, then the most similar."""
    keys = [each for each, _ in leaves(OmegaConf.to_container(config)) if not each.startswith("hydra.")]
    alike = [each for each in keys if each.split(".")[-1] == key.split(".")[-1]]
    near = difflib.get_close_matches(key, alike, _SHOWN, 0.3) + difflib.get_close_matches(key, keys, _SHOWN, 0.75)
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
