"""request_seed on its own, as a deterministic run on GPUs loads it: each answer of a group has a seed of its own, the same in each run."""

from pathlib import Path

from shared_fixtures import python, write

REPO = Path(__file__).parents[2]
# The part of verl's module that the hook needs: its method returns the sampling parameters that it got.
AGENT_LOOP = """\
class AgentLoopWorker:
    def __init__(self, config):
        self.config = config
    async def _run_agent_loop(self, sampling_params, trajectory, **rest):
        return sampling_params
"""
ASK = """\
import asyncio, sys
from types import SimpleNamespace
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
rollout = SimpleNamespace(name=sys.argv[1])
worker = AgentLoopWorker(SimpleNamespace(data={"seed": 7}, actor_rollout_ref=SimpleNamespace(rollout=rollout)))
for n in range(4):
    trajectory = {"step": 1, "sample_index": 0, "rollout_n": n, "validate": False}
    print(asyncio.run(worker._run_agent_loop({"top_p": 1.0}, trajectory)).get("seed"))
"""


def test_each_answer_of_a_group_has_its_own_seed_in_each_run(tmp_path):
    module = tmp_path / "verl" / "experimental" / "agent_loop" / "agent_loop.py"
    write(module, AGENT_LOOP)
    for folder in module.parents[:3]:
        write(folder / "__init__.py", "")
    layers = (REPO / "py" / "hooks", REPO / "rehearsal", tmp_path)
    variables = {"PYTHONPATH": ":".join(map(str, layers)), "VERL_REGRESS_HOOKS": "verl_rehearsal.request_seed"}
    runs = [python("-c", ASK, "vllm", env=variables) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout
    assert len(set(runs[0].stdout.split())) == 4, runs[0].stderr
    assert set(python("-c", ASK, "sglang", env=variables).stdout.split()) == {"None"}
