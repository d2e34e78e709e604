"""REWARD_CHECK=1: what a reward function may do with three rows of the job's data before the job is submitted."""

import json
import types

import pytest
from shared_fixtures import write

from verl_regress.base.errors import BadInput
from verl_regress.plan.compose import Composed
from verl_regress.submit import reward_check

pytestmark = pytest.mark.slow  # a process each

MANAGER = "verl/experimental/reward_loop/reward_manager/naive.py"
CALL = "compute_score(data_source=a, solution_str=b, ground_truth=c, extra_info=d)\n"
CURE = ": correct it, or leave REWARD_CHECK out; nothing was submitted."
HEAD = (
    "import asyncio, os, time\n\ndef compute_score(data_source, solution_str, ground_truth, extra_info, **more):\n    "
)
ASYNC = HEAD.replace("\ndef", "\nasync def")


@pytest.fixture
def tried(tmp_path, monkeypatch):
    """Tries a function with that source; the environment variables of its job, and its secrets."""

    def tried(source, seconds=20.0, variables=None, secrets=None, config=""):
        file, data, code = tmp_path / "r.py", tmp_path / "train.jsonl", tmp_path / "codeA"
        file.write_text(source)
        rows = [
            {"data_source": "sums", "reward_model": {"ground_truth": str(n)}, "extra_info": {"n": n}} for n in range(5)
        ]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        write(code / MANAGER, CALL)
        text = f"data: {{train_files: [{data}]}}\nreward:\n  reward_manager: {{name: naive}}\n  custom_reward_function: {{path: {file}, name: compute_score{config}}}\n"
        planned = types.SimpleNamespace(
            composed=Composed((), (), text), code=types.SimpleNamespace(path=code), job=types.SimpleNamespace(path=tmp_path / "job"),
            environment=types.SimpleNamespace(variables=variables or {}),
        )  # fmt: skip
        reward_check.try_function(planned, secrets or {}, seconds)

    return tried


@pytest.mark.parametrize(
    ("source", "config"),
    [
        (f"{HEAD}return float(solution_str == ground_truth == str(extra_info['n']))", ""),
        (f"{HEAD}return {{'score': data_source == 'sums', 'acc': 1}}", ""),
        (f"{HEAD}print('said', flush=True); return more['weight']", ", reward_kwargs: {weight: 2}"),
        (f"{ASYNC}await asyncio.sleep(0); return 1", ""),
        (
            f"{HEAD}return int(os.environ['WEIGHT'] + os.environ['KEY'] + str(os.getcwd() == os.environ['HERE'])[4:])",
            "",
        ),
    ],
)
def test_a_function_that_gives_a_number_passes(tried, tmp_path, capsys, source, config):
    variables = {"WEIGHT": "1", "HERE": str(tmp_path / "job"), "VERL_REGRESS_HOOKS": "none_such"}
    tried(source, variables=variables, secrets={"KEY": "0123456789"}, config=config)
    assert capsys.readouterr().err == (
        f"ok      REWARD_CHECK=1: compute_score in {tmp_path}/r.py gave a number for each of 3 rows of {tmp_path}/train.jsonl\n"
    )


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (f"{HEAD}return extra_info['solution']", "raised KeyError: 'solution' on row 1 of DATA (FILE:4)"),
        (f"{HEAD}return None if extra_info['n'] else 1", "returned None, which is no finite number on row 2 of DATA (FILE:3)"),
        (f"{HEAD}return '1.0'", "returned '1.0', which is no finite number on row 1 of DATA (FILE:3)"),
        (f"{HEAD}return [1.0]", "returned [1.0], which is no finite number on row 1 of DATA (FILE:3)"),
        (f"{HEAD}return float('nan')", "returned nan, which is no finite number on row 1 of DATA (FILE:3)"),
        (f"{HEAD}return {{'acc': 1}}", "returned a dict without 'score' on row 1 of DATA (FILE:3)"),
        (f"{HEAD}return {{'score': '1'}}", "returned a dict with score '1', which is no finite number on row 1 of DATA (FILE:3)"),
        (f"{ASYNC}return None", "returned None, which is no finite number on row 1 of DATA (FILE:3)"),
        (f"{HEAD}raise SystemExit(os.environ['KEY'])", "raised SystemExit: <secret KEY> on row 1 of DATA (FILE:4)"),
        ("import no_such_module\n", "cannot be called: ModuleNotFoundError: No module named 'no_such_module' (FILE:1)"),
        (f"{HEAD}os._exit(7)", "ended its process (exit status 7)"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_function_refuses_the_job(tried, tmp_path, source, problem):
    with pytest.raises(BadInput) as refused:
        tried(source, secrets={"KEY": "a secret of the job"})
    said = problem.replace("DATA", f"{tmp_path}/train.jsonl").replace("FILE", f"{tmp_path}/r.py")
    assert str(refused.value) == f"REWARD_CHECK=1: compute_score in {tmp_path}/r.py {said}{CURE}"


def test_a_function_that_takes_too_long_is_ended_where_it_is(tried, tmp_path):
    with pytest.raises(BadInput) as refused:
        tried(f"{HEAD}\n    try:\n        time.sleep(60)\n    except Exception:\n        return 0\n", seconds=0.2)
    assert str(refused.value) == (
        f"REWARD_CHECK=1: compute_score in {tmp_path}/r.py took more than 0.2 s on row 1 of {tmp_path}/train.jsonl ({tmp_path}/r.py:6){CURE}"
    )


def test_a_function_that_no_signal_interrupts_is_killed(tried, tmp_path, monkeypatch):
    monkeypatch.setattr(reward_check, "_LONGER", 0.3)
    with pytest.raises(BadInput, match=r"took more than 0\.2 s: correct it"):
        tried(
            f"import signal\n{HEAD}signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); time.sleep(60)",
            seconds=0.2,
        )


def test_a_job_without_a_function_has_nothing_to_try():
    with pytest.raises(BadInput) as refused:
        reward_check.try_function(types.SimpleNamespace(composed=Composed((), (), "reward: {}")), {}, 1.0)
    assert str(refused.value) == (
        "REWARD_CHECK=1 has nothing to try, because the job names no reward function of yours: name one with reward_fn_path in the "
        "JobSpec, or leave REWARD_CHECK out."
    )


def test_a_reward_manager_of_the_users_own_may_call_it_in_any_way(tried, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reward_check.reward_fn, "keywords_of_call", lambda *_: [])
    tried(f"{HEAD}return None")
    assert capsys.readouterr().err == (
        f"warning REWARD_CHECK=1: compute_score in {tmp_path}/r.py is not tried, because the job's reward manager is not one of verl's own\n"
    )
