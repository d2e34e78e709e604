"""Composes overrides with the snapshot's own Hydra config, as the job will, without importing verl.

Read in hydra-core 1.3 (`hydra.compose`) and in verl 0.7.1 to 0.9.1 (`@hydra.main` of each trainer).
"""

import ast
import difflib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_regress.base.errors import BadInput, Refusals, shown
from verl_regress.base.files import value_at
from verl_regress.base.workloads import FIXED_KEYS
from verl_regress.plan.devices import Devices
from verl_regress.plan.overrides import DETERMINISTIC, OURS, Override
from verl_regress.plan.source import Source
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
    """The result of composing: the overrides that are kept, the optional ones without a key, verl's config as YAML, and the keys of verl's
    own config that have another value now.
    """

    overrides: tuple[Override, ...]
    left_out: tuple[Override, ...]
    text: str
    changed: frozenset[str] = frozenset()

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


def compose(
    code_path: Path, code: Mapping[str, Any], module: str, overrides: Sequence[Override], wrong: Refusals
) -> Composed:
    """Compose the config of verl's `module` in the snapshot at `code_path`; `code` is the snapshot's record.

    An override that Hydra, verl's config or `Values` refuses is noted in `wrong`, and the config is composed without it where it must be.
    Raises BadInput for a snapshot without that trainer, and for overrides of which Hydra does not say which one it refuses.
    """
    snapshot = f"CODE_ID={code['code_id']} (verl {code['verl_version']})"
    directory, name = _config_of(code_path, module, snapshot)
    where = f"{name} of {snapshot}"
    with hydra.initialize_config_dir(str(directory), version_base=None), _noting_what_applies(overrides) as own:
        config, given = _composed_by_hydra(name, overrides, own, where, wrong)
    source, release = Source(code_path), f"verl {code['verl_version']}"
    checks = Checks(Values(source, release), partial(_value, config))
    for override, error in _to_tell(own.refused):
        with wrong.noted():
            raise _refusal(error, override, own, where, checks)
    gone = [*own.left_out, *(override for override, _ in own.refused)]
    applied = [override for override in given if override not in gone]
    kept = tuple(override for override in applied if _is_taken(override, own, config, checks, wrong))
    changes = ((each.parts(), own.changes[each.text]) for each in kept if each.text in own.changes)
    changed = frozenset(key for (prefix, key), (default, value) in changes if not prefix and default != value)
    composed = Composed(kept, tuple(own.left_out), _as_yaml(config, kept, where, wrong), changed)
    for key in _COUNTS:
        count = composed.value(key)
        if count is not None and (type(count) is not int or count < 1):
            with wrong.noted():
                raise BadInput(f"{composed.named(key, count)} is not usable: it must be a whole number of at least 1.")
    return composed


def _to_tell(refused: Sequence[tuple[Override, Exception]]) -> list[tuple[Override, Exception]]:
    """All of them, but only the first of those that DETERMINISTIC=1 writes: the user can change none of these alone."""
    by_whom = {
        (each.origin if each.origin == DETERMINISTIC else each.text): (each, why) for each, why in reversed(refused)
    }
    return [pair for pair in refused if pair in by_whom.values()]


def _is_taken(override: Override, own: "_Own", config: Any, checks: "Checks", wrong: Refusals) -> bool:
    """Whether the override passes the checks; otherwise that is noted, and `config` gets verl's own value again."""
    default, value = own.changes.get(override.text, (None, None))
    if value is None or override.origin == OURS:
        return True
    before = len(wrong.found)
    with wrong.noted():
        checks.need(override, default, value)
    if len(wrong.found) == before:
        return True
    OmegaConf.update(config, override.parts()[1], default, merge=False, force_add=True)
    return False


def _composed_by_hydra(
    name: str, overrides: Sequence[Override], own: "_Own", where: str, wrong: Refusals
) -> tuple[Any, list[Override]]:
    """The config, and the overrides that Hydra can read and apply to its list of defaults; the others are noted in `wrong`."""
    given = list(overrides)
    while True:
        own.left_out.clear()
        own.refused.clear()
        try:
            return hydra.compose(name, overrides=[override.text for override in given]), given
        except Exception as error:  # apart from its own errors, Hydra raises ValueError and AssertionError
            culprit = _culprit(error, given)
            refusal = _does_not_fit(error, culprit, where)
            if culprit is None:
                raise refusal from None
            wrong.found += refusal.sentences
            given.remove(culprit)


