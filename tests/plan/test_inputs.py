"""What a job reads is what verl's composed config names, whoever named it."""

import gzip
import json
import os

import pytest
import yaml
from hermetic import REPO
from shared_fixtures import CONFIG, REWARD_CONFIG, SPEC, record, write

from verl_regress.base.errors import Refusals
from verl_regress.base.layout import JobDir
from verl_regress.plan import inputs
from verl_regress.plan.compose import Composed
from verl_regress.plan.environment import Environment
from verl_regress.plan.overrides import Override
from verl_regress.store.hashes import Hashes

SCORE = "reward.custom_reward_function.path"


def found(shared, config, *named):
    """The inputs of a job with this config, in which OVERRIDES name these keys."""
    environment = Environment({"HF_HOME": str(shared.hf)}, {}, {}, ())
    overrides = tuple(Override(f"{key}=x", "OVERRIDES") for key in named)
    composed = Composed(overrides, (), yaml.safe_dump(config))
    with Refusals() as wrong:
        return inputs.find(environment, JobDir(shared.jobs / "me"), composed, {}, wrong)


def leaves(node, above=""):
    for key, value in node.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", node, key


@pytest.mark.parametrize("release", ["0.8.0", "0.9.1-v1-1", "main-v1"])
def test_every_path_of_a_release_is_listed_and_its_hash_is_of_its_content(shared, release):
    run = json.loads(gzip.decompress((REPO / "tests" / "recorded" / "verdict" / f"ppo-{release}.json.gz").read_bytes()))
    config = yaml.safe_load(run["config/verl_config.yaml"])
    named = {}
    for number, (key, node, name) in enumerate([*leaves(config)]):
        if name.endswith(("path", "paths", "file", "files", "dir")) and not key.endswith(inputs._WRITTEN):
            file = write(shared.user_code / "own" / f"{number}.bin", f"content {number}")
            node[name] = named[key] = str(file)
            if key.endswith("model.path"):
                write(shared.user_code / "own" / f"model-{number}" / "config.json", "{}")
                node[name] = named[key] = str(shared.user_code / "own" / f"model-{number}")
    assert len(named) > 25
    listed = found(shared, config, *named)
    assert {one.key: str(one.path) for one in listed} == named
    assert {one.fact for one in listed} >= {"data sha256", "model sha256", "reward_fn sha256"}
    before = {one.path: Hashes(shared).content_of(one.path) for one in listed}
    for one in listed:
        write(one.path / "config.json" if one.path.is_dir() else one.path, "other")
        now = {each.path: Hashes(shared).content_of(each.path) for each in listed}
        assert [path for path in now if now[path] != before[path]] == [one.path]
        before = now


@pytest.fixture
def planned(submit, shared):
    """A dry run with these overrides."""
    config = shared.snapshots / "codeA" / "verl" / "trainer" / "config" / "ppo_trainer.yaml"
    write(config, CONFIG + REWARD_CONFIG)
    record(shared.snapshots / "codeA")
    return lambda *texts, **more: submit("DRY_RUN=1", f"OVERRIDES={' '.join(texts)}", **more)


def listed(outcome):
    plan = json.JSONDecoder().raw_decode(outcome.out.split("# resolved config\n", 1)[1])[0]
    return {each["path"]: each["named"].rpartition(" (from ")[2][:-1] for each in plan["inputs"]}


def test_what_an_override_names_is_listed_and_the_defaults_are_not_wanted(planned, shared):
    own = shared.path / "user" / "nl2sql"
    files = [str(write(own / name, "")) for name in ("train.parquet", "test.parquet")]
    write(own / "model" / "config.json", "{}")
    write(own / "model" / "pytorch_model.bin", "weights")
    said = (
        f"data.train_files=[{files[0]}]", f"data.val_files=file://{files[1]}", f"actor_rollout_ref.model.path={own}/model",
        f"critic.model.path={own}/model", f"+data.shown={files[0]}",
    )  # fmt: skip
    outcome = planned(*said, dataset="not-prepared", model="not-prepared")
    assert outcome.status == 0
    assert listed(outcome) == dict.fromkeys((*files, f"{own}/model"), "OVERRIDES")
    plan = json.JSONDecoder().raw_decode(outcome.out.split("# resolved config\n", 1)[1])[0]
    assert (plan["model"], plan["dataset"]) == (f"{own}/model", ", ".join(files))


