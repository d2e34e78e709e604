"""Composes the lists of overrides in tests/recorded/verl_examples.yaml with a release of verl: compose_examples.py TREE VERSION, with py and
py/hooks in PYTHONPATH.

One line for each list: that it is accepted, and gives what Hydra alone makes of it, or the sentence of the refusal.
"""

import sys
from pathlib import Path

import hydra
import yaml
from omegaconf import OmegaConf

from verl_regress.base.errors import BadInput, Refusals
from verl_regress.base.workloads import WORKLOADS
from verl_regress.plan.compose import compose
from verl_regress.plan.overrides import Override, merge

EXAMPLES = Path(__file__).parents[2] / "recorded" / "verl_examples.yaml"


def main(tree: str, version: str) -> None:
    """Print the lines, and end with 1 if a list is not accepted or refused as it should be."""
    failed = False
    for name, example in yaml.safe_load(EXAMPLES.read_text(encoding="utf-8")).items():
        module, wanted = WORKLOADS[example["workload"]].module, example.get("refused")
        try:
            with Refusals() as wrong:
                overrides = merge([Override(text, "OVERRIDES_FILE") for text in example["overrides"]], wrong=wrong)
                done = compose(Path(tree), {"code_id": "it", "verl_version": version}, module, overrides, wrong)
            said = "accepted"
            failed |= wanted is not None or yaml.safe_load(done.text) != _by_hydra(tree, module, example["overrides"])
        except BadInput as error:
            said = str(error)
            failed |= wanted is None or wanted not in said
        print(name, said)
    sys.exit(failed)


def _by_hydra(tree: str, module: str, overrides: list[str]):
    """What Hydra makes of the overrides and the config of verl's `module`."""
    name = "sft_trainer_engine" if "sft" in module else "ppo_trainer"
    with hydra.initialize_config_dir(f"{tree}/verl/trainer/config", version_base=None):
        return yaml.safe_load(OmegaConf.to_yaml(hydra.compose(name, overrides), resolve=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
