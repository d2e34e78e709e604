"""Prints what a release of verl makes of a Ray base config's overrides: compose_profiles.py BASE_CONFIG TREE VERSION, with
py and py/hooks in PYTHONPATH.

One line for each workload, without and with DETERMINISTIC=1: that its own configuration takes all overrides but those that
are left out, and some settings that come of it, or the sentence of the refusal. And one with TRAIN_SEED: the keys that have the
seed then, and those for seeds that do not. The product composes them, as a submission does.
"""

import sys
from dataclasses import replace
from pathlib import Path

import yaml

from verl_regress.base import documents
from verl_regress.base.errors import BadInput, Refusals
from verl_regress.base.jobspec import BaseConfig
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.base.workloads import WORKLOADS, JobPaths
from verl_regress.plan import compose
from verl_regress.plan.overrides import DETERMINISTIC, TRAIN_SEED, Override, merge, of_profile, of_shape

# What decides whether a run repeats itself, and where TransferQueue's storage is, as each trainer reads it.
READ = {
    "full_determinism": "actor_rollout_ref.rollout actor_rollout_ref.actor.fsdp_config actor_rollout_ref.ref.fsdp_config "
    "reward.reward_model.rollout critic.fsdp engine",
    "use_v1": "trainer",
    "required_node_resource": "transfer_queue.backend.SimpleStorage",
}
SEED = 7


def main(base_config: str, tree: str, version: str) -> None:
    """Print the lines of one release."""
    base = BaseConfig.from_document(
        documents.parse(Path(base_config).read_text(encoding="utf-8"), base_config, "base_config")
    )
    paths = JobPaths(Path("/model"), Path("/dataset"), JobDir(SharedRoot(Path("/private")).jobs / "me"))
    for name, workload in WORKLOADS.items():
        for knob in ("", DETERMINISTIC, TRAIN_SEED):
            added = base.deterministic.overrides if knob == DETERMINISTIC else {}
            seeds = workload.seed_keys if knob == TRAIN_SEED else ()
            layers = (
                [Override(text, "verl-regress") for text in workload.overrides(paths)],
                *of_profile(workload, base.trainer_overrides, base.origin),
                *of_profile(workload, added, knob),
                [Override(f"{key}={SEED}", knob, optional=True) for key in seeds],
            )
            try:
                code = {"code_id": "it", "verl_version": version}
                with Refusals() as wrong:
                    merged = merge(*layers, wrong=wrong)
                    overrides = [replace(each, text=of_shape(each.text, 2, 4)) for each in merged]
                    done = compose.compose(Path(tree), code, workload.module, overrides, wrong)
            except BadInput as error:
                print(name, knob or "-", error)
                continue
            if knob == TRAIN_SEED:
                print(name, knob, *_seeds(yaml.safe_load(done.text)))
                continue
            left_out = "".join(f" but {override.parts()[1]}" for override in done.left_out)
            settings = "".join(f", {key}={value}" for key, value in _read(yaml.safe_load(done.text)))
            print(name, knob or "-", f"takes all{left_out}{settings}")


def _read(config):
    """The keys of READ that the composed config has, with their values; what is off is not printed."""
    for leaf, homes in READ.items():
        for home in homes.split():
            node = config
            for part in home.split("."):
                node = node.get(part, {})
            if node.get(leaf) or (leaf == "use_v1" and leaf in node):
                yield f"{home}.{leaf}", node[leaf]


def _seeds(node, above=""):
    """The keys for seeds, in the order of the config; one that does not have the seed with its value."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _seeds(value, f"{above}{key}.")
        elif key.endswith("seed"):
            yield f"{above}{key}" if value == SEED else f"{above}{key}={value}"


if __name__ == "__main__":
    main(*sys.argv[1:])