def test_what_a_jobspec_names_as_data_set_is_a_folder(planned, shared):
    file = write(shared.datasets / "dapo" / "dapo.parquet", "")
    assert planned("trainer.save_freq=1", spec=f"{SPEC}dataset: {file}\n").is_refusal(
        f"dataset={file} (from my/ppo.yaml) is a file, but dataset names a folder: one file goes into data.train_files and data.val_files."
    )


@pytest.mark.parametrize("model", ["/no/such/model", "LINK"])
def test_a_model_outside_is_a_warning_whoever_names_it(planned, shared, tmp_path, model):
    (shared.models / "link").symlink_to(tmp_path)
    write(tmp_path / "config.json", "{}")
    asked = f"model={model.replace('LINK', 'link')} (from my/ppo.yaml)"
    outcome = planned("trainer.save_freq=1", spec=f"{SPEC}model: {model.replace('LINK', 'link')}\n")
    assert (outcome.status, outcome.err.startswith(f"warning {asked}: not under {shared.path}, ")) == (0, True)


@pytest.mark.parametrize("model", ["${shared_root}", "../..", "x" * 300])
def test_a_model_of_a_jobspec_that_is_none_is_refused_under_its_own_name(planned, shared, model):
    outcome = planned("trainer.save_freq=1", spec=f"{SPEC}model: {model}\n")
    named = f"error   model={model.replace('${shared_root}', str(shared.path))[:100]}"
    assert (outcome.status, outcome.created, outcome.err.startswith(named)) == (2, [], True), outcome.err


@pytest.mark.parametrize("path", ["recipe/mine/reward.py", "./reward.py", "reward.py"])
def test_a_relative_path_is_refused(planned, path):
    assert planned(f"{SCORE}={path}").is_refusal(
        f"{SCORE}={path} (from OVERRIDES) is a relative path, and each process has another current directory: write "
        "${shared_root}/user/code/… or another whole path."
    )


def test_a_path_that_goes_up_is_refused(planned, shared):
    path = f"{shared.path}/user/../x.parquet"
    assert planned(f"data.val_files={path}").is_refusal(
        f"data.val_files={path} (from OVERRIDES) is refused: it must do without '..'."
    )


def test_a_file_that_is_missing_is_refused(planned, shared):
    path = f"{shared.path}/user/none.parquet"
    assert planned(f"data.val_files=[{shared.datasets}/sums/test.parquet,{path}]").is_refusal(
        f"data.val_files={path} (from OVERRIDES) is not usable, because {path} is missing: name one that is there."
    )


def test_a_pipe_is_refused_and_not_read(planned, shared):
    os.mkfifo(pipe := shared.user_code / "score.py")
    for key in (SCORE, "data.val_files"):
        assert planned(f"{key}={pipe}").is_refusal(
            f"{key}={pipe} (from OVERRIDES) is not usable, because {pipe} is neither a file nor a folder: name one that is there."
        )


def test_what_only_the_job_can_fill_in_is_left_to_it(shared):
    assert found(shared, {"data": {"own_path": "${oc.env:OF_THE_JOB}/x"}}, "data.own_path") == ()


def test_what_only_the_nodes_may_have_is_one_warning(planned, shared, tmp_path):
    outside = write(tmp_path / "there.parquet", "")
    (link := shared.user_code / "link.parquet").symlink_to(outside)
    outcome = planned(f"data.val_files={link}", "data.train_files=/no/such/x.parquet")
    assert (outcome.status, outcome.err) == (
        0,
        f"warning data.train_files=/no/such/x.parquet (from OVERRIDES), data.val_files={link} (from OVERRIDES): not under {shared.path}, so "
        "every worker must have the same there.\n",
    )


def test_a_text_that_looks_like_a_path_by_chance_is_no_input(planned, shared):
    texts = [
        "trainer.experiment_name=/think", f"trainer.project_name={shared.path}", f"+data.stop={shared.user_code}",
        "+data.long=/" + "x" * 5000, "+data.url=https://a.b/c.py", "+data.custom_path=pkg://verl.x",
        "+trainer.repo=org/name", "+trainer.validation_data_dir=${trainer.default_local_dir}/x", "+global_profiler.save_path=outputs/x",
        "+data.empty_path=", "+data.none_path=null",
        "+reward.custom_reward_function.reward_kwargs.from_file=think",
    ]  # fmt: skip
    outcome = planned(*texts)
    assert (outcome.status, outcome.err) == (0, "")
    usual = {str(shared.models / "tiny"), *(f"{shared.datasets}/sums/{name}.parquet" for name in ("train", "test"))}
    assert listed(outcome).keys() == usual


