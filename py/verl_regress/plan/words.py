"""Which words verl takes for a key that takes only some: those that its code registers, or compares the key with. It is parsed and never run.

A wrong refusal is worse than a missed mistake: a set of words counts only if verl's own default is one of them.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

from verl_regress.base.errors import BadInput, shown
from verl_regress.plan.source import Source

_T = TypeVar("_T")


class _Registry(NamedTuple):
    """Where words are registered: below this path, by decorators or in a collection of one of these names."""

    path: str
    names: tuple[str, ...]


# By the end of the key. Read in verl 0.7.1, 0.8.0 and 0.9.1.
_REGISTRIES = {
    "algorithm.adv_estimator": _Registry("verl/trainer/ppo/core_algos.py", ("register_adv_est",)),
    "policy_loss.loss_mode": _Registry("verl/trainer/ppo/core_algos.py", ("register_policy_loss",)),
    "reward_manager.name": _Registry("verl/experimental/reward_loop/reward_manager/", ("register", "register_manager")),
    "agent.default_agent_loop": _Registry("verl/experimental/agent_loop/", ("register",)),
    "multi_turn.format": _Registry("verl/experimental/agent_loop/tool_parser.py", ("register",)),
    "v1.trainer_mode": _Registry("verl/trainer/ppo/v1/", ("register_trainer",)),
    "checkpoint_engine.backend": _Registry("verl/checkpoint_engine/", ("register",)),
    "distillation_loss.loss_mode": _Registry("verl/trainer/distillation/", ("register_distillation_loss",)),
    "rollout.name": _Registry("verl/workers/rollout/base.py", ("_ROLLOUT_REGISTRY",)),
    "trainer.logger": _Registry("verl/utils/tracking.py", ("supported_backend",)),
}
# Keys whose value has another name where verl compares it, or that are null by default.
_COMPARED_AS = {"actor.kl_loss_type": "kl_penalty", "rollout_correction.rollout_is": "rollout_is"}
# With one of these set, code of the user's own registers more words, or the word is a class of theirs: by the key that it concerns.
_OWN_WORDS = {
    "agent.default_agent_loop": "actor_rollout_ref.rollout.agent.agent_loop_config_path",
    "reward_manager.name": "reward.reward_manager.module.path",
}
_EXTERNAL = "actor_rollout_ref.model.external_lib"


class Words:
    """The words that the verl in `source` takes, which messages call `release`."""

    def __init__(self, source: Source, release: str) -> None:
        self._source, self._release = source, release
        self._parsed = cache(self._parse)

    def need(self, given: str, key: str, default: Any, value: Any, config: Callable[[str], Any]) -> None:
        """Raise BadInput if a `value` has a word that verl does not take for the key, where its own config has `default`.

        Messages call the override `given`; `config` gives the composed config's value at a key.
        """
        words = self.taken(key, default, config)
        said = value if isinstance(value, list | tuple) else [value]
        texts = (word for word in said if isinstance(word, str) and "${" not in word)
        wrong = next((word for word in texts if word.removesuffix("+") not in words), None)
        if words and wrong is not None:
            raise BadInput(
                f"{given} sets {shown(wrong, 80)}, which {self._release} does not know there: write one of {', '.join(sorted(words))}; or "
                f"'++{key}={shown(str(value))}' if code of your own adds it."
            )

    def taken(self, key: str, default: Any, config: Callable[[str], Any]) -> set[str]:
        """All words that a key takes, arguments as of `need`; none if it takes any, or if that is not known."""
        setting = _by_end(_OWN_WORDS, key)
        if config(_EXTERNAL) or (setting and config(setting)):
            return set()
        own = set(default) if isinstance(default, list | tuple) else {default}
        words = set[str]()
        if (registry := _by_end(_REGISTRIES, key)) is not None:
            words = self._registered(registry)
        elif (renamed := _by_end(_COMPARED_AS, key)) is not None:
            words, own = self._compared(renamed, own), own - {None}
        elif isinstance(default, str):
            above, _, leaf = key.rpartition(".")
            words = self._of_class(_class_around(above, config), leaf) or self._compared(leaf, own)
        return words if own <= words else set()

    def _registered(self, registry: _Registry) -> set[str]:
        files = [file for file in self._source.files if file.startswith(registry.path)]
        return {word for file in files for word in _registered_in(self._parsed(file), registry.names)}

    def _compared(self, name: str, default: set[Any]) -> set[str]:
        """What verl compares something of this name with, if a word that it does not compare it with is an error; `default` is among them."""
        near = re.compile(
            rf"\b{re.escape(name)}\b['\"\])]*(?:\.\w+\(\))?\s*(?:==|!=|in\b|not in\b|:\s*Literal)|match\s[^\n]*\b{re.escape(name)}\b"
        )
        trees = [self._parsed(file) for file, text in self._source.files.items() if near.search(text)]
        closed = [words for tree in trees for words in _closed(tree, tree, name) if default - {None} <= words]
        if not closed:
            return set()
        return set().union(*closed, *(_words_of(test, name, tree) for tree in trees for test in ast.walk(tree)))

    def _of_class(self, target: str, name: str) -> set[str]:
        """The words that the class `target`, or the nearest class above it in its file, insists on."""
        definition = re.compile(rf"^class {re.escape(target)}\b", re.MULTILINE)
        files = [file for file, text in self._source.files.items() if target and definition.search(text)]
        for tree in map(self._parsed, files):
            for node in _with_bases(target, tree):
                if words := set[str]().union(*_closed(node, tree, name)):
                    return words
        return set()

    def _parse(self, file: str) -> ast.Module:
        try:
            return ast.parse(self._source.files[file])
        except (SyntaxError, ValueError, RecursionError):
            return ast.Module([], [])


def _texts(node: ast.AST) -> set[str]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def _by_end(table: Mapping[str, _T], key: str) -> _T | None:
    """What a table has for the end of a key."""
    return next((each for end, each in table.items() if key.endswith(end)), None)


def _class_around(above: str, config: Callable[[str], Any]) -> str:
    """The name of the class to which verl turns the mapping at a key, by its `_target_`; "" if there is none."""
    return str((config(above) or {}).get("_target_") or "").rpartition(".")[2] if above else ""


def _with_bases(name: str, tree: ast.Module) -> Iterator[ast.ClassDef]:
    """The class of that name in a file, and the classes above it there."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    queue = [name]
    while queue:
        node = classes.get(queue.pop())
        if node is not None:
            yield node
            queue += [base.id for base in node.bases if isinstance(base, ast.Name)]


