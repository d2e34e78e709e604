"""The rollout server: a Ray actor per replica that answers generation requests in batches, in float32 on one thread."""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from verl.workers.rollout.replica import TokenOutput

import job_report
from verl_rehearsal.errors import RehearsalError
from verl_rehearsal.sampling import Completion, Request, SamplingParams, parse_request, sample
from verl_rehearsal.weights import sha256_of

# How many samples of each replica are reported, the first ones: enough to see how they are drawn.
REPORTED_SAMPLES = 256
# Requests come one Ray call at a time: a batch starts when none has come for this long.
QUIET_SECONDS = 0.005


class HFServer:
    """Serves a Hugging Face causal language model; the interface is what verl's agent loop and ``HFRollout`` call.

    ``TokenOutput`` was read in verl 0.7.0 (which has no ``extra_fields``), 0.7.1 and 0.8.0.
    """

    def __init__(self, model_path: str, *, response_length: int, max_num_seqs: int) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, attn_implementation="sdpa")
        self._model.train(False)
        eos = getattr(self._model.generation_config, "eos_token_id", None)
        self._eos_token_ids = frozenset(eos if isinstance(eos, list) else [eos])
        self._pad_token_id = self._model.config.pad_token_id or 0
        self._response_length = response_length
        self._max_num_seqs = max_num_seqs
        self._global_step: int | None = None
        self._samples: list[tuple[int | None, str, int, str]] = []
        self._waiting: list[tuple[Request, asyncio.Future[Completion]]] = []
        self._batching: asyncio.Task[None] | None = None
        self._model_lock = asyncio.Lock()

    async def load_weights(self, weights: Mapping[str, torch.Tensor], global_step: int | None) -> str:
        """Load a whole state dict and return the ``sha256_of`` of what the model then holds.

        Raises RehearsalError when the names or shapes are not exactly the model's own.
        """
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
        """Complete one prompt. Raises RehearsalError for images, videos, audio, and parameters not honoured."""
        if any(media.values()):
            raise RehearsalError(f"the rollout hf_cpu serves text only, not {sorted(media)}: rehearse a text workload")
        request = parse_request(prompt_ids, sampling_params, response_length=self._response_length)
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if self._batching is None or self._batching.done():
            self._batching = asyncio.create_task(self._answer_waiting())
        completion = await answer
        output = TokenOutput(
            token_ids=completion.token_ids,
            log_probs=completion.log_probs if request.wants_log_probs else None,
            stop_reason="completed",
        )
        if "extra_fields" in TokenOutput.model_fields:
            output.extra_fields["global_steps"] = self._global_step
        return output

    async def _answer_waiting(self) -> None:
        while self._waiting:
            arrived = 0
            while len(self._waiting) > arrived:
                arrived = len(self._waiting)
                await asyncio.sleep(QUIET_SECONDS)
            by_params: dict[SamplingParams, list[tuple[Request, asyncio.Future[Completion]]]] = defaultdict(list)
            batch, self._waiting = self._waiting[: self._max_num_seqs], self._waiting[self._max_num_seqs :]
            for request, answer in batch:
                by_params[request.params].append((request, answer))
            for group in by_params.values():
                await self._answer([request for request, _ in group], [answer for _, answer in group])

    async def _answer(self, requests: list[Request], answers: list[asyncio.Future[Completion]]) -> None:
        try:
            async with self._model_lock:
                completions = await asyncio.to_thread(
                    sample,
                    self._model,
                    requests,
                    eos_token_ids=self._eos_token_ids,
                    pad_token_id=self._pad_token_id,
                )
        except Exception as error:  # whatever went wrong, every caller must hear of it instead of waiting for ever
            for answer in answers:
                answer.set_exception(error)
            return
        self._report(requests, completions)
        for answer, completion in zip(answers, completions, strict=True):
            answer.set_result(completion)

    def _report(self, requests: list[Request], completions: list[Completion]) -> None:
        """Report what was drawn: global step, prompt, seed and answer of each sample, the ids of tokens as hashes."""
        room = REPORTED_SAMPLES - len(self._samples)
        if room <= 0:
            return
        for request, completion in list(zip(requests, completions, strict=True))[:room]:
            self._samples.append(
                (self._global_step, _short(request.prompt_ids), request.seed, _short(completion.token_ids))
            )
        job_report.write("rollout_samples", {"samples": self._samples})


def _short(token_ids: Sequence[int]) -> str:
    return hashlib.sha256(repr(tuple(token_ids)).encode()).hexdigest()[:12]
