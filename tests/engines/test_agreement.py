"""The engine's logprobs are those of transformers' own forward."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest

from agentrl.engines import EnginePlace
from agentrl.engines.torch import TorchEngineSpec
from agentrl.engines.torch.model.loading import computed
from agentrl.errors import DataError
from tests.engines.tiny import ROUNDING, make_model, random_ids, request, sampled

MODELS = {
    "qwen2": {},
    "qwen2-untied": {"tie_word_embeddings": False},
    "qwen3": {},
    "qwen3-biased": {"attention_bias": True, "tie_word_embeddings": False},
    "llama": {},
    "llama-biased": {"attention_bias": True, "mlp_bias": True},
    "llama-one-kv-head": {"num_key_value_heads": 1},
    "llama-linear": {
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    },
    "llama-llama3": {
        "rope_parameters": {
            **{
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
            },
            **{"high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        }
    },
}


@pytest.mark.parametrize("name", MODELS)
async def test_logprobs_agree_with_transformers(name, start) -> None:
    model = make_model(name.split("-")[0], **MODELS[name])
    engine = start(model)
    prompts = [random_ids(index, 3 + 11 * index) for index in range(6)]
    asked = [
        request(ids, name=str(index), seed=index, max_new_tokens=20)
        for index, ids in enumerate(prompts)
    ]

    completions = await asyncio.gather(*(engine.generate(one) for one in asked))

    for prompt, completion in zip(prompts, completions, strict=True):
        ids, logprobs = sampled(completion)
        expected = model.logprobs(np.concatenate([prompt, ids]), prompt.size)
        assert np.abs(logprobs - expected).max() <= ROUNDING


async def test_a_later_turn_agrees_although_only_its_pending_tokens_were_prefilled(
    tiny, start
) -> None:
    engine, ids = start(tiny), random_ids(0, 10)
    for turn in range(3):
        completion = await engine.generate(
            request(ids, name=f"t{turn}", session="s", seed=turn)
        )
        new, logprobs = sampled(completion)
        whole = np.concatenate([ids, new])
        assert np.abs(logprobs - tiny.logprobs(whole, ids.size)).max() <= ROUNDING
        # 3 tool ids and the last sampled one
        assert completion.cached_tokens == (0 if turn == 0 else ids.size - 4)
        ids = np.concatenate([whole, random_ids(turn, 3)])


async def test_a_long_prompt_is_cut_into_chunks_that_agree(start) -> None:
    model = make_model(max_position_embeddings=2048)
    engine, ids = start(model, context_tokens=1400, max_running=1), random_ids(0, 1300)

    new, logprobs = sampled(await engine.generate(request(ids)))

    assert (
        np.abs(logprobs - model.logprobs(np.concatenate([ids, new]), ids.size)).max()
        <= ROUNDING
    )


async def test_logprobs_are_of_the_softmax_at_the_samplers_temperature(tiny, start) -> None:
    engine, prompt = start(tiny), random_ids(1, 9)

    ids, logprobs = sampled(
        await engine.generate(request(prompt, temperature=0.7, max_new_tokens=16))
    )

    whole = np.concatenate([prompt, ids])
    assert (
        np.abs(logprobs - tiny.logprobs(whole, prompt.size, temperature=0.7)).max()
        <= ROUNDING
    )
    assert np.abs(logprobs - tiny.logprobs(whole, prompt.size)).max() > 1e-2


async def test_greedy_takes_the_most_probable_token_with_its_logprob_at_temperature_1(
    tiny, start
) -> None:
    engine, prompt = start(tiny), random_ids(2, 9)

    ids, logprobs = sampled(await engine.generate(request(prompt, temperature=0.0)))

    whole = np.concatenate([prompt, ids])
    assert np.abs(logprobs - tiny.logprobs(whole, prompt.size)).max() <= ROUNDING
    for index, token in enumerate(ids):
        prefix = whole[: prompt.size + index]
        best = max(
            range(61),
            key=lambda other: tiny.logprobs(np.append(prefix, other), prefix.size)[0],
        )
        assert token == best


@pytest.mark.parametrize("name", MODELS)
async def test_bf16_agrees_within_its_own_rounding_turn_after_turn_beside_others(
    name, start
) -> None:
    model = make_model(name.split("-")[0], **MODELS[name], initializer_range=0.1)
    engine = start(model, dtype="bfloat16")

    async def episode(number: int) -> None:
        ids = random_ids(number, 3 + 7 * number)
        for turn in range(3):
            completion = await engine.generate(
                request(ids, name=f"{number}/{turn}", session=f"{number}", seed=number)
            )
            new, logprobs = sampled(completion)
            whole = np.concatenate([ids, new])
            # 8 bits of mantissa: logits of order 1 carry errors of order 2**-8 after two layers
            assert np.abs(logprobs - model.logprobs(whole, ids.size)).max() < 0.05
            assert completion.cached_tokens == (0 if turn == 0 else ids.size - 4)
            ids = np.concatenate([whole, random_ids(turn, 3)])

    await asyncio.gather(*(episode(number) for number in range(6)))


async def test_a_saved_folder_serves_the_same_as_its_state_dict(
    tiny, start, tmp_path
) -> None:
    tiny.module.save_pretrained(tmp_path)
    folder_engine = TorchEngineSpec().build(
        EnginePlace(str(tmp_path), context_tokens=128, max_running=8)
    )
    try:
        assert folder_engine.checksum() == start(tiny).checksum()
    finally:
        folder_engine.close()


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "gpt2"},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"use_sliding_window": True},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"hidden_act": "gelu"},
    ],
)
def test_the_own_decoder_computes_nothing_that_it_does_not_know(tiny, change) -> None:
    assert computed(tiny.config)
    assert not computed({**tiny.config, **change})


async def test_both_spellings_of_the_rotary_base_are_read(start) -> None:
    model = make_model("llama", rope_parameters={"rope_theta": 5e5})
    old = {key: value for key, value in model.config.items() if key != "rope_parameters"}
    asked = request(random_ids(1, 40), max_new_tokens=4)
    (_, new_ones), (_, old_ones) = [
        sampled(await start(replace(model, config=config)).generate(asked))
        for config in (model.config, {**old, "rope_theta": 5e5})
    ]
    assert new_ones.tolist() == old_ones.tolist()


def test_a_folder_without_weights_is_refused(tiny, tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny.config))
    with pytest.raises(DataError, match=r"holds no \*.safetensors"):
        TorchEngineSpec().build(EnginePlace(str(tmp_path), context_tokens=128))


def test_a_folder_that_is_none_is_refused(tmp_path) -> None:
    with pytest.raises(DataError, match=r"config\.json"):
        TorchEngineSpec().build(EnginePlace(str(tmp_path / "absent")))
