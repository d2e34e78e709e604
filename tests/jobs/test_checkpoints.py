"""Which checkpoint is whole, and the hash of its weights: equal for equal tensors, whatever the pickle beside them says."""

import json
import shutil
import zipfile
from functools import partial

import pytest
from shared_fixtures import write, write_checkpoint

from verl_regress.base.files import value_at
from verl_regress.jobs import checkpoints

RANKS = ("model_world_size_2_rank_0", "model_world_size_2_rank_1")


def save(directory, tensors=(b"weights", b"more"), pickle=b"one", ranks=RANKS, part="actor"):
    (directory / part).mkdir(parents=True, exist_ok=True)
    for name in ranks:
        with zipfile.ZipFile(directory / part / f"{name}.pt", "w") as archive:
            archive.writestr(f"{name}/data.pkl", pickle)
            for number, tensor in enumerate(tensors):
                archive.writestr(f"{name}/data/{number}", tensor)
            archive.writestr(f"{name}/.data/serialization_id", pickle)
    return checkpoints.weights_hash(directory)


def test_equal_tensors_have_one_hash_whatever_is_pickled_beside_them(tmp_path):
    assert save(tmp_path / "a") == save(tmp_path / "b", pickle=b"two")


@pytest.mark.parametrize(
    "other",
    [
        {"tensors": (b"weighty", b"more")},
        {"tensors": (b"more", b"weights")},
        {"tensors": (b"weights",)},
        {"ranks": RANKS[:1]},
        {"part": "critic"},
    ],
)
def test_other_tensors_have_another_hash(tmp_path, other):
    assert save(tmp_path / "a") != save(tmp_path / "b", **other)


def test_without_weights_that_can_be_read_there_is_none(tmp_path):
    assert checkpoints.weights_hash(tmp_path) is None
    assert save(tmp_path / "empty", tensors=()) is None
    (tmp_path / "broken" / "actor").mkdir(parents=True)
    (tmp_path / "broken" / "actor" / f"{RANKS[0]}.pt").write_bytes(b"half a zip")
    assert checkpoints.weights_hash(tmp_path / "broken") is None


# --- which checkpoint is whole


@pytest.fixture
def job(make_job):
    return make_job()


def newest(job):
    found = checkpoints.newest(job)
    return None if found is None else found.name


def test_names_are_in_order_of_their_steps(job):
    for step in (10, 9, 100):
        write_checkpoint(job, step)
    (job.checkpoints / "global_step_x").mkdir()
    write(job.checkpoints / "global_step_7", "a file")
    assert checkpoints.names(job) == ["global_step_9", "global_step_10", "global_step_100"]
    assert checkpoints.step_of("global_step_100") == 100


def test_a_checkpoint_behind_the_one_that_was_saved_last_is_half_written(job):
    for step in (1, 2, 3):
        write_checkpoint(job, step)
    for latest, name in (("2", "global_step_2"), ("3\n", "global_step_3"), ("0", None), ("", None), ("x", None)):
        write(job.checkpoints / "latest_checkpointed_iteration.txt", latest)
        assert newest(job) == name
    (job.checkpoints / "latest_checkpointed_iteration.txt").unlink()
    assert newest(job) is None


@pytest.mark.parametrize("part", ["actor", "critic"])
@pytest.mark.parametrize("kind", ["model", "optim", "extra_state"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_checkpoint_that_lacks_one_file_is_not_whole(job, part, kind, rank):
    write_checkpoint(job, 1)
    latest = write_checkpoint(job, 2, latest=2)
    assert newest(job) == "global_step_2"
    (latest / part / f"{kind}_world_size_2_rank_{rank}.pt").unlink()
    assert newest(job) == "global_step_1"


@pytest.mark.parametrize(
    ("parts", "is_whole"),
    [
        ("actor critic data.pt", True),
        ("actor data.pt", True),
        ("critic data.pt", False),
        ("data.pt", False),
        ("actor critic", False),  # the data would begin again
        ("data_0.pt", True),  # SFT has no parts
    ],
)
def test_a_checkpoint_of_rl_has_an_actor(job, parts, is_whole):
    write_checkpoint(job, 1, parts=parts, latest=1)
    assert newest(job) == ("global_step_1" if is_whole else None)


@pytest.mark.parametrize("part", ["actor", "critic"])
@pytest.mark.parametrize(
    ("files", "is_whole"),
    [
        (None, False),  # a file in its place
        ("", False),
        ("huggingface/config.json fsdp_config.json", False),
        ("model_world_size_2_rank_0.pt", False),
        ("model_world_size_1_rank_0.pt", True),
        # Megatron: 0.7.1, and 0.9.1 without and with mbridge
        ("dist_ckpt/.metadata dist_ckpt/__0_0.distcp dist_ckpt/common.pt huggingface/config.json", True),
        ("model/dist_ckpt/__0_0.distcp optimizer/dist_ckpt/__0_0.distcp ckpt_contents.json", True),
        ("model/huggingface/model-00001-of-00002.safetensors transformer_config.json", True),
        ("dist_ckpt/common.pt huggingface/config.json transformer_config.json", False),
    ],
)
def test_a_part_without_weights_is_not_whole(job, part, files, is_whole):
    write_checkpoint(job, 1)
    latest = write_checkpoint(job, 2, latest=2)
    shutil.rmtree(latest / part)
    if files is None:
        write(latest / part, "")
    else:
        (latest / part).mkdir()
        for file in files.split():
            write(latest / part / file, "weights")
    assert newest(job) == ("global_step_2" if is_whole else "global_step_1")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("actor/optim_world_size_2_rank_1.pt", "", "actor/optim_world_size_2_rank_1.pt is empty"),
        ("data.pt", "", "data.pt is empty"),
        ("data.pt", None, "it has no data.pt, so the data would begin again"),
        ("critic/model_world_size_2_rank_0.pt", None, "it has 1 of 2 files critic/model_world_size_2_rank_*.pt"),
        ("actor", None, "actor has no weights"),
        ("actor/huggingface/merges.txt", "", None),  # is empty in some models
    ],
)
def test_what_a_checkpoint_lacks(job, name, content, problem):
    checkpoint = write_checkpoint(job, 2, latest=2)
    place = checkpoint / name
    if content is not None:
        write(place, content)
    elif place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
    assert checkpoints.problem_of(checkpoint) == problem
    write_checkpoint(job, 4)
    assert next(checkpoints.all_with_problems(job)) == (
        job.checkpoints / "global_step_4",
        "it was not saved to its end",
    )


