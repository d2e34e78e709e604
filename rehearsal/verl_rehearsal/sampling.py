"""Batched autoregressive sampling from a Hugging Face causal language model, with one random stream per request."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import pad_sequence

from verl_rehearsal.errors import RehearsalError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens, in vLLM's words: ``top_k`` <= 0 and ``top_p`` 1 filter nothing, ``temperature`` 0 is greedy."""

    temperature: float
    top_k: int
    top_p: float
    max_tokens: int


@dataclass(frozen=True)
class SamplingRequest:
    """One prompt to complete; ``seed`` is the request's own random stream."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    wants_log_probs: bool


@dataclass(frozen=True)
class Completion:
    """Sampled ids, the end-of-sequence id included, and for each the log-prob that verl compares with."""

    token_ids: list[int]
    log_probs: list[float]


def parse_request(
    prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], *, response_length: int
) -> SamplingRequest:
    """Read the sampling parameters that verl's agent loops send; ``response_length`` is the default for ``max_tokens``.

    Raises RehearsalError for a parameter that this sampler does not support, and for a request without a seed.
    """
    given = dict(sampling_params)
    if given.get("seed") is None:
        raise RehearsalError(
            "a generation request has no seed, so its sample could not be drawn again: send requests through "
            "verl's agent loop, where rehearsal/verl_rehearsal/request_seed.py adds one"
        )
    max_tokens = given.pop("max_tokens", None) or given.pop("max_new_tokens", None) or response_length
    request = SamplingRequest(
        prompt_ids=tuple(prompt_ids),
        params=SamplingParams(
            temperature=float(given.pop("temperature", 1.0)),
            top_k=int(given.pop("top_k", -1)),
            top_p=float(given.pop("top_p", 1.0)),
            max_tokens=min(int(max_tokens), response_length),
        ),
        seed=int(given.pop("seed")),
        wants_log_probs=bool(given.pop("logprobs", False)),
    )
    if given.pop("repetition_penalty", 1.0) != 1.0 or given:
        raise RehearsalError(
            f"the rehearsal rollout does not honour these sampling parameters: {dict(sampling_params)!r}: keep to "
            "temperature, top_k, top_p and max_tokens, or teach rehearsal/verl_rehearsal/sampling.py the others"
        )
    return request


@torch.inference_mode()
def sample(
    model: "PreTrainedModel", requests: Sequence[SamplingRequest], *, eos_token_ids: frozenset[int], pad_token_id: int
) -> list[Completion]:
    """Complete ``requests``, all with equal ``params``, in one left-padded batch with a key-value cache.

    Log-probs are those of ``softmax(logits / temperature)`` before top-k and top-p (``softmax(logits)`` when greedy),
    as verl's actor computes them. A request's random numbers come from its own seed and prompt: a completion depends on
    the other requests of the batch only by float rounding.
    """
    params = requests[0].params
    prompts = [torch.tensor(request.prompt_ids) for request in requests]
    input_ids = pad_sequence(prompts, batch_first=True, padding_value=pad_token_id, padding_side="left")
    attention_mask = pad_sequence(
        [torch.ones_like(prompt) for prompt in prompts], batch_first=True, padding_side="left"
    )
    position_ids = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)
    uniforms = torch.stack([_uniforms(request) for request in requests])

    completions = [Completion([], []) for _ in requests]
    unfinished = torch.arange(len(requests))  # batch row -> request
    cache = None
    for step in range(params.max_tokens):
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        output = model(**inputs, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        token_ids, log_probs = _choose(output.logits[:, -1].float(), params, uniforms[unfinished, step])

        going_on = []
        rows = zip(unfinished.tolist(), token_ids.tolist(), log_probs.tolist(), strict=True)
        for row, (request_index, token_id, log_prob) in enumerate(rows):
            completions[request_index].token_ids.append(token_id)
            completions[request_index].log_probs.append(log_prob)
            if token_id not in eos_token_ids:
                going_on.append(row)
        if not going_on:
            break
        if len(going_on) < len(unfinished):
            kept = torch.tensor(going_on)
            cache.batch_select_indices(kept)
            unfinished, token_ids = unfinished[kept], token_ids[kept]
            attention_mask, position_ids = attention_mask[kept], position_ids[kept]
        input_ids = token_ids[:, None]
        attention_mask = torch.cat([attention_mask, torch.ones_like(input_ids)], dim=1)
        position_ids = position_ids[:, -1:] + 1
    return completions


def _uniforms(request: SamplingRequest) -> torch.Tensor:
    """Return ``max_tokens`` float64 numbers in [0, 1). They depend on the prompt too: the turns of a dialogue share a seed."""
    digest = hashlib.sha256(repr((request.seed, request.prompt_ids)).encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.rand(request.params.max_tokens, generator=generator, dtype=torch.float64)


def _choose(logits: torch.Tensor, params: SamplingParams, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose a token per row: ``logits`` (rows, vocabulary), ``uniforms`` (rows,) -> ids (rows,), log-probs (rows,)."""
    if params.temperature == 0:
        log_probs = logits.log_softmax(dim=-1)
        token_ids = logits.argmax(dim=-1)
    else:
        log_probs = (logits / params.temperature).log_softmax(dim=-1)
        cumulative = _filtered(log_probs.double().exp(), params).cumsum(dim=-1)
        thresholds = uniforms * cumulative[:, -1]
        # right=True skips tokens of probability 0, whose cumulative value equals their predecessor's.
        found = torch.searchsorted(cumulative, thresholds[:, None], right=True)[:, 0]
        token_ids = found.clamp(max=logits.shape[-1] - 1)
    return token_ids, log_probs.gather(-1, token_ids[:, None])[:, 0]


def _filtered(probabilities: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Zero the tokens that top-k and top-p exclude. ``probabilities`` (rows, vocabulary) -> the same shape, not renormalised."""
    vocabulary = probabilities.shape[-1]
    if params.top_k <= 0 and params.top_p >= 1.0:
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    if 0 < params.top_k < vocabulary:
        ordered[:, params.top_k :] = 0.0
    if params.top_p < 1.0:
        share = ordered / ordered.sum(dim=-1, keepdim=True)
        before = share.cumsum(dim=-1) - share
        ordered[before >= params.top_p] = 0.0
        ordered[:, 0] = ordered[:, 0].where(ordered[:, 0] > 0, 1.0)  # top_p 0 still leaves the likeliest token
    return torch.zeros_like(probabilities).scatter(-1, order, ordered)
