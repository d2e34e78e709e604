"""A session with report.html, made of recorded job directories, for the tests of the page."""

from tests.session import test_verdict as made

from verl_regress.session import report, verdict
from verl_regress.session.checks import Result

SUITE = """
cases:
  ppo: {workload: ppo, speed: true}
  grpo: {workload: grpo, pairs: 3}
  sft: {workload: sft}
"""
EVIL = "</script><script>alert(1)</script>"
CHECKS = [
    Result("placement", "Each job ran where it should", "3 jobs", []),
    Result("leaks", f"No secret is left {EVIL}", "9 files", [f"it is in {EVIL}"]),
    Result("resume", "A job continues", "0 jobs", [], "its runs did not end"),
]


def outcome(root, suite=SUITE):
    """PPO regressed, GRPO has three noisy pairs, SFT is equal. Every text that users or verl choose contains markup."""
    session = made.make(root, suite=suite)
    for side, line in (("A", "b = 1"), ("B", f"b = '{EVIL}'")):
        code = root.snapshots / f"code{side}"
        code.mkdir(parents=True)
        (code / "x.py").write_text(f"a = 1\n{line}\n")

    def write(run, recorded, change=None):
        side = run.split("_")[1].upper()
        job = made.job(root, recorded, f"{run.replace('_', '-')}-20261122T100000Z", made.TREES[side], change)
        job["plan"] |= {"code_id": f"code{side}", "code_path": str(root.snapshots / f"code{side}")}
        session.write_job(run, job)

    write("ppo_b", "ppo-0.9.1-v1-1", _evil(made.sign))
    write("ppo_a", "ppo-0.9.1-v1-1", _evil())
    for number in (1, 2, 3):
        more = "" if number == 1 else f"_{number}"
        write(f"grpo_b{more}", "grpo-0.9.1-v1-1", _noise(number + 4))
        write(f"grpo_a{more}", "grpo-0.9.1-v1-2", _noise(number))
    write("sft_b", "sft-0.9.1-1")
    write("sft_a", "sft-0.9.1-2")
    evidence = session.evidence()
    return report.SessionOutcome(session, evidence, CHECKS, verdict.of_session(evidence))


def _evil(change=lambda step, data: None):
    """Also adds a decisive metric whose name is markup."""

    def edit(step, data):
        change(step, data)
        if "critic/score/mean" in data:
            data[f"val-core/{EVIL}"] = 0.1 * step

    return edit


def _noise(number):
    def edit(step, data):
        for name in data:
            if name.startswith(("critic", "actor", "response", "val", "training/roll")):
                data[name] *= 1 + 0.03 * (((number * 7 + step * 5) % 11) - 5) / 5

    return edit
