"""With thousands of jobs on the shared root, a command reads those that it shows, not all of them."""

import json
import os
import time

import pytest
from counting import counted

SIZES = [200, pytest.param(10_000, marks=pytest.mark.slow)]
BEGIN = 1_700_000_000


def make_jobs(shared, count):
    """Finished jobs, a minute apart, named as `make submit` names them; returns their ids, the oldest first."""
    ended = json.dumps({"time": "", "exit_code": 0, "reason": "the trainer ended"})
    ids = []
    for number in range(count):
        made = BEGIN + 60 * number
        ids.append(f"ppo-codeA-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(made))}-{number % 65536:04x}")
        job = shared.jobs / ids[-1]
        for part in ("config", "state"):
            (job / part).mkdir(parents=True)
        (job / "state" / "ended").write_text(ended)
        os.utime(job / "config", (made, made))
    return ids


@pytest.mark.parametrize("count", SIZES)
def test_a_job_is_found_by_its_id_without_reading_the_others(run, shared, monkeypatch, count):
    ids = make_jobs(shared, count)
    from verl_regress.jobs import find

    with counted(monkeypatch) as calls:
        assert find.find(shared, ids[0]).submission_id == ids[0]
    assert calls.total() <= 5, calls
