"""A reward function for PPO and GRPO: 1 for the right number behind "####", a tenth for any number there, else 0.

`make prepare` puts this folder at user/code/examples/ on the shared root; change your own copy there, or put another file
beside it, and name it in the JobSpec: `reward_fn_path: ${shared_root}/user/code/examples/reward_fn.py`.
"""

from __future__ import annotations

import re
from typing import Any

_ANSWER = re.compile(r"####\s*(-?[0-9][0-9,]*)")


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, **_kwargs: Any
) -> float:
    """Return the score of one answer: its text, and the row's data_source, ground_truth and extra_info."""
    found = _ANSWER.findall(solution_str)
    if not found:
        return 0.0
    return 1.0 if found[-1].replace(",", "") == ground_truth else 0.1
