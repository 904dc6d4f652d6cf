"""Sampler noise: sampling and the reported logprobs have it alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agentrl.engines.base import EnginePlace
from agentrl.engines.torch.sampling import uniforms
from benchmarks.noisy_engine import NoisyEngine, NoisyEngineSpec, SamplerNoise
from tests.engines.tiny import (
    ROUNDING,
    VOCAB,
    all_logprobs,
    make_model,
    publish,
    random_ids,
    request,
    sampled,
)


async def test_tokens_and_logprobs_are_those_of_the_noisy_logits() -> None:
    model = make_model()
    engine = NoisyEngine(
        EnginePlace("", context_tokens=64),
        NoisyEngineSpec(scale=1.5),
        config=model.config,
        state_dict=model.tensors,
    )
    noise = SamplerNoise(1.5, VOCAB, torch.device("cpu"))
    prompt = random_ids(3, 7)
    try:
        for version in (0, 1):
            if version:
                publish(engine, version, model.tensors)
            asked = request(prompt, name=f"v{version}", seed=11, max_new_tokens=12)
            ids, logprobs = sampled(await engine.generate(asked))
            whole = np.concatenate([prompt, ids])
            positions = np.arange(prompt.size, whole.size)
            clean = all_logprobs(model.exact, whole)[prompt.size - 1 : -1]
            noisy = (clean + noise.at(positions, version).double()).log_softmax(-1).numpy()
            own = noisy[np.arange(ids.size), ids]
            np.testing.assert_allclose(logprobs, own, atol=ROUNDING)
            drawn = uniforms(np.full(ids.size, 11, np.uint64), positions)
            ends = np.exp(noisy).cumsum(axis=1)
            assert [
                int(np.searchsorted(row, x)) for row, x in zip(ends, drawn, strict=True)
            ] == [*ids]
            assert np.abs(own - clean.numpy()[np.arange(ids.size), ids]).max() > 0.1
    finally:
        engine.close()


def test_noise_is_fixed_by_version_position_and_token() -> None:
    noise = SamplerNoise(2.0, 4000, torch.device("cpu"))
    first = noise.at(np.array([5, 9, 5]), 0)
    assert torch.equal(first[0], first[2])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(noise.at(np.array([5]), 1)[0], first[0])
    again = SamplerNoise(2.0, 4000, torch.device("cpu"))
    assert torch.equal(again.at(np.array([9]), 0)[0], first[1])
    assert first[0].std().item() == pytest.approx(2.0, rel=0.05)
