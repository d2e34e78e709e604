"""The cause found for each real failure of a real job (tests/recorded/failures/README.md), and the hints for them."""

from pathlib import Path

import pytest
import yaml

from verl_regress.jobs import failure, hints

HOME = Path(__file__).parents[1] / "recorded" / "failures"
CASES = yaml.safe_load((HOME / "cases.yaml").read_text())
FILES = sorted(path for path in HOME.iterdir() if path.suffix in (".json", ".log"))
BY_NAME = {case["name"]: case for case in CASES}


def plan_of(case):
    code_id = f"failure-{case['name'].replace('_', '-')}" if "edits" in case else "codeA"
    return {"code_path": f"/private/common/code/verl/{code_id}", "shared_root": "/private"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_root_exception_its_place_its_step_and_what_to_do(make_job, file):
    """From what the job's processes recorded, or from the end of the driver's log."""
    job, case = make_job(), BY_NAME[file.stem]
    if file.suffix == ".json":
        job.reports.mkdir(parents=True)
    kept = job.driver_log if file.suffix == ".log" else job.reports / "exceptions-all-1.json"
    kept.write_bytes(file.read_bytes())
    found, wanted = failure.of_job(job, plan_of(case), 1), case["cause"]
    if file.suffix == ".json":
        assert found == {**wanted, "step": None}  # the step is in the log
    else:
        assert found == {**wanted, "where": None}


def test_the_table_is_complete_and_its_files_are_small():
    assert len(CASES) == len(BY_NAME) >= 15
    assert {case["workload"] for case in CASES} == {"ppo", "grpo", "sft"}
    assert {path.stem for path in FILES} == set(BY_NAME)
    assert max(path.stat().st_size for path in FILES) <= 20_000


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "a GPU has too little memory: "),
        ("the trainer was ended by SIGKILL, out of memory: the kernel of worker-0 killed it", "a node has too little memory: "),
        ("DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268", "GPUs could not talk to each other: "),
    ],
)  # fmt: skip
def test_hints_for_what_a_laptop_does_not_meet(said, cure):
    assert hints.find(said).startswith(cure)


def test_an_unknown_exception_has_no_hint():
    assert hints.find("ZeroDivisionError: division by zero") is None
