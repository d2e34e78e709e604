"""Makes the rehearsal's models: a Qwen2 of 2 layers that knows a quarter of its sums, and its critic.

A model that knows nothing makes a poor rehearsal: its policy is uniform, so trainer and rollout seem to agree however
wrong they are, and it never gets a reward. A model that knows everything has nothing left to learn.
"""

import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from verl_rehearsal import critic, sums
from verl_rehearsal.errors import RehearsalError
from verl_rehearsal.sampling import SamplingParams, SamplingRequest, sample

PAD_TOKEN, EOS_TOKEN = "<|endoftext|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PAIRS = [(a, b) for a in range(10) for b in range(10)]
ENOUGH, TOO_MUCH = 0.20, 0.35  # share of sampled answers that are right
STEPS_BETWEEN_CHECKS, MAX_STEPS = 5, 600
SAMPLES_PER_SUM = 4
LEARNING_RATE = 1e-3
IGNORED_LABEL = -100


def build(actor_dir: Path, critic_dir: Path, *, seed: int, for_gpu: bool = False) -> dict[str, float | int]:
    """Write actor and critic, each with the tokenizer, as Hugging Face folders; the same bytes for the same seed.

    `for_gpu`: with heads of 64, the smallest that vLLM's attention takes, and room for the lengths of GPU runs.
    Returns ``sampled_accuracy`` (share of the sums answered right at temperature 1), ``warmup_steps`` and ``seconds``.
    Raises RehearsalError if the warm-up steps over the range of accuracies that leaves something to learn.
    """
    started = time.monotonic()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the order of float additions, and so the weights, must not depend on the machine's cores
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            tokenizer = _tokenizer()
            model = Qwen2ForCausalLM(_config(tokenizer, for_gpu))
            warmup_steps, accuracy = _warm_up(model, tokenizer, seed)
            model.save_pretrained(actor_dir)
            tokenizer.save_pretrained(actor_dir)
            critic.build(actor_dir, critic_dir)
    finally:
        torch.set_num_threads(threads)
    seconds = round(time.monotonic() - started, 1)
    return {"sampled_accuracy": accuracy, "warmup_steps": warmup_steps, "seconds": seconds}


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[PAD_TOKEN, "<|im_start|>", EOS_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [f"{sums.question(a, b)} {sums.answer(a, b)}" for a, b in PAIRS]
    tokenizer.train_from_iterator([*texts, "system user assistant"], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS_TOKEN, pad_token=PAD_TOKEN)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _config(tokenizer: PreTrainedTokenizerFast, for_gpu: bool) -> Qwen2Config:
    heads, positions = (2, 2048) if for_gpu else (4, 512)
    return Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=positions,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )


def _prompt_ids(tokenizer: PreTrainedTokenizerFast, a: int, b: int) -> list[int]:
    message = {"role": "user", "content": sums.question(a, b)}
    text = tokenizer.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text)["input_ids"])


def _supervised_batch(tokenizer: PreTrainedTokenizerFast) -> dict[str, torch.Tensor]:
    """Return all sums with their answers as ``input_ids``, ``attention_mask`` and ``labels``, each (100, longest)."""
    prompts = [_prompt_ids(tokenizer, a, b) for a, b in PAIRS]
    answers = [tokenizer(sums.answer(a, b))["input_ids"] + [tokenizer.eos_token_id] for a, b in PAIRS]
    rows = list(zip(prompts, answers, strict=True))

    def padded(sequences: list[list[int]], padding: int) -> torch.Tensor:
        return pad_sequence([torch.tensor(each) for each in sequences], batch_first=True, padding_value=padding)

    return {
        "input_ids": padded([prompt + reply for prompt, reply in rows], tokenizer.pad_token_id),
        "attention_mask": padded([[1] * len(prompt + reply) for prompt, reply in rows], 0),
        "labels": padded([[IGNORED_LABEL] * len(prompt) + reply for prompt, reply in rows], IGNORED_LABEL),
    }


def _warm_up(model: Any, tokenizer: PreTrainedTokenizerFast, seed: int) -> tuple[int, float]:
    """Train until enough sampled answers are right; return the steps taken and the share that is."""
    batch = _supervised_batch(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    accuracy = 0.0
    for step in range(1, MAX_STEPS + 1):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % STEPS_BETWEEN_CHECKS == 0:
            accuracy = _sampled_accuracy(model, tokenizer, seed)
            if accuracy >= ENOUGH:
                break
    if not ENOUGH <= accuracy <= TOO_MUCH:
        raise RehearsalError(
            f"after {step} warm-up steps with seed {seed} the tiny model answers {accuracy:.0%} of the sums, not "
            f"{ENOUGH:.0%} to {TOO_MUCH:.0%}: build it with another seed"
        )
    return step, accuracy


def _sampled_accuracy(model: Any, tokenizer: PreTrainedTokenizerFast, seed: int) -> float:
    """Return the share of right answers over all sums, several samples of each, at temperature 1."""
    params = SamplingParams(temperature=1.0, top_k=-1, top_p=1.0, max_tokens=8)
    asked = [pair for pair in PAIRS for _ in range(SAMPLES_PER_SUM)]
    requests = [
        SamplingRequest(tuple(_prompt_ids(tokenizer, a, b)), params, seed=seed + index, wants_log_probs=False)
        for index, (a, b) in enumerate(asked)
    ]
    completions = sample(
        model, requests, eos_token_ids=frozenset([tokenizer.eos_token_id]), pad_token_id=tokenizer.pad_token_id
    )
    replies = tokenizer.batch_decode([completion.token_ids for completion in completions], skip_special_tokens=True)
    right = [reply.strip() == sums.answer(a, b) for reply, (a, b) in zip(replies, asked, strict=True)]
    return right.count(True) / len(asked)
