"""DETERMINISTIC=1: what the base config lists for it is added to the job and recorded, or the job is refused."""

import json

import pytest
from shared_fixtures import BASE, SPEC, write_checkpoint

from verl_regress.base.layout import HELPER_DIR, JobDir

pytestmark = pytest.mark.slow

SECTION = """\
deterministic:
  overrides: {rl: [trainer.save_freq=4, '?trainer.gone=1'], ppo: [critic.optim.lr=3], sft: [trainer.unread=1]}
  env_vars: {CUBLAS_WORKSPACE_CONFIG: ':16:8', NCCL_ALGO: Ring}
"""
WITH = BASE + SECTION


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def origins(job, *keys):
    """Text and origin of these keys' overrides."""
    found = {item["text"].split("=")[0]: item for item in read(job.config / "resolved.json")["overrides"]}
    return [(found[key]["text"], found[key]["origin"]) for key in keys]


def test_its_overrides_are_recorded_with_their_origin(submit, shared):
    outcome = submit("SUBMISSION_ID=me", "DETERMINISTIC=1", base=WITH)
    assert (outcome.status, outcome.err) == (
        0,
        "skip    override trainer.gone=1 (optional in DETERMINISTIC=1, verl 0.7.1 has no such key)\n"
        "changed submitted me (ppo, code codeA, profile cpu)\n",
    )
    job = JobDir(shared.jobs / "me")
    assert origins(job, "trainer.save_freq", "critic.optim.lr") == [
        ("trainer.save_freq=4", "DETERMINISTIC=1"),
        ("critic.optim.lr=3", "DETERMINISTIC=1"),
    ]
    resolved = read(job.config / "resolved.json")
    assert {"trainer.save_freq=4", "critic.optim.lr=3"} <= set(resolved["argv"])
    assert resolved["left_out"] == [{"text": "trainer.gone=1", "origin": "DETERMINISTIC=1"}]
    assert read(job.config / "asked.json")["said"]["deterministic"] is True


def test_it_wins_over_the_jobspec_and_the_command_line_wins_over_it(submit, shared):
    spec = f"{SPEC}trainer_overrides: [trainer.save_freq=5, critic.optim.lr=5]\n"
    assert (
        submit("SUBMISSION_ID=me", "DETERMINISTIC=1", "OVERRIDES=critic.optim.lr=6", spec=spec, base=WITH).status == 0
    )
    assert origins(JobDir(shared.jobs / "me"), "trainer.save_freq", "critic.optim.lr") == [
        ("trainer.save_freq=4", "DETERMINISTIC=1"),
        ("critic.optim.lr=6", "OVERRIDES"),
    ]


def test_its_variables_are_set_by_the_hook_for_verl_hands_them_to_ray_itself(submit, shared, sdk):
    spec = f"{SPEC}env_vars: {{NCCL_ALGO: Tree, MINE: '1'}}\n"
    assert submit("SUBMISSION_ID=me", "DETERMINISTIC=1", spec=spec, base=WITH).status == 0
    wanted = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "NCCL_ALGO": "Ring"}
    assert read(shared.jobs / "me" / "config" / "env_vars.json") == wanted
    by_ray = sdk.submitted[0]["runtime_env"]["env_vars"]
    assert not wanted.keys() & by_ray.keys()
    assert by_ray["MINE"] == "1"
    hooks = by_ray["VERL_REGRESS_HOOKS"].split(",")
    assert hooks[:2] == ["env_vars", "identity"]
    assert "verl_rehearsal.request_seed" in hooks
    assert f"{HELPER_DIR / 'rehearsal'}" in by_ray["PYTHONPATH"].split(":")


def test_a_variable_that_verl_sets_itself_goes_through_the_hook_without_the_knob_too(submit, shared, sdk):
    assert submit("SUBMISSION_ID=me", spec=f"{SPEC}env_vars: {{NCCL_ALGO: Tree}}\n", base=WITH).status == 0
    assert read(shared.jobs / "me" / "config" / "env_vars.json") == {"NCCL_ALGO": "Tree"}
    assert "NCCL_ALGO" not in sdk.submitted[0]["runtime_env"]["env_vars"]


@pytest.mark.parametrize("command", ["retry", "resume"])
def test_a_further_attempt_uses_the_setting_of_the_first(submit, run, ray, shared, command):
    submit("SUBMISSION_ID=me", "DETERMINISTIC=1", base=WITH)
    job = JobDir(shared.jobs / "me")
    write_checkpoint(job, 4, latest=4)
    ray.knows({"submission_id": "me", "status": "FAILED"})
    job.write_state("ended", {"exit_code": 1, "reason": "the trainer ended"})
    assert run(command, "me").status == 0
    again = job.numbered(2)
    assert origins(again, "trainer.save_freq") == [("trainer.save_freq=4", "DETERMINISTIC=1")]
    assert read(again.config / "env_vars.json") == read(job.config / "env_vars.json")


def test_a_snapshot_that_lacks_a_key_of_it_is_refused_before_anything_is_created(submit, ray):
    refused = submit("DETERMINISTIC=1", base=WITH.replace("trainer.save_freq=4", "trainer.use_v1=False"))
    assert refused.is_refusal(
        "DETERMINISTIC=1 needs trainer.use_v1, which ppo_trainer of CODE_ID=codeA (verl 0.7.1) lacks: name a snapshot whose "
        "verl has it, or leave DETERMINISTIC out."
    )
    assert ray.seen == []


def test_a_base_config_without_the_section_is_refused(submit, ray):
    assert submit("DETERMINISTIC=1").is_refusal(
        "DETERMINISTIC=1 is not possible with env/ray/cpu.yaml (RAY_BASE_CONFIG), which has no section 'deterministic': copy it from env/ray/dev.yaml, or leave DETERMINISTIC out."
    )
    assert ray.seen == []


def test_a_profile_that_is_always_deterministic_adds_nothing(submit, shared):
    base = f"{BASE}deterministic: {{}}\n"
    plain = submit("SUBMISSION_ID=plain", base=base)
    outcome = submit("SUBMISSION_ID=det", "DETERMINISTIC=1", base=base)
    assert (plain.status, outcome.status) == (0, 0)
    assert outcome.err == ("changed submitted det (ppo, code codeA, profile cpu)\n")
    names = [{path.name for path in (shared.jobs / name / "config").iterdir()} for name in ("plain", "det")]
    assert names[0] == names[1]
    overrides = [read(shared.jobs / name / "config" / "resolved.json")["overrides"] for name in ("plain", "det")]
    assert overrides[0] == json.loads(json.dumps(overrides[1]).replace("/det", "/plain").replace("=det", "=plain"))
