import json
import os

import pytest
from shared_fixtures import BASE, CONFIG, REWARD_CONFIG, SFT_CONFIG, SPEC, TRAINER, record, write, write_checkpoint

from verl_regress.base import documents, layout
from verl_regress.base.errors import BadInput
from verl_regress.base.jobspec import BaseConfig, JobSpec
from verl_regress.base.layout import JobDir
from verl_regress.base.owner import Owner
from verl_regress.base.workloads import WORKLOADS
from verl_regress.plan import plan
from verl_regress.plan.environment import Environment
from verl_regress.plan.overrides import Override
from verl_regress.plan.request import Attempt, CommandLine, Defaults, Request

HELPER = str(layout.HELPER_DIR)


def requested(spec=SPEC, base=BASE, said=None, owner=None, attempt=None, **knobs):
    """The request of a submission of these documents."""
    given = tuple(Override(text, "OVERRIDES") for text in (said or {}).get("overrides", ()))
    defaults = Defaults(
        **{"profile": "cpu", "model": "tiny", "dataset": "sums", "code_id": "codeA", "cluster": "c", **knobs}
    )
    return Request(
        JobSpec.from_document(documents.parse(spec, "ppo.yaml", "jobspec")),
        BaseConfig.from_document(documents.parse(base.replace("ADDRESS", "http://ray:1"), "cpu.yaml", "base_config")),
        CommandLine(**{**(said or {}), "overrides": given}),
        defaults,
        owner=owner,
        attempt=attempt,
    )


@pytest.fixture
def planned(shared):
    """Plans a submission of these documents."""
    return lambda **documents_and_knobs: plan.make(shared, requested(**documents_and_knobs))


def overrides_of(planned):
    return {override.parts()[1]: override.text for override in planned.composed.overrides}


def test_the_first_overrides_set_the_jobs_paths(planned, shared):
    job = planned(said={"submission_id": "me"})
    assert job.argv[:3] == ("python3", "-m", "verl.trainer.main_ppo")
    assert [override.text for override in job.composed.overrides if override.origin == "verl-regress"] == [
        f"hydra.run.dir={shared.jobs}/me/logs/hydra",
        "trainer.project_name=verl-regress",
        "trainer.experiment_name=me",
        "trainer.logger=[console,file]",
        "trainer.total_epochs=1",
        "trainer.save_freq=10",
        f"trainer.default_local_dir={shared.jobs}/me/checkpoints",
        "algorithm.adv_estimator=gae",
        f"data.train_files={shared.datasets}/sums/train.parquet",
        f"data.val_files={shared.datasets}/sums/test.parquet",
        f"actor_rollout_ref.model.path={shared.models}/tiny",
        f"critic.model.path={shared.models}/tiny",
    ]
    assert job.argv[3:] == tuple(override.text for override in job.composed.overrides)


@pytest.mark.parametrize(
    ("base", "spec", "command_line", "result", "origin"),
    [
        ([], [], [], "trainer.save_freq=10", "verl-regress"),
        (["trainer.save_freq=1"], [], [], "trainer.save_freq=1", "cpu.yaml"),
        (["trainer.save_freq=1"], ["trainer.save_freq=2"], [], "trainer.save_freq=2", "ppo.yaml"),
        (["trainer.save_freq=1"], ["trainer.save_freq=2"], ["trainer.save_freq=3"], "trainer.save_freq=3", "OVERRIDES"),
        (["trainer.project_name=y"], [], ["trainer.project_name='a=b c'"], "trainer.project_name='a=b c'", "OVERRIDES"),
        (["+trainer.new=1"], ["trainer.new=2"], [], "+trainer.new=2", "ppo.yaml"),
        (["+trainer.new=1"], ["trainer.new=2"], ["trainer.new=3"], "+trainer.new=3", "OVERRIDES"),
        (["+trainer.new=1"], ["++trainer.new=2"], [], "++trainer.new=2", "ppo.yaml"),
        ([], ["~trainer.save_freq"], [], "~trainer.save_freq", "ppo.yaml"),
        (["~trainer.save_freq"], ["trainer.save_freq=2"], [], "trainer.save_freq=2", "ppo.yaml"),
    ],
)
def test_the_layer_nearest_to_the_user_wins(planned, base, spec, command_line, result, origin):
    job = planned(
        spec=f"{SPEC}trainer_overrides: {json.dumps(spec)}\n",
        base=BASE.replace("[trainer.device=cpu, +critic.added=1]", json.dumps(base)),
        said={"overrides": tuple(command_line)},
    )
    key = Override(result, origin).parts()[1]
    won = [override for override in job.composed.overrides if override.parts()[1] == key]
    assert [(override.text, override.origin) for override in won] == [(result, origin)]


