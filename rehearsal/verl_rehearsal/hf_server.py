"""The rollout server: a Ray actor per replica that answers generation requests one by one, in float32 on one thread.

In a batch, the last bits of a log-prob depend on the rest of the batch, and that depends on when requests arrive. One
by one, two runs of the same code have equal metrics, and with a tiny model that is hardly slower.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from verl.workers.rollout.replica import TokenOutput

from verl_rehearsal import report
from verl_rehearsal.errors import RehearsalError
from verl_rehearsal.sampling import Completion, SamplingRequest, parse_request, sample
from verl_rehearsal.weights import sha256_of

# How many samples each replica reports (its first ones): enough to see how they are drawn.
REPORTED_SAMPLES = 256


class HFServer:
    """Serves a Hugging Face causal language model; the interface is what verl's agent loop and ``HFRollout`` call.

    ``TokenOutput`` was read in verl 0.7.1 to 0.9.1 and main at 1dda039b.
    """

    def __init__(self, model_path: str, *, response_length: int) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, attn_implementation="sdpa")
        self._model.train(False)
        eos = getattr(self._model.generation_config, "eos_token_id", None)
        self._eos_token_ids = frozenset(eos if isinstance(eos, list) else [eos])
        self._pad_token_id = self._model.config.pad_token_id or 0
        self._response_length = response_length
        self._global_step: int | None = None
        self._samples: list[tuple[int | None, str, int, str]] = []
        self._model_lock = asyncio.Lock()

    async def load_weights(self, weights: Mapping[str, torch.Tensor], global_step: int | None) -> str:
        """Load a whole state dict and return the ``sha256_of`` of what the model then has.

        Reports the samples so far: global step, prompt, seed and answer of each, with hashes for the token ids. Raises
        RehearsalError unless the names and shapes are exactly the model's own.
        """
        report.write("rollout_samples", {"samples": self._samples})
        async with self._model_lock:
            try:
                self._model.load_state_dict(weights, strict=True)
            except RuntimeError as error:
                raise RehearsalError(f"the rollout cannot hold the actor's weights: {error}") from error
            self._global_step = global_step
            return sha256_of(self._model.state_dict())

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **media: Any
    ) -> TokenOutput:
        """Complete one prompt. Raises RehearsalError for images, videos, audio, and unsupported parameters."""
        if any(media.values()):
            raise RehearsalError(f"the rollout hf_cpu serves text only, not {sorted(media)}: rehearse a text workload")
        request = parse_request(prompt_ids, sampling_params, response_length=self._response_length)
        async with self._model_lock:
            completion = await asyncio.to_thread(self._complete, request)
        return TokenOutput(
            token_ids=completion.token_ids,
            log_probs=completion.log_probs if request.wants_log_probs else None,
            stop_reason="completed",
            extra_fields={"global_steps": self._global_step},
        )

    def _complete(self, request: SamplingRequest) -> Completion:
        tokens = {"eos_token_ids": self._eos_token_ids, "pad_token_id": self._pad_token_id}
        completion: Completion = sample(self._model, [request], **tokens)[0]
        drawn = (self._global_step, _short(request.prompt_ids), request.seed, _short(completion.token_ids))
        self._samples = [*self._samples, drawn][:REPORTED_SAMPLES]
        return completion


def _short(token_ids: Sequence[int]) -> str:
    return hashlib.sha256(repr(tuple(token_ids)).encode()).hexdigest()[:12]