def test_what_a_reward_function_imports_beside_it_goes_with_it_and_is_not_run(planned, shared):
    home = shared.user_code / "mine"
    score = write(
        home / "score.py", "import torch, json, helper\ndef compute_score():\n    from parts.inner import x\n"
    )
    for name, source in (
        ("helper.py", "import score, broken\nraise SystemExit\n"), ("parts/__init__.py", ""), ("parts/inner.py", "from . import deep\n"),
        ("parts/deep.py", ""), ("json.py", ""), ("unused.py", ""), ("broken.py", "def ("),
    ):  # fmt: skip
        write(home / name, source)
    paths = listed(planned(f"{SCORE}={score}"))
    beside = {path: origin for path, origin in paths.items() if path.startswith(str(home))}
    assert beside == {
        str(score): "OVERRIDES",
        f"{home}/helper.py": f"an import in {score}",
        f"{home}/broken.py": f"an import in {score}",
        **{f"{home}/parts/{name}.py": f"an import in {score}" for name in ("__init__", "inner", "deep")},
    }


def test_a_repository_is_looked_up_in_the_cache_of_the_hub(planned, shared):
    model = shared.hf / "hub" / "models--org--name"
    assert planned("actor_rollout_ref.model.path=org/name").status == 0  # the nodes may fetch it
    write(model / "snapshots" / "abc" / "config.json", "{}")
    assert listed(planned("actor_rollout_ref.model.path=org/name"))[str(model)] == "OVERRIDES"


def test_a_repository_without_a_slash_is_one_only_if_the_cache_has_it(planned, shared):
    assert planned("actor_rollout_ref.model.path=gpt2").is_refusal(
        "actor_rollout_ref.model.path=gpt2 (from OVERRIDES) is neither a repository in the hub's cache nor a whole path, and each process has "
        "another current directory: write ${shared_root}/user/code/… or another whole path."
    )
    write(shared.hf / "hub" / "models--gpt2" / "snapshots" / "abc" / "config.json", "{}")
    outcome = planned("actor_rollout_ref.model.path=gpt2", "trainer.project_name=gpt2")
    assert listed(outcome)[f"{shared.hf}/hub/models--gpt2"] == "OVERRIDES"
    assert planned("data.train_files=gpt2").status == 2


def test_a_folder_that_may_not_be_listed_is_a_model(shared, monkeypatch):
    model, access = write(shared.user_code / "closed" / "weights.bin", "").parent, os.access
    config = {"mine": {"anything": str(model)}}
    assert found(shared, config, "mine.anything") == ()
    monkeypatch.setattr(os, "access", lambda path, mode: path != model and access(path, mode))
    assert [(one.path, one.fact) for one in found(shared, config, "mine.anything")] == [(model, "model sha256")]


def test_a_place_that_each_job_would_write_into_is_refused(planned, shared):
    """Before: the answers of all jobs were dumped over each other."""
    place = f"trainer.rollout_data_dir={shared.path}/user/rollouts"
    assert planned(f"+{place}").is_refusal(
        f"{place} (from OVERRIDES) is where each job that has it would write over the files of the others: leave it out, or write "
        f"{place}/${{trainer.experiment_name}}, which is the job's own name."
    )
    assert planned(f"+{place}/${{trainer.experiment_name}}").status == 0
    assert planned("+trainer.rollout_data_dir=${trainer.default_local_dir}/rollouts").status == 0


def test_a_repository_that_the_cache_lacks_is_refused_in_a_job_that_asks_nobody(planned):
    offline = f"{SPEC}env_vars: {{HF_HUB_OFFLINE: '1'}}\n"
    outcome = planned("actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct", spec=offline)
    assert (outcome.status, outcome.created) == (2, [])
    assert "and HF_HUB_OFFLINE=1 (from my/ppo.yaml) keeps the job from fetching it: " in outcome.err
    assert planned("actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct").status == 0