def test_a_key_added_by_one_layer_and_deleted_by_a_later_one_is_left_out(planned):
    assert "critic.added" in overrides_of(planned())
    changed = overrides_of(planned(said={"overrides": ("~critic.added", "trainer.total_epochs=2")}))
    assert "critic.added" not in changed
    assert changed["trainer.total_epochs"] == "trainer.total_epochs=2"


@pytest.mark.parametrize("text", ["trainer.device=cuda", "++trainer.device=cuda", "~trainer.device"])
def test_what_the_base_config_fixes_stays(planned, text):
    base = BASE.replace("trainer.device=cpu", "'!trainer.device=cpu'")
    job = planned(base=base, said={"overrides": ("trainer.device=cpu",)})
    assert overrides_of(job)["trainer.device"] == "trainer.device=cpu"
    with pytest.raises(BadInput) as refusal:
        planned(base=base, said={"overrides": (text,)})
    assert str(refusal.value) == (
        f"The override '{text}' (from OVERRIDES) is refused: here it is always trainer.device=cpu (cpu.yaml); leave it out."
    )


def test_shared_root_and_shape_are_filled_in_and_hydras_references_stay(planned, shared):
    text = 'a="${shared_root}/x ${workers} ${gpus_per_worker} ${gpus} ${8*gpus} ${critic.model.path} $5"'
    filled = f'="{shared.path}/x 2 4 8 64 ${{critic.model.path}} $5"'
    job = planned(
        spec=f"{SPEC}dataset: ${{shared_root}}/datasets/sums\nenv_vars: {{HERE: '${{shared_root}}/y'}}\n"
        f"trainer_overrides: ['+spec.{text}']\n",
        base=BASE.replace("trainer.device=cpu", f"'+base.{text}'"),
        said={"overrides": (f"+line.{text}",)},
        workers=2,
        gpus_per_worker=4,
    )
    overrides = overrides_of(job)
    assert [overrides[f"{layer}.a"] for layer in ("base", "spec", "line")] == [
        f"+{layer}.a{filled}" for layer in ("base", "spec", "line")
    ]
    assert job.paths.dataset == shared.datasets / "sums"
    assert job.environment.variables["HERE"] == f"{shared.path}/y"


@pytest.mark.parametrize(
    ("spec", "said", "code_id"),
    [
        ("", {}, "codeA"),
        ("code_id: codeB\n", {}, "codeB"),
        ("code_path: ${shared_root}/common/code/verl/codeB/\n", {}, "codeB"),
        ("code_id: codeB\n", {"code_id": "codeA"}, "codeA"),
        ("code_path: ${shared_root}/common/code/verl/codeB\n", {"code_id": "codeA"}, "codeA"),
    ],
)
def test_which_code(planned, shared, spec, said, code_id):
    job = planned(spec=SPEC + spec, said=said)
    assert (job.code.code_id, job.code.path) == (code_id, shared.snapshots / code_id)


@pytest.mark.parametrize(
    ("spec", "said", "submission_id"),
    [
        ("submission_id: a\n", {}, "a"),
        ("submission_id: a\n", {"submission_id": "b"}, "b"),
        ("", {"submission_id": "b"}, "b"),
    ],
)
def test_which_submission_id(planned, shared, spec, said, submission_id):
    job = planned(spec=SPEC + spec, said=said)
    assert (job.job.submission_id, job.job.path) == (submission_id, shared.jobs / submission_id)