@dataclass(frozen=True)
class Checks:
    """What an override of the user must pass; `value` gives the composed config's value at a key."""

    values: Values
    value: Callable[[str], Any]

    def need(self, override: Override, default: Any, value: Any) -> None:
        """Raise BadInput for a `value` that verl's config or code does not take where it has `default`."""
        self.values.need_type(override.shown, override.text, default, value, self.value)
        if override.optional or override.fixed:
            return
        self.values.need_read(override.shown, override.text, self.value)
        prefix, key = override.parts()
        if prefix != "++":
            self.values.words.need(override.shown, key, default, value, self.value)

    def passes(self, key: str, override: Override, value: Any) -> bool:
        """Whether the override would pass them with this key instead of its own, as what we advise must; `value` is its value."""
        try:
            instead = replace(override, text=f"{key}={override.text.partition('=')[2]}")
            self.need(instead, self.value(key), value)
        except BadInput:
            return False
        return not any(f"{fixed}.".startswith(f"{key}.") for fixed in FIXED_KEYS)


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
    """What the `given` overrides apply to: verl's own config, with Hydra's; by text of an override verl's value and the new one; the
    optional overrides without a key; and the overrides that Hydra cannot apply, with its errors.
    """

    given: Sequence[Override]
    config: Any = None
    changes: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    left_out: list[Override] = field(default_factory=list)
    refused: list[tuple[Override, Exception]] = field(default_factory=list)

    @cached_property
    def _by_text(self) -> dict[str, Override]:
        return {override.text: override for override in self.given}

    @cached_property
    def _needed(self) -> list[str]:
        """The keys that overrides which are not optional set, each with a dot at its end."""
        return [f"{override.parts()[1]}." for override in self.given if not override.optional]

    def note(self, apply: Callable[[Any, Any], None], parsed: Sequence[Any], config: Any) -> None:
        """Let Hydra `apply` to verl's config the overrides, which it has `parsed`, one by one, and note what becomes of each."""
        self.config = config
        for each in parsed:
            if not each.is_delete() and each.value() is not None:
                self.changes[each.input_line] = (_value(config, each.key_or_group), each.value())
        for each in parsed:
            override = self._by_text[each.input_line]
            if self._has_no_place(override, each.key_or_group.rpartition(".")[0]):
                self.left_out.append(override)
            else:
                self._apply(apply, override, each)

    def _has_no_place(self, override: Override, above: str) -> bool:
        """Whether an optional override adds a key where verl's config has no mapping `above` it, and no needed override makes one."""
        if not override.optional or not above or "+" not in override.parts()[0]:
            return False
        is_made = any(key.startswith(f"{above}.") for key in self._needed)
        return not is_made and not isinstance(_value(self.config, above), Mapping)

    def _apply(self, apply: Callable[[Any, Any], None], override: Override, parsed: Any) -> None:
        """Let Hydra apply one override; if it cannot, the config stays as it was."""
        below = _value_above(self.config, parsed.key_or_group)
        try:
            apply([parsed], self.config)
        except Exception as error:  # apart from its own errors, Hydra raises ValueError and AssertionError
            _restore(self.config, below)
            if override.optional and str(error).startswith(_NO_KEY):
                self.left_out.append(override)
            else:
                self.refused.append((override, error))


@contextmanager
def _noting_what_applies(overrides: Sequence[Override]) -> Iterator[_Own]:
    """Note what Hydra (1.3) applies the overrides to, and leave out optional ones. To compose again without them takes as long as the first time.

    verl is blocked, whether the image's or another: Hydra would import it to look into pkg://verl…. And OmegaConf (2.3), which builds its
    loader on `yaml.SafeLoader` for each file, gets libyaml's, which does the same in C.
    """
    loader: Any = ConfigLoaderImpl
    yaml_module: Any = yaml
    apply, slow, own = loader._apply_overrides_to_config, yaml.SafeLoader, _Own(overrides)
    loader._apply_overrides_to_config, yaml_module.SafeLoader = staticmethod(partial(own.note, apply)), _LOADER
    sys.modules["verl"] = None  # type: ignore[assignment]  # Python: it cannot be imported
    try:
        yield own
    finally:
        loader._apply_overrides_to_config, yaml_module.SafeLoader = staticmethod(apply), slow
        del sys.modules["verl"]