def _registered_in(tree: ast.Module, names: tuple[str, ...]) -> set[str]:
    """The words in decorators with these names, and in collections that are assigned to one of them."""
    return _in_decorators(tree, names) | _in_collections(tree, names)


def _in_decorators(tree: ast.Module, names: tuple[str, ...]) -> set[str]:
    """The words that decorators with these names get; a member of an Enum is its value."""
    members = _members_of_classes(tree)
    decorators = [each for node in ast.walk(tree) for each in getattr(node, "decorator_list", ())]
    calls = [each for each in decorators if isinstance(each, ast.Call) and _end_of(each.func) in names]
    arguments = [part for call in calls for part in (*call.args, *(word.value for word in call.keywords))]
    return set[str]().union(*(_texts(part) | members.get(ast.unparse(part), set()) for part in arguments))


def _members_of_classes(tree: ast.Module) -> dict[str, set[str]]:
    """The texts that classes assign, by `Class.NAME`."""
    return {
        f"{node.name}.{each.targets[0].id}": _texts(each.value)
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for each in node.body
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
    }


def _in_collections(tree: ast.Module, names: tuple[str, ...]) -> set[str]:
    """The words in the collections that are assigned to these names; of a mapping only its keys, and of a key that is a tuple its first."""
    found = set[str]()
    for value in _assigned(tree, names):
        keys = value.keys if isinstance(value, ast.Dict) else [value]
        parts = [each.elts[0] if isinstance(each, ast.Tuple) else each for each in keys if each is not None]
        found |= set[str]().union(*map(_texts, parts))
    return found