def test_the_jobspec_wins_over_the_base_config(planned):
    job = planned(
        spec=f"{SPEC}ray: {{address: 'http://other:2'}}\nresources: {{entrypoint_num_cpus: 0.5, entrypoint_resources: "
        "{worker_node: 2, more: 1}}\nenv_vars: {TORCHDYNAMO_DISABLE: '0'}\n"
    )
    assert (job.driver.address, job.driver.entrypoint_num_cpus) == ("http://other:2", 0.5)
    assert job.driver.entrypoint_resources == {"worker_node": 2, "more": 1}
    assert job.environment.variables["TORCHDYNAMO_DISABLE"] == "0"


def test_the_base_config_fills_in_what_the_jobspec_leaves_out(planned):
    job = planned()
    assert (job.driver.address, job.driver.entrypoint_num_cpus, job.driver.entrypoint_resources) == (
        "http://ray:1",
        1,
        {"worker_node": 1},
    )
    assert job.environment.variables["TORCHDYNAMO_DISABLE"] == "1"


def test_the_folders_on_pythonpath_whose_code_the_launcher_checks(planned, shared, tmp_path):
    """Those on the shared root, by their name or by what they lead to; others only the nodes may have."""
    inside, outside = shared.user_code / "mine", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
    (alias := tmp_path / "alias").symlink_to(inside)
    (leaving := shared.user_code / "leaving").symlink_to(outside)
    path = ":".join(map(str, (inside, outside, alias, leaving)))
    assert planned(spec=f"{SPEC}env_vars: {{PYTHONPATH: '{path}'}}\n").code_dirs[:3] == (inside, alias, leaving)


