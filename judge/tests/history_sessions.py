"""Sessions of six days, made of recorded job directories, for the tests of history.html: planted change points, and a page of them."""

import zlib

import numpy as np
from tests.session import test_verdict as made

from verl_regress.session import recorded_points
from verl_regress.store.sessions import jobs_of
from verl_verdict.history import history, history_page

SUITE = """
cases:
  ppo: {workload: ppo}
  grpo: {workload: grpo, pairs: 3}
  sft: {workload: sft}
"""
EVIL = "</script><script>alert(1)</script>"
DAYS = 6
NAMES = [f"202611{day}T100000Z" for day in range(21, 21 + DAYS)]


def make(root, plant=True, days=DAYS):
    """The same A every day, and another B. From the fourth day on, entropy of B's PPO is higher, and B's GRPO is slower and worse.

    PPO and SFT repeat themselves, GRPO does not. A's PPO is reused from the first day on.
    """
    for day, name in enumerate(NAMES[:days]):
        is_after = plant and day >= 3
        session = made.make(root, name, SUITE)
        _edit(session, "begin", time=f"2026-11-{21 + day}T10:00:00+00:00", codes={"A": "v1", "B": f"v2-{day}"})
        _add(session, root, "ppo_b", "ppo-0.9.1-v1-1", day, _entropy if is_after else None)
        if day == 0:
            _add(session, root, "ppo_a", "ppo-0.9.1-v1-1", day)
        else:
            first = made.Session(root.sessions / NAMES[0])
            session.write_job("ppo_a", {**jobs_of(first.evidence())["ppo_a"], "reused_from": NAMES[0]})
        for number in (1, 2, 3):
            more = "" if number == 1 else f"_{number}"
            _add(session, root, f"grpo_b{more}", "grpo-0.9.1-v1-1", day, _noise(f"b{day}{number}", is_after))
            _add(session, root, f"grpo_a{more}", "grpo-0.9.1-v1-1", day, _noise(f"a{day}{number}", False))
        _add(session, root, "sft_b", "sft-0.9.1-1", day)
        _add(session, root, "sft_a", "sft-0.9.1-1", day)


def page(root):
    """The page over the sessions of that root."""
    points, left = recorded_points.collect(root)
    return history_page.HistoryPage(history.groups_of(points), left, recorded_points.reports(root))


def _edit(session, name, **changes):
    session.write(name, {**session.read(name), **changes})
    if "time" in changes:  # which `write` sets
        path = session.path / "evidence" / f"{name}.json"
        path.write_text(path.read_text().replace(session.read(name)["time"], changes["time"]))


def _add(session, root, run, recorded, day, change=None):
    side = run.split("_")[1].upper()
    code, tree = ("v1", "a" * 64) if side == "A" else (f"v2-{day}", f"{day}" * 64)
    job = made.job(root, recorded, f"{run.replace('_', '-')}-{session.path.name}", tree, change)
    job["plan"]["code_id"] = code
    job["code"] |= {"source": "git:x@main" if side == "B" else f"pypi:1 {EVIL}", "revision": f"{day}" * 40}
    session.write_job(run, job)


def _entropy(_step, data):
    if "actor/entropy" in data:
        data["actor/entropy"] *= 1.5


def _noise(name, is_after):
    rng = np.random.default_rng(zlib.crc32(name.encode()))

    def edit(_step, data):
        for metric in sorted(data):
            if metric.startswith(("critic", "actor", "response", "training/roll")):
                data[metric] *= 1 + 0.03 * rng.normal()
        if "critic/score/mean" in data:
            data["critic/score/mean"] = (0.4 if is_after else 0.6) + 0.02 * rng.normal()
            data["timing_s/step"] = (4.0 if is_after else 2.0) + 0.1 * rng.normal()

    return edit
