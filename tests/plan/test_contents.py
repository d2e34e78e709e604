"""Data and models that no job can take its first step with are refused before it waits; the files are only looked into."""

import json
import sys
import zipfile

import fake_pyarrow
import pytest
from fake_pyarrow import CONVERSATION, parquet
from shared_fixtures import CONFIG, record, write, write_checkpoint

from verl_regress.base.layout import JobDir

pytestmark = pytest.mark.slow

DATA = "data: {train_files: x, val_files: x, train_batch_size: 1024, gen_batch_size: null, train_max_samples: -1, prompt_key: prompt}"


@pytest.fixture
def planned(submit, shared, monkeypatch):
    """A dry run with these overrides, where pyarrow takes the rows and columns from JSON."""

    fake_pyarrow.install(monkeypatch)
    lines = [DATA if line.startswith("data:") else line for line in CONFIG.splitlines()]
    write(shared.snapshots / "codeA" / "verl" / "trainer" / "config" / "ppo_trainer.yaml", "\n".join(lines) + "\n")
    record(shared.snapshots / "codeA")
    for name in ("train", "test"):
        parquet(shared.datasets / "sums" / f"{name}.parquet", 8)
    return lambda *texts, **more: submit(
        "DRY_RUN=1", f"OVERRIDES={' '.join(('data.train_batch_size=8', *texts))}", **more
    )


def test_rows_that_make_no_batch_are_refused(planned, shared):
    """Before: `integer division or modulo by zero`, after a minute."""
    files = [str(parquet(shared.user_code / "own" / f"{number}.parquet", rows)) for number, rows in ((1, 7), (2, 1))]
    assert planned(f"data.train_files={files[0]}").is_refusal(
        f"data.train_files={files[0]} (from OVERRIDES) gives 7 rows, which make no batch of 8: write a smaller data.train_batch_size, or name "
        "more rows."
    )
    cut = "data.train_max_samples=7"
    assert planned(cut).status == 2
    accepted = (
        (f"data.train_files=[{files[0]},{files[1]}]",),
        (cut, "data.gen_batch_size=4"),
        (cut, "+data.sampler.class_path=pkg://mine"),  # may draw a row twice
        (cut, "data.train_files=[/no/x.parquet]"),  # which only the nodes may have
    )
    assert [planned(*texts).status for texts in accepted] == [0, 0, 0, 0]


def test_a_column_that_is_missing_is_refused(planned, shared):
    file = parquet(shared.user_code / "own" / "a.parquet", 8, question=CONVERSATION, answer="string")
    assert planned(f"data.val_files=[{file}]").is_refusal(
        f"data.val_files={file} (from OVERRIDES) has no column 'prompt' (data.prompt_key of verl's config): name one of question, answer."
    )
    assert planned(f"data.val_files=[{file}]", "data.prompt_key=question").status == 2  # the training data has none
    assert planned(f"data.train_files={file}", f"data.val_files=[{file}]", "data.prompt_key=question").status == 0
    assert planned(f"data.val_files=[{file}]", "+data.custom_cls.path=pkg://mine").status == 0


def test_a_file_that_is_no_parquet_is_refused(planned, shared):
    file = write(shared.user_code / "own" / "a.parquet", "")
    outcome = planned(f"data.train_files={file}")
    assert (outcome.status, outcome.created) == (2, [])
    assert outcome.err.startswith(
        f"error   data.train_files={file} (from OVERRIDES) is not a parquet file that can be read ("
    )