def test_what_fsdp_saved_is_for_as_many_gpus(job):
    checkpoint = write_checkpoint(job, 2)
    assert checkpoints.problem_of(checkpoint, gpus=2) is None
    assert checkpoints.problem_of(checkpoint, gpus=4) == (
        "it was saved on 2 GPUs (actor/model_world_size_2_rank_*.pt), and this job trains on 4"
    )
    for part in ("actor", "critic"):
        shutil.rmtree(checkpoint / part)
    write(checkpoint / "actor" / "dist_ckpt" / "__0_0.distcp", "weights")
    assert checkpoints.problem_of(checkpoint, gpus=4) is None


# --- what the config of the trainer that continues will load


def config_of(strategy="fsdp2", **contents):
    """verl's config, in which the actor saves or loads these contents; PPO's critic has verl's defaults."""
    all_contents = {"save_contents": [*checkpoints.ALL], "load_contents": [*checkpoints.ALL]}
    document = {
        "algorithm": {"adv_estimator": "gae"},
        "actor_rollout_ref": {"actor": {"strategy": strategy, "checkpoint": {**all_contents, **contents}}},
        "critic": {"strategy": strategy, "checkpoint": all_contents, "enable": None},
    }
    return document, partial(value_at, document)


def test_what_hf_model_saves_is_no_checkpoint_for_fsdp(job):
    """verl would load nothing, and train the base model on with the data of the steps to come."""
    checkpoint = write_checkpoint(job, 2, latest=2)
    for path in (checkpoint / "actor").iterdir():
        path.unlink()
    write(checkpoint / "actor" / "huggingface" / "model.safetensors", "weights")
    document, config = config_of(save_contents=["hf_model"], load_contents=["hf_model"])
    key = "actor_rollout_ref.actor.checkpoint"
    problem = f"actor has no model_world_size_*.pt ({key}.save_contents=[hf_model]), so verl would begin with the base weights"
    assert checkpoints.problem_of(checkpoint, config) == problem
    assert newest(job) == "global_step_2"  # without a recorded config, its own parts need weights of some kind
    write(job.config / "verl_config.yaml", json.dumps(document))
    assert list(checkpoints.all_with_problems(job)) == [(checkpoint, problem)]
    assert newest(job) is None


@pytest.mark.parametrize(
    ("contents", "missing", "problem"),
    [
        (
            {},
            "optim",
            "actor has no optim_world_size_*.pt (actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra])",
        ),
        ({}, "model", "actor has no weights"),
        ({"load_contents": ["model", "extra"]}, "optim", None),  # the optimizer is not loaded
        ({"save_contents": ["model"], "load_contents": ["model"]}, "extra_state", None),
        (
            {"load_contents": ["optimizer"]},
            "extra_state",
            "actor_rollout_ref.actor.checkpoint.load_contents=[optimizer] loads no weights, so verl would begin with the base weights",
        ),
    ],
)
def test_a_checkpoint_needs_what_is_loaded(job, contents, missing, problem):
    checkpoint = write_checkpoint(job, 2, latest=2)
    for rank in (0, 1):
        (checkpoint / "actor" / f"{missing}_world_size_2_rank_{rank}.pt").unlink()
    assert checkpoints.problem_of(checkpoint, config_of(**contents)[1]) == problem


def test_a_critic_is_needed_where_verl_trains_one(job):
    checkpoint = write_checkpoint(job, 2, "actor data.pt")
    document, config = config_of()
    assert checkpoints.problem_of(checkpoint, config) == "critic has no weights"
    document["critic"]["enable"] = False
    assert checkpoints.problem_of(checkpoint, config) is None


def test_megatron_loads_the_weights_of_hf_model(job):
    checkpoint = write_checkpoint(job, 2, "data.pt")
    document, config = config_of("megatron", save_contents=["hf_model"], load_contents=["hf_model"])
    document["critic"]["enable"] = False
    write(checkpoint / "actor" / "model" / "huggingface" / "model.safetensors", "weights")
    assert checkpoints.problem_of(checkpoint, config) is None
    document["actor_rollout_ref"]["actor"]["checkpoint"]["load_contents"] = ["hf_model", "optimizer"]
    assert checkpoints.problem_of(checkpoint, config) == (
        "actor has no *.distcp (actor_rollout_ref.actor.checkpoint.load_contents=[hf_model,optimizer])"
    )


def test_a_checkpoint_of_sft_has_its_own_data(job):
    checkpoint = write_checkpoint(job, 2, "data_0.pt")
    config = partial(value_at, {"engine": {"strategy": "fsdp"}, "checkpoint": {}})
    assert checkpoints.problem_of(checkpoint, config) is None
    (checkpoint / "data_0.pt").unlink()
    assert checkpoints.problem_of(checkpoint, config) == "it has no data_0.pt, so the data would begin again"
