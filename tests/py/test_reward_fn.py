"""reward_fn_path: a file of the user's on the shared root, and nothing else."""

from pathlib import Path

import pytest
from conftest import CONFIG, REWARD_CONFIG, SPEC, write

from verl_regress.errors import BadInput
from verl_regress.reward_fn import check, key_of


@pytest.fixture
def refusal(submit, shared):
    """The sentence with which a JobSpec with this reward_fn_path is refused."""

    def refuse(given, problem, spec=SPEC):
        assert submit(spec=f"{spec}reward_fn_path: '{given}'\n").is_refusal(
            f"reward_fn_path={given.replace('${shared_root}', str(shared.path))} (from my/ppo.yaml) is not usable: "
            f"{problem}; put it under ${{shared_root}}/user/code/."
        )

    return refuse


def test_what_is_not_under_user_code_is_refused(refusal, shared):
    write(shared.path / "user" / "reward.py", "")
    problem = f"it must be a file under {shared.user_code}, without '..'"
    for given in (
        "/etc/passwd", "reward.py", "${shared_root}/user/reward.py", "${shared_root}/user/code/../reward.py",
        "${shared_root}/user/codeX/reward.py",
    ):  # fmt: skip
        refusal(given, problem)


def test_a_link_that_leaves_the_shared_root_is_refused_and_one_that_stays_is_not(refusal, shared, tmp_path, submit):
    outside = write(tmp_path / "outside" / "reward.py", "")
    (shared.user_code / "link.py").symlink_to(outside)
    (shared.user_code / "folder").symlink_to(outside.parent)
    for given in ("link.py", "folder/reward.py"):
        refusal(
            f"${{shared_root}}/user/code/{given}",
            f"it is a link to {outside}, which leaves {shared.path}, and other nodes may not have it",
        )
    write(shared.snapshots / "codeA" / "verl" / "trainer" / "config" / "ppo_trainer.yaml", CONFIG + REWARD_CONFIG)
    (shared.user_code / "inside.py").symlink_to(write(shared.path / "user" / "reward.py", ""))
    assert submit("--dry-run", spec=f"{SPEC}reward_fn_path: ${{shared_root}}/user/code/inside.py\n").status == 0


def test_what_is_no_file_is_refused(refusal, shared):
    refusal("${shared_root}/user/code/no.py", "there is no such file")
    refusal("${shared_root}/user/code", "there is no such file")


def test_what_cannot_be_read_is_refused(shared, monkeypatch):
    secret = write(shared.user_code / "secret.py", "")

    def denied(*_):  # as it is for everybody but root, who may run these tests
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(BadInput) as caught:
        check(shared, str(secret), "my.yaml")
    assert str(caught.value) == (
        f"reward_fn_path={secret} (from my.yaml) is not usable: it cannot be read (Permission denied); "
        "put it under ${shared_root}/user/code/."
    )


def test_sft_has_no_reward(submit, shared):
    path = write(shared.user_code / "reward.py", "")
    assert submit(spec=f"workload: sft\nreward_fn_path: {path}\n").is_refusal(
        f"reward_fn_path={path} (from my/ppo.yaml) is refused: sft has no reward; leave it out."
    )


def test_a_release_without_either_key_is_refused(shared):
    code_path = shared.snapshots / "codeA"
    write(code_path / "verl" / "trainer" / "config" / "ppo_trainer.yaml", "trainer: {}\n")
    with pytest.raises(BadInput) as caught:
        key_of(code_path)
    assert str(caught.value) == (
        f"The snapshot {code_path} has none of the keys reward.custom_reward_function.path and custom_reward_function.path in "
        "verl/trainer/config: leave reward_fn_path out and name your function in trainer_overrides, as this release wants it."
    )