def _assigned(tree: ast.Module, names: tuple[str, ...]) -> Iterator[ast.expr]:
    """What is assigned to one of these names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(_end_of(target) in names for target in targets):
                yield node.value


def _end_of(node: ast.AST) -> str | None:
    """The last name of what is read: `mode` of `self.mode`, `config["mode"]`, `config.get("mode", …)`, `mode.lower()` and `mode`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_]):
            return name
        case ast.Call(func=ast.Attribute(value=value, attr="lower" | "strip")):
            return _end_of(value)
    return None


def _words_of(test: ast.AST, name: str, tree: ast.AST) -> set[str]:
    """The words with which a comparison compares something of this name; none for any other node."""
    match test:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() | ast.In() | ast.NotIn()], comparators=[right]):
            return _listed(right, tree) if _end_of(left) == name else set()
        case ast.BoolOp(op=ast.Or(), values=values):
            parts = [_words_of(value, name, tree) for value in values]
            return set().union(*parts) if all(parts) else set()
        case ast.AnnAssign(target=target, annotation=ast.Subscript(value=ast.Name(id="Literal"), slice=choice)):
            return _texts(choice) if _end_of(target) == name else set()
    return set()


def _listed(node: ast.AST, tree: ast.AST) -> set[str]:
    """The texts in a literal, or in the list that is assigned to a name."""
    if isinstance(node, ast.Constant | ast.List | ast.Tuple | ast.Set):
        return _texts(node)
    assigned = [each for each in ast.walk(tree) if isinstance(each, ast.Assign)]
    named = [each.value for each in assigned if any(_end_of(target) == _end_of(node) for target in each.targets)]
    return _texts(named[0]) if len(named) == 1 and isinstance(named[0], ast.List | ast.Tuple | ast.Set) else set()


def _closed(within: ast.AST, tree: ast.AST, name: str) -> Iterator[set[str]]:
    """Sets of words beyond which verl raises: asserted, declared as Literal, or an `if` whose last `else` raises.

    A single word is what some part of verl wants in a case of its own, such as one rollout of several.
    """
    for node in ast.walk(within):
        words = _insisted_on(node, tree, name)
        if len(words) > 1:
            yield words


def _insisted_on(node: ast.AST, tree: ast.AST, name: str) -> set[str]:
    """The words that this statement allows; none for any other statement."""
    match node:
        case ast.Assert(test=ast.Compare() as test) | (ast.AnnAssign() as test):
            return _words_of(test, name, tree)
        case ast.If(test=ast.Compare(ops=[ast.NotIn() | ast.NotEq()]) as test, body=[*_, ast.Raise()]):
            return _words_of(test, name, tree)
        case ast.If(orelse=[_, *_]):
            return _of_chain(node, name, tree)
        case ast.FunctionDef(body=[*statements, ast.Raise()]):
            return _of_returns(statements, name, tree)
    return set()


def _of_returns(statements: Sequence[ast.stmt], name: str, tree: ast.AST) -> set[str]:
    """The words of each `if …: return` in a function that raises in the end; none of one alone."""
    ifs = [each for each in statements if isinstance(each, ast.If) and isinstance(each.body[-1], ast.Return)]
    parts = [words for each in ifs if (words := _words_of(each.test, name, tree))]
    return set().union(*parts) if len(parts) > 1 else set()


def _of_chain(node: ast.If, name: str, tree: ast.AST) -> set[str]:
    """The words of `if … elif … else: raise`; none if a test is of something else, or the end does not raise."""
    found = set[str]()
    while True:
        words = _words_of(node.test, name, tree)
        match node.orelse if words else []:
            case [ast.If() as following]:
                node, found = following, found | words
            case [*_, ast.Raise()]:
                return found | words
            case _:
                return set()
