"""Starts torch's CPU generator with the job's TRAIN_SEED, in every process.

torch seeds it from the system's entropy (2.11). New weights are drawn from it: the critic's head, which no actor's checkpoint has, and LoRA.
"""

import json

import job_report
from on_import import on_import


def install() -> None:
    """Watch for torch's import; does nothing outside a job. Raises OSError, ValueError or KeyError if the job's config cannot be read."""
    if (job := job_report.job_dir()) is not None:
        seed = json.loads((job / "config" / "asked.json").read_text(encoding="utf-8"))["said"]["seed"]
        on_import("torch", lambda torch: torch.default_generator.manual_seed(seed))