def test_the_whole_plan_is_recorded(planned, shared, monkeypatch):
    ann = Owner.parse("ann:0123456789abcdef")
    monkeypatch.setenv("VERL_REGRESS_TRUSTED_UIDS", "1001 1002")
    user_reward = write(shared.user_code / "reward.py", "def compute_score(*args, **kwargs): ...\n")
    for code_id in ("codeA", "codeB"):
        config = shared.snapshots / code_id / "verl" / "trainer" / "config" / "ppo_trainer.yaml"
        write(config, CONFIG + REWARD_CONFIG)
        record(shared.snapshots / code_id)
    knob = "deterministic: {overrides: {rl: [trainer.save_freq=4, '?critic.none=${shared_root}']}}\n"
    planned_job = planned(
        spec=f"{SPEC}submission_id: me\nreward_fn_path: {user_reward}\nsecrets: [{{name: KEY}}]\ntrainer_overrides: [trainer.save_freq=3]\n",
        base=BASE.replace("+critic.added=1", "+critic.added=1, '?critic.gone=1'") + knob,
        said={"overrides": ["trainer.total_epochs=2"], "debugger": "on", "deterministic": True, "seed": 5},
        owner=ann,
        max_running=3,
    )
    resolved = planned_job.resolved()
    changed = {"trainer.total_epochs=1": "trainer.total_epochs=2", "trainer.save_freq=10": "trainer.save_freq=4"}
    origins = {"trainer.total_epochs=2": "OVERRIDES", "trainer.save_freq=4": "DETERMINISTIC=1"}
    own = [changed.get(text, text) for text in WORKLOADS["ppo"].overrides(planned_job.paths)]
    overrides = [
        *({"text": text, "origin": origins.get(text, "verl-regress")} for text in own),
        {"text": "trainer.device=cpu", "origin": "cpu.yaml"},
        {"text": "+critic.added=1", "origin": "cpu.yaml"},
        {"text": f"reward.custom_reward_function.path={user_reward}", "origin": "ppo.yaml"},
    ]
    reward, data = "reward.custom_reward_function.path", "dataset=sums (from the knob DATASET)"
    assert resolved == {
        "submission_id": "me",
        "attempt": 1,
        "parent": None,
        "workload": "ppo",
        "profile": "cpu",
        "cluster": "c",
        "owner": ann.recorded(),
        "code_id": "codeA",
        "shared_root": str(shared.path),
        "code_path": str(shared.snapshots / "codeA"),
        "model": str(shared.models / "tiny"),
        "dataset": str(shared.datasets / "sums"),
        "reward_fn": str(user_reward),
        "reward_function": f"compute_score in {user_reward}",
        "inputs": [
            {
                "key": key,
                "path": str(path),
                "named": named,
                "fact": fact,
                "needed": True,
                "outside": False,
                "is_code": False,
                "sha256": None,
            }
            for key, path, named, fact in (
                ("data.train_files", shared.datasets / "sums" / "train.parquet", data, "data sha256"),
                ("data.val_files", shared.datasets / "sums" / "test.parquet", data, "data sha256"),
                (
                    "actor_rollout_ref.model.path",
                    shared.models / "tiny",
                    "model=tiny (from the knob MODEL)",
                    "model sha256",
                ),
                (reward, user_reward, f"{reward}={user_reward} (from ppo.yaml)", "reward_fn sha256"),
            )
        ],
        "steps": {
            "after": 0,
            "last": None,  # the data is no parquet
            "total": None,
            "per_epoch": None,
            "saves": None,
            "skipped": 0,
            "is_most": False,
        },
        "sampling": {"max_prompt_length": None, "tools": None},
        "code_dirs": [],
        "caches": [f"{shared.path}/hf"],
        "trusted_uids": sorted({"0", str(os.geteuid()), "1001", "1002"}),
        "job_dir": str(shared.jobs / "me"),
        "address": "http://ray:1",
        "entrypoint": f"python3 {HELPER}/py/run.py launch {shared.jobs}/me",
        "entrypoint_num_cpus": 1,
        "entrypoint_resources": {"worker_node": 1},
        "devices": {"resource": "cpu", "count": 0, "cluster_has": None},
        "max_running": 3,
        "packages": None,
        "argv": ["python3", "-m", "verl.trainer.main_ppo", *(override["text"] for override in overrides)],
        "overrides": overrides,
        "left_out": [
            {"text": f"trainer.rollout_data_dir={shared.jobs}/me/samples", "origin": "TRAIN_SEED"},
            {"text": "critic.gone=1", "origin": "cpu.yaml"},
            {"text": f"critic.none={shared.path}", "origin": "DETERMINISTIC=1"},
            *({"text": f"{key}=5", "origin": "TRAIN_SEED"} for key in WORKLOADS["ppo"].seed_keys),
        ],
        "secrets": ["KEY"],
        "debugger": "on",
        "fail_on": [],
    }


def test_a_further_attempt_names_the_one_that_it_continues(planned, shared):
    first = JobDir(shared.jobs / "me")
    checkpoint = write_checkpoint(first, 7)
    job = planned(attempt=Attempt(first.numbered(2), first, checkpoint), said={"seed": 5})
    parent = {"attempt": 1, "checkpoint": str(checkpoint), "step": 7}
    resolved = job.resolved()
    assert (resolved["submission_id"], resolved["attempt"], resolved["parent"]) == ("me", 2, parent)
    assert resolved["job_dir"] == str(shared.jobs / "me" / "attempts" / "2")
    about = {"code_id": "codeA", "workload": "ppo", "profile": "cpu"}
    assert job.metadata() == {**about, **{f"parent_{key}": str(value) for key, value in parent.items()}}
    assert planned().metadata() == about
    resumed = overrides_of(job)
    assert resumed["trainer.resume_from_path"] == f"trainer.resume_from_path={checkpoint}"
    assert resumed["trainer.del_local_ckpt_after_load"] == "trainer.del_local_ckpt_after_load=False"


