"""The SFT driver: its statistics stay on the CPU, the workers' requests do not change, and no other process is touched."""

import pytest
from shared_fixtures import HOOKS, environment, python, write

RAY = "def init(address=None, **kwargs): print('ray.init', address, kwargs)\n"
# As in verl 0.7.1 to 0.9.1: one configured value, used for the placement and for the driver's own tensors.
TRAINER = """\
import ray
class SFTTrainer:
    def __init__(self, device):
        self.asked = device
        self.device_name = device
    def fit(self):
        print('workers ask for', self.asked, 'and the driver computes on', self.device_name)
def run_sft():
    ray.init(INIT)
    SFTTrainer('cuda').fit()
if __name__ == '__main__':
    run_sft()
"""


@pytest.fixture
def run(tmp_path):
    def run(*argv, init=""):
        for name, text in (("ray", RAY), ("verl/__init__", ""), ("verl/trainer/sft_trainer_ray", TRAINER)):
            write(tmp_path / f"{name}.py", text.replace("INIT", init))
        env = environment(tmp_path, HOOKS, hooks="sft_driver")
        return python(*(argv or ("-m", "verl.trainer.sft_trainer_ray", "a=1")), env=env)

    return run


@pytest.mark.parametrize(
    ("init", "called"),
    [
        ("", "auto {}"),
        ("namespace='n'", "auto {'namespace': 'n'}"),
        ("'1.2.3.4:5'", "1.2.3.4:5 {}"),
        ("address='x'", "x {}"),
    ],
)
def test_the_driver_computes_on_the_cpu_and_joins_the_cluster(run, init, called):
    ran = run(init=init)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"ray.init {called}\nworkers ask for cuda and the driver computes on cpu\n"


def test_another_process_that_runs_the_same_code_is_left_as_it_is(run):
    ran = run("-c", "from verl.trainer.sft_trainer_ray import run_sft; run_sft()")
    assert ran.stdout == "ray.init None {}\nworkers ask for cuda and the driver computes on cuda\n"