def test_without_pyarrow_nothing_is_said_of_the_data(planned, shared, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert planned(f"data.train_files={write(shared.user_code / 'own' / 'a.parquet', '')}").status == 0


ROLLOUT = "+actor_rollout_ref.rollout={{n:{},tensor_model_parallel_size:{}}}"
ACTOR = "+actor_rollout_ref.actor={{use_dynamic_bsz:{},strategy:fsdp}}"
SIX = ("+trainer.nnodes=2", "+trainer.n_gpus_per_node=3")


def test_a_batch_that_the_gpus_cannot_share_is_refused(planned):
    """Before: verl's assertion ended the job, once its trainer ran."""
    refused = "data.train_batch_size=8 (from OVERRIDES) with actor_rollout_ref.rollout.n=5 gives 40 answers, which 6 cpu cannot share evenly: "
    assert planned(*SIX, ROLLOUT.format(5, 1), ACTOR.format("false")).is_refusal(
        f"{refused}write data.train_batch_size=12."
    )
    assert planned(*SIX, ROLLOUT.format(3, 1), ACTOR.format("false")).status == 0
    assert planned(*SIX, ROLLOUT.format(5, 1), ACTOR.format("true")).status == 0  # verl cuts it by its tokens


def test_a_rollout_that_does_not_fit_the_gpus_is_refused(planned):
    assert planned(*SIX, ROLLOUT.format(3, 4), ACTOR.format("false")).is_refusal(
        "actor_rollout_ref.rollout.tensor_model_parallel_size=4 (from OVERRIDES) does not divide the job's 6 cpu (trainer.nnodes times "
        "trainer.n_gpus_per_node): write 3."
    )
    assert planned(*SIX, ROLLOUT.format(3, 2), ACTOR.format("false")).status == 0
    more = "+actor_rollout_ref.rollout.data_parallel_size=2"
    assert planned(*SIX, ROLLOUT.format(3, 2), more, ACTOR.format("false")).is_refusal(
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2 (from OVERRIDES) times actor_rollout_ref.rollout.data_parallel_size=2 (from OVERRIDES) "
        "does not divide the job's 6 cpu (trainer.nnodes times trainer.n_gpus_per_node): write 3 as their product."
    )
    apart = "+actor_rollout_ref.rollout.disaggregation={enabled:true}"  # prefill and decode have sizes of their own
    assert planned(*SIX, ROLLOUT.format(3, 4), apart, ACTOR.format("false")).status == 0


RESUME = "trainer.resume_mode=resume_path"


@pytest.mark.parametrize(("attention", "is_refused"), [("sdpa", True), ("eager", True), ("flash_attention_2", False)])
def test_sequences_are_split_in_flash_attention_alone(planned, attention, is_refused):
    chosen = f"+actor_rollout_ref.model.override_config={{attn_implementation:{attention}}}"
    asked = planned(chosen, "+actor_rollout_ref.actor.ulysses_sequence_parallel_size=2")
    assert asked.status == 2
    assert (f"attn_implementation is {attention}: write ++actor_rollout_ref.model." in asked.err) is is_refused
    assert ("needs the package flash-attn, which worker-0, worker-1, worker-2 lack" in asked.err) is not is_refused


@pytest.fixture
def checkpoint(shared):
    return write_checkpoint(JobDir(shared.jobs / "earlier"), 4)


def test_a_checkpoint_that_is_not_complete_is_refused(planned, checkpoint):
    named = f"trainer.resume_from_path={checkpoint}"
    assert planned(RESUME, named).status == 0
    (checkpoint / "data.pt").unlink()
    assert planned(RESUME, named).is_refusal(
        f"{named} (from OVERRIDES) is not usable, because it has no data.pt, so the data would begin again: name another checkpoint."
    )
    assert planned("trainer.resume_mode=disable", named).status == 0


def test_a_checkpoint_of_other_gpus_is_refused(planned, checkpoint):
    """Before: verl looked for model_world_size_4_rank_0.pt, once all processes had started."""
    gpus = ("+trainer.nnodes=2", "+trainer.n_gpus_per_node=2")
    named = f"trainer.resume_from_path={checkpoint}"
    assert planned(RESUME, named, *gpus).is_refusal(
        f"{named} (from OVERRIDES) is not usable, because it was saved on 2 GPUs (actor/model_world_size_2_rank_*.pt), and this job trains on 4: "
        "name another checkpoint."
    )
    assert planned(RESUME, named, "+trainer.nnodes=1", gpus[1]).status == 0


def test_a_checkpoint_that_verl_would_not_read_is_refused(planned, checkpoint):
    """Before: it trained from its first step, and said nothing."""
    named = f"trainer.resume_from_path={checkpoint}"
    assert planned(named).is_refusal(
        f"{named} (from OVERRIDES) is not read with trainer.resume_mode=auto: write trainer.resume_mode=resume_path."
    )
    for name in (f"{named}/", f"trainer.resume_from_path={checkpoint.parent}"):
        assert "is no checkpoint that verl takes: name a folder global_step_N, " in planned(RESUME, name).err


def safetensors(path, length=100, missing=0, name="w"):
    head = json.dumps(
        {"__metadata__": {}, name: {"dtype": "U8", "shape": [length], "data_offsets": [0, length]}}
    ).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((len(head).to_bytes(8, "little") + head + b"x" * length)[: -missing or None])
    return path.stat().st_size


@pytest.fixture
def model(shared):
    folder = shared.models / "own"
    write(folder / "config.json", "{}")
    write(folder / "tokenizer.json", "{}")
    return folder


def test_weights_that_are_cut_are_refused(planned, model):
    size = safetensors(model / "model.safetensors", missing=40)
    assert planned(model="own").is_refusal(
        f"model=own (from the knob MODEL) is not usable, because model.safetensors is cut: it has {size} of {size + 40} "
        "bytes: copy the model again."
    )
    safetensors(model / "model.safetensors")
    assert planned(model="own").status == 0


@pytest.mark.parametrize("content", ["version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "", "x" * 7])
def test_weights_that_are_a_pointer_are_refused(planned, model, content):
    write(model / "model.safetensors", content)
    outcome = planned(model="own")
    assert (outcome.status, "bytes that are not those of a safetensors file" in outcome.err) == (2, True)


def test_a_shard_that_the_index_names_is_needed(planned, model):
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    write(
        model / "model.safetensors.index.json",
        json.dumps({"weight_map": {"a": names[0], "b": names[1], "c": names[0]}}),
    )
    safetensors(model / names[0])
    safetensors(model / "consolidated.safetensors", missing=40)  # nothing reads it
    assert planned(model="own").is_refusal(
        f"model=own (from the knob MODEL) is not usable, because {names[1]} is missing, which model.safetensors.index.json "
        "names: copy the model again."
    )
    safetensors(model / names[1])
    assert planned(model="own").status == 0
    write(model / "model.safetensors.index.json", "[")
    assert planned(model="own").status == 0  # verl says it


def test_a_model_without_a_tokenizer_is_refused(planned, model):
    """Before: `Expected Qwen newline to tokenize to one token`, after the model had been loaded."""
    safetensors(model / "model.safetensors")
    tokenizer = model / "tokenizer.json"
    tokenizer.rename(model / "vocab.json")
    assert planned(model="own").status == 0
    (model / "vocab.json").unlink()
    outcome = planned(model="own")
    assert (outcome.status, "has weights, and no file of a tokenizer: copy " in outcome.err) == (2, True)
    assert planned("+actor_rollout_ref.model.tokenizer_path=org/name", model="own").status == 0


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight",
        "model.layers.0.self_attn.q_proj.lora_A.default.weight",
        "module.model.embed_tokens.weight",
        "model._fsdp_wrapped_module.embed_tokens.weight",
        "_orig_mod.model.embed_tokens.weight",
    ],
)
def test_weights_with_the_names_of_a_wrapper_are_refused(planned, model, name):
    """Before: transformers drew all weights at random, and the job succeeded."""
    safetensors(model / "model.safetensors", name=name)
    assert planned(model="own").is_refusal(
        f"model=own (from the knob MODEL) is not a model as transformers loads it, because model.safetensors has {name}, the name in a wrapper "
        "that was saved with it (LoRA, FSDP, DDP or compile), so that all weights would be drawn at random: merge it (python3 -m "
        "verl.model_merger merge, or peft's merge_and_unload), and name the merged model."
    )


def test_the_names_in_a_file_of_torch_count_too(planned, model):
    with zipfile.ZipFile(model / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", b"X.\x00model.layers.0.q_proj.base_layer.weightq\x01")
    assert "has model.layers.0.q_proj.base_layer.weight, the name in a wrapper" in planned(model="own").err


def test_a_model_without_weights_is_refused(planned, model):
    """Before: it failed once the workers loaded it."""
    assert planned(model="own").is_refusal(
        "model=own (from the knob MODEL) has a config.json and no weights, as the folder huggingface of a checkpoint has: merge the checkpoint "
        "first (python3 -m verl.model_merger merge --backend fsdp --local_dir CHECKPOINT/actor --target_dir NEW), and name the new folder."
    )