@pytest.mark.parametrize("node", [None, "", "/node/a:/node/b", ":/node/a::/node/b:"])
@pytest.mark.parametrize("base", [None, "/base"])
@pytest.mark.parametrize("spec", [None, "", "/spec/a:/spec/b", "::/spec/a:/spec/b:", "${shared_root}/spec"])
def test_pythonpath_has_the_snapshot_first_and_no_empty_entry(shared, monkeypatch, node, base, spec):
    if node is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", node)
    request = requested(
        spec=SPEC if spec is None else f"{SPEC}env_vars: {{PYTHONPATH: '{spec}'}}\n",
        base=BASE if base is None else BASE.replace('TORCHDYNAMO_DISABLE: "1"', f"PYTHONPATH: {base}"),
    )
    environment = Environment.build(shared, request, shared.snapshots / "codeA", JobDir(shared.jobs / "me"))
    asked = base if spec is None else spec.replace("${shared_root}", str(shared.path))
    wanted = [
        str(shared.snapshots / "codeA"),
        f"{HELPER}/py/hooks",
        f"{HELPER}/rehearsal",
        *(entry for entry in (asked or "").split(":") if entry),
        *(["/node/a", "/node/b"] if node else []),
    ]
    assert environment.variables["PYTHONPATH"].split(os.pathsep) == wanted


def test_only_a_profile_that_names_the_rehearsal_gets_it(planned, shared):
    """It reports into the job's directory."""
    job = planned()
    assert job.environment.runtime_env()["env_vars"]["VERL_REHEARSAL_REPORTS"] == str(job.job.reports)
    job = planned(base=BASE.replace("python_layers: [rehearsal]\n", ""))
    entries = job.environment.variables["PYTHONPATH"].split(os.pathsep)
    assert entries == [str(shared.snapshots / "codeA"), f"{HELPER}/py/hooks"]
    assert "VERL_REHEARSAL_REPORTS" not in job.environment.variables


def test_values_with_a_dollar_do_not_go_through_ray(planned, submit, shared):
    spec = f"{SPEC}env_vars: {{PLAIN: 'a b', HERE: '${{shared_root}}/y', PRICE: '5 $', REF: '${{HOME}}', SUB: '$(touch x)'}}\n"
    job = planned(spec=spec, base=BASE.replace("env_vars: {", "env_vars: {VERL_REGRESS_HOOKS: mine, BASE: $HOME, "))
    literal = {"PRICE": "5 $", "REF": "${HOME}", "SUB": "$(touch x)", "BASE": "$HOME"}
    sent = job.environment.runtime_env()["env_vars"]
    assert (sent["PLAIN"], sent["HERE"]) == ("a b", f"{shared.path}/y")
    assert not literal.keys() & sent.keys()
    assert job.environment.by_hook == literal
    # env_vars comes first, because the others see what it sets
    assert (
        sent["VERL_REGRESS_HOOKS"]
        == "env_vars,identity,process_memory,job_exceptions,transfer_queue_names,critic_attention,mine"
    )
    assert not any("$" in word for word in job.command_line())

    assert submit("SUBMISSION_ID=mine", spec=f"{SPEC}env_vars: {{REF: '${{HOME}}'}}\n").status == 0
    assert JobDir(shared.jobs / "mine").read_config("env_vars.json") == {"REF": "${HOME}"}
    assert submit("SUBMISSION_ID=plain").status == 0
    assert JobDir(shared.jobs / "plain").read_config("env_vars.json") is None  # nor does a process look for it


def test_grpo_is_main_ppo_without_a_critic_and_gets_what_the_profile_says_of_rl(planned):
    profile = "{rl: [trainer.device=cpu, data.train_batch_size=16], grpo: [data.train_batch_size=8], ppo: [critic.optim.lr=1]}"
    base = BASE.replace("{ppo: [trainer.device=cpu, +critic.added=1]}", profile)
    job = planned(spec="workload: grpo\n", base=base)
    overrides = overrides_of(job)
    assert job.argv[:3] == ("python3", "-m", "verl.trainer.main_ppo")
    assert overrides["algorithm.adv_estimator"] == "algorithm.adv_estimator=grpo"
    assert (overrides["trainer.device"], overrides["data.train_batch_size"]) == (
        "trainer.device=cpu",
        "data.train_batch_size=8",
    )
    assert not any(key.startswith("critic.") for key in overrides)
    assert overrides_of(planned(base=base))["data.train_batch_size"] == "data.train_batch_size=16"