def _value_above(config: Any, key: str) -> tuple[str, Any] | None:
    """A part of the key that has a value which is no mapping, with that value: Hydra (1.3) empties it before it refuses the key."""
    parts = key.split(".")
    above = [".".join(parts[:depth]) for depth in range(1, len(parts))]
    values = ((name, _value(config, name)) for name in above)
    return next((each for each in values if each[1] is not None and not isinstance(each[1], Mapping)), None)


def _restore(config: Any, below: tuple[str, Any] | None) -> None:
    if below is not None:
        OmegaConf.update(config, *below, merge=False, force_add=True)


def _as_yaml(config: Any, overrides: Sequence[Override], where: str, wrong: Refusals) -> str:
    """The config with every ${…} filled in, except where only the job's processes have the value."""
    try:
        return str(OmegaConf.to_yaml(config, resolve=True))
    except OmegaConfBaseException as error:
        key = f"{error.full_key}.".replace("[", ".")
        for override in overrides if not wrong.found else ():  # or it may fail because of those that are left out
            if key.startswith(f"{override.parts()[1]}."):
                wrong.found += _does_not_fit(error, override, where).sentences
                break
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


def _culprit(error: Exception, overrides: Sequence[Override]) -> Override | None:
    """The override that Hydra's error quotes, or else the one with a key that it names."""
    said = f"{getattr(error, 'override', '')}\n{error}"
    quoted = [each for each in overrides if re.search(rf"(^|\s|'){re.escape(each.text)}('|\s|$)", said)]
    return next(iter([*quoted, *(each for each in overrides if f"'{each.parts()[1]}'" in said)]), None)


def _refusal(error: Exception, culprit: Override, own: _Own, where: str, checks: Checks) -> BadInput:
    """Hydra's error about an override as a sentence, in which all advice passes `checks`."""
    if not str(error).startswith(_NO_KEY):
        return _does_not_fit(error, culprit, where)
    key = culprit.parts()[1]
    if culprit.origin == DETERMINISTIC:
        cure = "name a snapshot whose verl has it, or leave DETERMINISTIC out"
        return BadInput(f"{DETERMINISTIC} needs {key}, which {where} lacks: {cure}.")
    value = own.changes.get(culprit.text, (None, None))[1]
    near = [each for each in _nearest(own.config, key) if checks.passes(each, culprit, value)][:_SHOWN]
    cures = [f"did you mean {' or '.join(near)}?"] if near else []
    if checks.passes(f"+{key}", culprit, value):
        cures.append(f"{'To' if near else 'to'} add a new key, write '+{shown(culprit.text)}'.")
    return BadInput(f"{culprit.shown} sets a key that {where} lacks: {' '.join(cures) or 'leave it out.'}")


def _does_not_fit(error: Exception, culprit: Override | None, where: str) -> BadInput:
    cause = error.__cause__ if str(error).startswith("Error merging override ") else error
    words = shown(" ".join(_BEHIND.split(str(cause))[0].split()), 500)
    if culprit is None:
        return BadInput(f"The overrides do not fit {where}, as Hydra says ({words}): fix them.")
    cure = "fix it, leave it out, or quote its value as in key='a, b'"
    return BadInput(f"{culprit.shown} does not fit {where}, as Hydra says ({words}): {cure}.")


def _nearest(config: Any, key: str) -> list[str]:
    """The real keys that `key` may have meant: those with the same end first, then the most similar."""
    own = (each for each, _ in leaves(OmegaConf.to_container(config)) if not each.startswith("hydra."))
    keys = [each for each in own if not each.endswith("._target_")]
    alike = [each for each in keys if each.split(".")[-1] == key.split(".")[-1]]
    near = difflib.get_close_matches(key, alike, _SHOWN, 0.3) + difflib.get_close_matches(key, keys, _SHOWN, 0.75)
    return list(dict.fromkeys(near))


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
