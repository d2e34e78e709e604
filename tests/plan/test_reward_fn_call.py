"""A reward function must take what this verl calls it with; nobody runs it to find out."""

import pytest
from shared_fixtures import CONFIG, record, write

NAMES = "data_source, solution_str, ground_truth, extra_info"
MANAGER = """\
class Naive:
    def __init__(self, compute_score):
        self.compute_score = partial(compute_score)
    async def run_single(self, data):
        more = {}
        if self.is_async:
            return await self.compute_score(data_source=1, solution_str=2, ground_truth=3, extra_info=4, **more)
        return await run(lambda: self.worker.compute_score.remote(data_source=1, solution_str=2, ground_truth=3, extra_info=4, **more))
"""
REWARD = """\
reward:
  reward_manager: {name: naive}
  custom_reward_function: {path: null, name: compute_score, reward_kwargs: {}}
"""


@pytest.fixture
def planned(submit, shared):
    """A dry run of a job with this reward function."""
    verl = shared.snapshots / "codeA" / "verl"
    write(verl / "trainer" / "config" / "ppo_trainer.yaml", CONFIG + REWARD)
    write(verl / "experimental" / "reward_loop" / "reward_manager" / "naive.py", MANAGER)
    record(shared.snapshots / "codeA")
    file = write(shared.user_code / "mine" / "score.py", "")

    def planned(source, *overrides):
        write(file, source)
        return submit("DRY_RUN=1", f"OVERRIDES=reward.custom_reward_function.path={file} {' '.join(overrides)}")

    planned.file = file
    return planned


@pytest.mark.parametrize(
    ("signature", "overrides", "passed"),
    [
        ("data_sources, solution_strs, ground_truths, extra_infos, **kwargs", (), NAMES),  # of verl's batch manager
        ("solution_str, ground_truth", (), NAMES),
        ("data_source, solution_str, ground_truth, /, extra_info", (), NAMES),
        ("data_source, solution_str, ground_truth, extra_info, *, weight", (), NAMES),
        (NAMES, ("+reward.custom_reward_function.reward_kwargs.weight=2",), f"{NAMES}, weight"),
    ],
)
def test_a_function_that_verl_cannot_call_is_refused(planned, signature, overrides, passed):
    """Before: TypeError at the first answer, after the model had been loaded."""
    assert planned(f"def compute_score({signature}):\n    return 0.0\n", *overrides).is_refusal(
        f"{planned.file} (from OVERRIDES) defines compute_score({signature}), but verl 0.7.1 calls it with {passed} by name: write these parameters."
    )


@pytest.mark.parametrize(
    ("source", "overrides"),
    [
        (f"def compute_score({NAMES}=None): ...", ()),
        (f"async def compute_score({NAMES}, reward_router_address, reward_model_tokenizer): ...", ()),
        (f"def compute_score({NAMES}, weight): ...", ("+reward.custom_reward_function.reward_kwargs.weight=2",)),
        ("def compute_score(solution_str, **kwargs): ...", ()),
        ("def compute_score(*args, **kwargs): ...", ()),
        ("@decorated\ndef compute_score(x): ...", ()),
        ("class compute_score:\n    def __init__(self, x): ...", ()),
        ("from other import compute_score", ()),
        ("if True:\n    def compute_score(x): ...", ()),
        ("def compute_score(x): ...\ndef compute_score(**more): ...", ()),
        ("def compute_score(x): ...", ("reward.reward_manager.name=mine",)),
    ],
)
def test_what_verl_can_call_or_nobody_knows_is_accepted(planned, source, overrides):
    assert planned(source + "\n", *overrides).status == 0