@pytest.fixture
def sft_trainer(shared):
    trainer = shared.snapshots / "codeA" / "verl" / "trainer"
    write(trainer / "sft_trainer_ray.py", TRAINER.replace("ppo_", "sft_"))
    write(trainer / "config" / "sft_trainer.yaml", SFT_CONFIG)
    record(shared.snapshots / "codeA")


@pytest.mark.usefixtures("sft_trainer")
def test_sft_has_its_own_trainer_data_and_driver(planned, shared):
    job = planned(spec="workload: sft\n", base=BASE.replace("env_vars: {", "env_vars: {VERL_REGRESS_HOOKS: mine, "))
    assert job.argv[:3] == ("python3", "-m", "verl.trainer.sft_trainer_ray")
    assert [text for text in job.argv if text.startswith(("data.", "model."))] == [
        f"data.train_files={shared.datasets}/sums_sft/train.parquet",
        f"data.val_files={shared.datasets}/sums_sft/val.parquet",
        f"model.path={shared.models}/tiny",
    ]
    assert job.environment.variables["RAY_ADDRESS"] == "auto"
    assert job.environment.variables["VERL_REGRESS_HOOKS"] == "identity,process_memory,job_exceptions,sft_driver,mine"


def test_a_perturbed_job_has_the_hook_for_it(planned):
    assert "torch_seed" in planned(said={"seed": 5}).environment.variables["VERL_REGRESS_HOOKS"].split(",")
    hooks = planned(said={"perturbed": True}).environment.variables["VERL_REGRESS_HOOKS"]
    assert hooks == "identity,process_memory,job_exceptions,last_bit,transfer_queue_names,critic_attention"


# promise: turns Ray's debugger on for a job that did not ask for it
def test_rays_debugger_is_off_unless_it_was_asked_for(planned):
    plain = planned().environment.runtime_env()["env_vars"]
    assert plain["RAY_DEBUG"] == "0"
    assert "debugger" not in plain["VERL_REGRESS_HOOKS"]
    on = planned(said={"debugger": "1", "debugger_host": "127.0.0.1"}).environment.runtime_env()["env_vars"]
    assert (on["RAY_DEBUG"], on["VERL_REGRESS_DEBUGGER_HOST"]) == ("1", "127.0.0.1")
    assert "debugger" in on["VERL_REGRESS_HOOKS"].split(",")
    assert "RAY_DEBUG_POST_MORTEM" not in on
    after = planned(said={"debugger": "post-mortem"}).environment.runtime_env()["env_vars"]
    assert (after["RAY_DEBUG"], after["RAY_DEBUG_POST_MORTEM"]) == ("1", "1")
    assert "VERL_REGRESS_DEBUGGER_HOST" not in after
    assert (planned().resolved()["debugger"], planned(said={"debugger": "1"}).resolved()["debugger"]) == (None, "1")


def test_a_snapshot_that_cannot_run_is_refused_if_the_trainer_loads_what_is_broken(submit, shared):
    snapshot = shared.snapshots / "codeA"
    text = json.loads(record(snapshot))
    for file, status in (("verl/other.py", 0), ("verl/trainer/main_ppo.py", 2)):
        write(snapshot / "snapshot.json", json.dumps({**text, "broken": {file: "line 1: invalid syntax"}}))
        outcome = submit("DRY_RUN=1")
        assert (outcome.status, "which Python cannot compile (line 1: invalid syntax)" in outcome.err) == (
            status,
            status == 2,
        )
