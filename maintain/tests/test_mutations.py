"""tests/mutations/: each patch has an entry in the index and each entry a patch; test_calibration.py judges what they train."""

import yaml
from hermetic import REPO

HOME = REPO / "tests" / "mutations"
INDEX = yaml.safe_load((HOME / "index.yaml").read_text())
PATCHES = {path.stem: path.read_text() for path in HOME.glob("*.patch")}


def test_each_patch_has_an_entry_and_each_entry_a_patch():
    assert sorted(INDEX) == sorted(PATCHES)
    assert len(set(PATCHES.values())) == len(PATCHES)


def test_there_are_enough_regressions_and_harmless_changes_of_every_workload():
    harmless = {name for name, entry in INDEX.items() if entry.get("harmless")}
    assert harmless == {name for name in INDEX if name.startswith("harmless-")}
    assert len(INDEX) - len(harmless) >= 28
    assert len(harmless) >= 8
    assert sum(name.startswith("undo-") for name in INDEX) >= 8  # real ones
    assert {entry["workload"] for entry in INDEX.values()} == {"ppo", "grpo", "sft"}
