"""Sampling: the log-probs are the model's, the seeds are the requests' own, and the parameters are honoured."""

import pytest
import torch

from verl_rehearsal.errors import RehearsalError
from verl_rehearsal.sampling import SamplingParams, SamplingRequest, parse_request, sample

PROMPTS = [(5, 9, 30, 31), (7,), (12, 40, 3, 8, 21, 60), (7,)]


def run(actor, prompts=PROMPTS, *, seeds=None, eos=frozenset([2]), **params):
    chosen = SamplingParams(**{"temperature": 1.0, "top_k": -1, "top_p": 1.0, "max_tokens": 10, **params})
    requests = [
        SamplingRequest(prompt, chosen, seed, wants_log_probs=True)
        for prompt, seed in zip(prompts, seeds or range(len(prompts)), strict=True)
    ]
    return sample(actor, requests, eos_token_ids=eos, pad_token_id=0)


def forward_log_probs(actor, prompt, completion, temperature):
    with torch.no_grad():
        logits = actor(torch.tensor([[*prompt, *completion.token_ids]])).logits[0].float()
    return (logits / temperature).log_softmax(-1)[len(prompt) - 1 : -1]


@pytest.mark.parametrize("params", [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.8}, {"temperature": 0.0}])
def test_log_probs_are_those_of_a_plain_forward(actor, params):
    temperature = params.get("temperature", 1.0) or 1.0
    for prompt, completion in zip(PROMPTS, run(actor, **params), strict=True):
        expected = forward_log_probs(actor, prompt, completion, temperature)
        expected = expected.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(completion.log_probs), expected, atol=2e-4, rtol=0)


def test_a_completion_depends_on_its_seed_and_not_on_its_batch(actor):
    together = [completion.token_ids for completion in run(actor)]
    alone = [run(actor, [prompt], seeds=[seed])[0].token_ids for seed, prompt in enumerate(PROMPTS)]
    backwards = [completion.token_ids for completion in run(actor, PROMPTS[::-1], seeds=[3, 2, 1, 0])][::-1]
    assert together == alone == backwards
    assert together[1] != together[3]  # one prompt, two seeds


def test_samples_follow_the_models_distribution(actor):
    prompt = PROMPTS[0]
    count = 2000
    drawn = run(actor, [prompt] * count, max_tokens=1)
    with torch.no_grad():
        expected = actor(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    ids = torch.tensor([completion.token_ids[0] for completion in drawn])
    shares = torch.bincount(ids, minlength=len(expected)) / count
    assert (shares - expected).abs().max() < 0.04


def test_greedy_takes_the_likeliest_token(actor):
    for prompt, completion in zip(PROMPTS, run(actor, temperature=0.0), strict=True):
        assert completion.token_ids == forward_log_probs(actor, prompt, completion, 1.0).argmax(-1).tolist()


@pytest.mark.parametrize(("params", "allowed"), [({"top_k": 2}, 2), ({"top_p": 0.0}, 1), ({"top_k": 1}, 1)])
def test_filters_exclude_all_but_the_likeliest_tokens(actor, params, allowed):
    for prompt, completion in zip(PROMPTS, run(actor, **params), strict=True):
        ranks = forward_log_probs(actor, prompt, completion, 1.0).argsort(-1, descending=True)
        for position, token_id in enumerate(completion.token_ids):
            assert token_id in ranks[position, :allowed]


def test_a_row_ends_at_its_end_of_sequence_and_the_others_go_on(actor):
    free = run(actor, eos=frozenset())
    assert all(len(completion.token_ids) == 10 for completion in free)
    end = free[0].token_ids[2]
    for completion, whole in zip(run(actor, eos=frozenset([end])), free, strict=True):
        ids = whole.token_ids
        assert completion.token_ids == (ids[: ids.index(end) + 1] if end in ids else ids)


def test_a_request_is_read_with_verls_defaults():
    request = parse_request([1, 2], {"temperature": 0.5, "repetition_penalty": 1.0, "seed": 9}, response_length=24)
    assert request == SamplingRequest((1, 2), SamplingParams(0.5, -1, 1.0, 24), 9, wants_log_probs=False)
    longer = parse_request([1], {"seed": 0, "logprobs": True, "max_tokens": 99}, response_length=24)
    assert (longer.params.max_tokens, longer.wants_log_probs) == (24, True)


def test_a_request_without_a_seed_is_refused():
    with pytest.raises(RehearsalError, match=r"^a generation request has no seed, .*/request_seed\.py adds one$"):
        parse_request([1], {"temperature": 1.0}, response_length=4)


@pytest.mark.parametrize("unknown", [{"stop": ["\n"]}, {"repetition_penalty": 1.1}])
def test_a_parameter_that_is_not_honoured_is_refused(unknown):
    with pytest.raises(RehearsalError, match="does not honour these sampling parameters"):
        parse_request([1], {"seed": 0, **unknown}, response_length=4)
