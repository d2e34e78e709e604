"""What overrides set, against verl's own config: text of a shell or of Python, values of another type, and keys that verl does not read.

A wrong refusal is worse than a missed mistake: null is always accepted, and a key that is new to the config has no type.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from verl_regress.base.errors import BadInput, shown
from verl_regress.plan.source import Source
from verl_regress.plan.words import Words

# What only a shell fills in. OmegaConf's own are ${a.b}, ${resolver:…} and ${key}, and no key of verl's is in capitals.
_SHELL = re.compile(
    r"\$[@*]|\$[A-Za-z_]\w+|\$\([a-z]{2}[^)]*\)?|\$\{(?:[A-Z][A-Z0-9_]*|\w+(?::[-=+?]|[%#/^,\[])[^}]*)\}"
)
_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\\s*\Z")
_REFERENCE = re.compile(r"(?<!\\)\$\{(\w+)\}")
_FLAGS = {"true": "True", "yes": "True", "on": "True", "false": "False", "no": "False", "off": "False"}
_LIST = re.compile(r"""\[\s*['"\[].*\]|\[[^\[\]]*,[^\[\]]*\]""", re.DOTALL)  # not a token such as [INST]

# Old keys, the longest first, and the new ones, which verl copied them to up to 0.8.0: 0.9.1 and main (1dda039b) still have the function,
# but their trainers do not call it. None: there is no new key.
_MIGRATION = "migrate_legacy_reward_impl("
_MOVED = {
    "reward_model.reward_loop_module_path": "reward.reward_manager.module.path",
    "reward_model.reward_loop_class_name": "reward.reward_manager.module.name",
    "reward_model.reward_loop_source": "reward.reward_manager.source",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.reward_kwargs": "reward.reward_kwargs",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.model": None,
    "reward_model": "reward.reward_model",
    "custom_reward_function": "reward.custom_reward_function",
    "sandbox_fusion": "reward.sandbox_fusion",
}


def need_no_shell(given: str, text: str) -> None:
    """Raise BadInput if the override's `text` has what a shell fills in or takes away; messages call the override `given`."""
    if _CONTINUED.search(text):
        raise BadInput(f"{given} ends in a backslash, which is your shell's: leave it out.")
    value = text.partition("=")[2] or text
    found = None if value.startswith("'") else _SHELL.search(value)  # a shell fills in nothing in single quotes either
    if found is not None:
        raise _of_shell(given, found[0])


def _of_shell(given: str, found: str) -> BadInput:
    cure = "leave it out" if found in ("$@", "$*") else "write its value"
    return BadInput(f"{given} has {shown(found)}, which only your shell fills in: {cure}.")


class Values:
    """Checks what overrides set in the config of the verl in `source`, which messages call `release`."""

    def __init__(self, source: Source, release: str) -> None:
        self._source, self._release, self.words = source, release, Words(source, release)

    def need_type(self, given: str, text: str, default: Any, value: Any, config: Callable[[str], Any]) -> None:
        """Raise BadInput if a `value` is not of the type of verl's `default`, or, where that is null or a text, is Python's.

        `text` is the override, which messages call `given`; `config` gives the composed config's value at a key, None if there is none.
        """
        key = text.partition("=")[0]
        unknown = next((name for name in _REFERENCE.findall(text) if config(name) is None), None)
        if unknown is not None:
            raise _of_shell(given, f"${{{unknown}}}")
        if value is None or "${" in text or ".env_vars." in key:  # variables are texts
            return
        like = _like(value, _kind(default))
        if self._fits(key, _kind(default), value, like):
            return
        right = "null" if like == "null" else _FLAGS.get(str(value).lower(), str(value).strip())
        raise _of_another_type(given, default, value, like, f"{key}={shown(right)}")

    def _fits(self, key: str, wanted: str, value: Any, like: str) -> bool:
        """Whether verl takes a `value`, which looks `like` that kind, where it wants this kind."""
        kind = _kind(value)
        match wanted:
            case "a flag":
                return kind == "a flag" or (kind == "a number" and value in (0, 1))
            case "a number":
                return kind in ("a number", "a flag") or (like == "a text" and self._takes_text(key, value))
            case "a list":  # verl takes one text, too
                return kind == "a list" or (kind == "a text" and value != "" and like not in ("null", "a list"))
            case "a mapping":
                return kind == "a mapping"
        is_flag = wanted == "null" and value in ("True", "False")
        return kind != "a text" or not (is_flag or like in ("null", "a list"))

    def _takes_text(self, key: str, word: str) -> bool:
        """Whether verl has this text, as in `save_freq == "after_each_epoch"`, or declares the key as one, as in `threshold: str | float`."""
        name = re.escape(key.rpartition(".")[2])
        has_it = any(f"{quote}{word}{quote}" in self._source.text for quote in "'\"")
        return len(word.split()) == 1 and (has_it or bool(re.search(rf"\n +{name}:[^=\n]*\bstr\b", self._source.text)))

    def need_read(self, given: str, text: str, config: Callable[[str], Any]) -> None:
        """Raise BadInput if an override sets a key that verl's config has and its code does not read; arguments as of `need_type`."""
        left, _, right = text.partition("=")
        key = left.lstrip("+")
        old = next((old for old in _MOVED if f"{key}.".startswith(f"{old}.")), None)
        if old is not None and config("reward.custom_reward_function") is not None and not self._copies_old_keys:
            cure = self._moved(left.removesuffix(key), f"{_MOVED[old]}{key.removeprefix(old)}", right, config)
            cure = cure if _MOVED[old] else "leave it out"
            raise BadInput(f"{given} sets a key that {self._release} no longer reads: {cure}.")
        above, _, leaf = key.rpartition(".")
        around = config(above) if above and key == left and not self._names(leaf) else None
        # If verl names nearly all of many keys around it, it reads them one by one; other mappings go to a library as they are.
        others = [name for name in map(str, around) if name != leaf] if isinstance(around, Mapping) else []
        if len(others) >= 10 and sum(map(self._names, others)) >= 0.9 * len(others):
            raise BadInput(
                f"{given} sets a key that no Python file of {self._release} names: leave it out, or write '++{shown(text)}' if code of your own "
                "reads it."
            )

    def _moved(self, prefix: str, key: str, word: str, config: Callable[[str], Any]) -> str:
        """What to write for a key that has moved to `key`; the new one may not take the old word."""
        words = self.words.taken(key, config(key), config)
        if words and word not in words:
            return f"its new key {key} takes {', '.join(sorted(words))}"
        return f"write '{prefix}{key}={shown(word)}'"

    @cached_property
    def _copies_old_keys(self) -> bool:
        files = self._source.files.items()
        return any(_MIGRATION in text for file, text in files if file.startswith("verl/trainer/"))

    def _names(self, word: str) -> bool:
        return re.search(rf"{re.escape(word)}\b", self._source.text) is not None


def _kind(value: Any) -> str:
    if value is None or isinstance(value, str):
        return "null" if value is None else "a text"
    if isinstance(value, bool | int | float):
        return "a flag" if isinstance(value, bool) else "a number"
    return "a mapping" if isinstance(value, Mapping) else "a list" if isinstance(value, Sequence) else "a text"


def _of_another_type(given: str, default: Any, value: Any, like: str, right: str) -> BadInput:
    """The refusal of a `value` that looks `like` a kind which verl does not take where it has `default`; `right` may be what was meant."""
    wanted = _kind(default)
    if wanted in ("null", "a text"):
        return BadInput(f"{given} sets a text that looks like {like}: write {right}.")
    cure = f"write {right}" if like in (wanted, "null") else f"write {wanted}"
    own = ", ".join(map(str, default)) if wanted == "a mapping" else str(default)
    return BadInput(f"{given} sets {_kind(value)}, but in verl's config it is {wanted} ({shown(own, 80)}): {cure}.")


def _like(value: Any, wanted: str) -> str:
    """The kind that a value would be, if verl's config, which wants this kind, or Python had it without quotes."""
    if not isinstance(value, str):
        return _kind(value)
    plain = value.strip()
    if wanted == "a list" and plain.startswith("["):
        return wanted
    with suppress(ValueError):
        float(plain)
        return "a number"
    is_list = _LIST.fullmatch(plain)
    return "null" if plain == "None" else "a flag" if plain.lower() in _FLAGS else "a list" if is_list else "a text"
