"""Families that the engine's own decoder does not compute, served by transformers' forward: same
engine, same facts.
"""

from __future__ import annotations

import asyncio
import logging

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from agentrl.engines import EnginePlace
from agentrl.engines.checksum import tensor_checksum
from agentrl.engines.torch import TorchEngine, TorchEngineSpec
from agentrl.engines.torch.model.transformers_model import TransformersModel
from agentrl.errors import ConfigError, EngineError
from tests.engines.tiny import (
    ROUNDING,
    TinyModel,
    make_model,
    publish,
    random_ids,
    request,
    sampled,
)

GPT = {"num_key_value_heads": 4}
FAMILIES = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "gpt_neox": GPT,
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "pad_token_id": 1},
    "phi": GPT | {"partial_rotary_factor": 0.5},
    "phi3": {"pad_token_id": 0, "sliding_window": 11},
    "gemma": {},
    "gemma2": {"sliding_window": 9, "query_pre_attn_scalar": 8},
    "gemma3_text": {"sliding_window": 9, "query_pre_attn_scalar": 8, "layer_types": None},
    "mistral": {"sliding_window": 13},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 9,
        "rope_parameters": None,
    },
    "cohere": {},
    "olmo2": {},
    "starcoder2": {},
    "granite": {"attention_multiplier": 0.1},
    "glm4": {"pad_token_id": 0},
    "stablelm": {},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2, "head_dim": None},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "rotary_dim": 4},
    "qwen2": {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    "llama": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
    "deepseek_v3": {
        **{
            "kv_lora_rank": 8,
            "q_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 6,
        },
        **{
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 16,
        },
        **{"num_key_value_heads": 4, "head_dim": 4, "first_k_dense_replace": 1},
    },
}


def agree(model: TinyModel, completion, prompt: np.ndarray) -> None:
    ids, logprobs = sampled(completion)
    assert (
        np.abs(logprobs - model.logprobs(np.concatenate([prompt, ids]), prompt.size)).max()
        <= ROUNDING
    )


@pytest.mark.wide
@pytest.mark.parametrize("family", FAMILIES)
async def test_logprobs_of_three_turns_agree_with_transformers(family, start) -> None:
    model = make_model(family, **FAMILIES[family])
    engine = start(model, max_running=4)

    async def episode(number: int) -> None:
        ids = random_ids(number, 3 + 5 * number)
        for turn in range(3):
            asked = request(
                ids,
                name=f"{number}/{turn}",
                session=f"{number}",
                seed=number,
                max_new_tokens=5 + number,
            )
            completion = await engine.generate(asked)
            agree(model, completion, ids)
            assert completion.cached_tokens == (0 if turn == 0 else ids.size - 4)
            ids = np.concatenate([ids, sampled(completion)[0], random_ids(turn, 3)])

    await asyncio.gather(*(episode(number) for number in range(6)))


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "mixtral"])
async def test_the_engines_behaviours_hold_for_them_too(family, start) -> None:
    model = make_model(family, **FAMILIES[family])
    prompt = random_ids(0, 40)
    engine = start(
        model,
        max_running=3,
        kv_tokens=3 * 128 + 60,
        decode=lambda ids: "".join(f"<{i}>" for i in ids),
    )
    asked = [
        request(prompt, name=f"{n}", seed=n, max_new_tokens=4 + 9 * n) for n in range(5)
    ]
    # the first three are in the queue together: one prefills, two copy
    engine.pause("retract")
    tasks = [asyncio.create_task(engine.generate(one)) for one in asked]
    await asyncio.sleep(0)
    engine.resume()
    siblings = await asyncio.gather(*tasks)
    for completion in siblings:
        agree(model, completion, prompt)
    assert [completion.cached_tokens for completion in siblings[:3]] == [0, 40, 40]

    free, _ = sampled(siblings[4])
    stopped = await engine.generate(
        request(prompt, name="id", seed=4, stop_token_ids=(int(free[2]),))
    )
    assert sampled(stopped)[0].tolist() == free[: free.tolist().index(free[2]) + 1].tolist()
    strings = await engine.generate(
        request(prompt, name="text", seed=4, stop=(f"{free[3]}><{free[4]}",))
    )
    pairs = list(zip(free.tolist(), free[1:].tolist(), strict=False))
    end = pairs.index((free[3], free[4])) + 2
    assert (strings.finish_reason, sampled(strings)[0].tolist()) == (
        "stop",
        free[:end].tolist(),
    )


@pytest.mark.parametrize("family", ["gpt_neox", "mixtral", "qwen3_moe"])
async def test_a_weight_update_is_served_under_its_version_and_its_checksum_is_the_trainers(
    family,
    start,
) -> None:
    settings = FAMILIES[family] | {"tie_word_embeddings": False}
    model, other = (make_model(family, seed=seed, **settings) for seed in (0, 1))
    engine, prompt = start(model), random_ids(0, 12)
    await engine.generate(request(prompt, name="before", session="s"))
    await asyncio.to_thread(publish, engine, 3, other.tensors)
    completion = await engine.generate(request(prompt, name="after", session="s"))
    agree(other, completion, prompt)
    assert completion.segments[0].policy_version == 3
    assert completion.cached_tokens == 0
    assert engine.checksum() == {
        name: tensor_checksum(name, tensor) for name, tensor in other.tensors.items()
    }


@pytest.mark.parametrize("fault", ["missing", "shape", "unknown"])
def test_a_failed_update_tears_the_engine(fault, start) -> None:
    engine = start(make_model("gpt2", **FAMILIES["gpt2"]))
    model = make_model("gpt2", seed=1, **FAMILIES["gpt2"])
    tensors = dict(model.module.named_parameters())
    first = next(iter(tensors))
    if fault == "missing":
        del tensors[first]
    elif fault == "shape":
        tensors[first] = torch.zeros(3)
    else:
        tensors["transformer.nothing"] = torch.zeros(3)
    message = {
        "missing": "were not put",
        "shape": r"must have shape \(61, 32\)",
        "unknown": "transformer.nothing",
    }
    with pytest.raises(EngineError, match=message[fault]):
        publish(engine, 1, tensors)
    assert engine.health().state == "corrupt"


async def test_deterministic_mode_is_exact_whatever_else_runs(start) -> None:
    engine = start(
        make_model("gemma2", **FAMILIES["gemma2"]), deterministic=True, max_running=5
    )
    prompt = random_ids(0, 33)
    alone = sampled(await engine.generate(request(prompt, name="alone", max_new_tokens=20)))
    for trial in range(5):
        crowd = [
            request(random_ids(9 * trial + n, 1 + 7 * n), name=f"{trial}-{n}", seed=n)
            for n in range(7)
        ]
        crowd.insert(trial, request(prompt, name=f"probe{trial}", max_new_tokens=20))
        probe = sampled(
            (await asyncio.gather(*(engine.generate(one) for one in crowd)))[trial]
        )
        assert [probe[0].tobytes(), probe[1].tobytes()] == [
            alone[0].tobytes(),
            alone[1].tobytes(),
        ]


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "mixtral", "gpt_neox"])
async def test_bf16_agrees_within_its_own_rounding(family, start) -> None:
    model = make_model(family, **FAMILIES[family] | {"initializer_range": 0.1})
    engine, prompt = start(model, dtype="bfloat16"), random_ids(3, 20)
    ids, logprobs = sampled(await engine.generate(request(prompt, max_new_tokens=20)))
    assert (
        np.abs(logprobs - model.logprobs(np.concatenate([prompt, ids]), prompt.size)).max()
        < 0.1
    )
    distinct = {
        value
        for value in logprobs.tolist()
        if value != float(torch.tensor(value).bfloat16())
    }
    assert distinct  # the output layer is float32: logprobs are finer than bf16


def test_the_slower_path_is_named_in_the_log_and_the_fast_one_is_not(
    tiny, start, caplog
) -> None:
    with caplog.at_level(logging.WARNING):
        start(tiny)
        assert not caplog.records
        start(make_model("gpt2", **FAMILIES["gpt2"]))
    assert [
        record
        for record in caplog.records
        if "'gpt2'" in record.message and "slower" in record.message
    ]


@pytest.mark.parametrize("family", ["gpt2", "mixtral"])
def test_a_saved_folder_serves_the_same_as_its_tensors(family, start, tmp_path) -> None:
    model = make_model(family, **FAMILIES[family])
    model.module.save_pretrained(tmp_path)  # mixtral's experts lie there one by one
    folder_engine = TorchEngineSpec().build(
        EnginePlace(str(tmp_path), context_tokens=128, max_running=2)
    )
    try:
        assert folder_engine.checksum() == start(model).checksum()
    finally:
        folder_engine.close()


def test_a_folder_that_lacks_a_weight_is_refused(tmp_path) -> None:
    make_model("gpt2", **FAMILIES["gpt2"]).module.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["transformer.h.1.mlp.c_fc.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        EngineError,
        match=r"lacks 1 weights of the model, the first is 'transformer.h.1.mlp",
    ):
        TorchEngineSpec().build(EnginePlace(str(tmp_path), context_tokens=128))


REFUSED = {
    "mamba": ({"state_size": 4, "num_attention_heads": None}, "takes no position_ids"),
    "recurrent_gemma": ({}, "recurrent"),
    "jamba": (
        {"num_experts": 1, "mamba_d_state": 4, "use_mamba_kernels": False},
        "layers of type",
    ),
    "bloom": ({"n_layer": 2, "n_head": 4}, "takes no position_ids"),
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, "layers of type conv"),
    "t5": ({}, "cannot build a causal language model for model_type='t5'"),
    "nosuch": ({}, "cannot build a causal language model for model_type='nosuch'"),
}


@pytest.mark.parametrize("family", REFUSED)
def test_what_keeps_more_than_keys_and_values_is_refused_by_name(family) -> None:
    settings, named = REFUSED[family]
    shape = {
        "vocab_size": 61,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = {"model_type": family, "intermediate_size": 48, **shape, **settings}
    config = {name: value for name, value in config.items() if value is not None}
    with pytest.raises(EngineError, match=named) as caught:
        TorchEngine(EnginePlace("tiny", context_tokens=64), config=config, state_dict={})
    assert not caught.value.retryable


def test_experts_are_refused_in_deterministic_mode(start) -> None:
    told = r"deterministic needs .* a mixture of experts has not .*got 'mixtral'; choose a dense"
    with pytest.raises(EngineError, match=told):
        start(make_model("mixtral", **FAMILIES["mixtral"]), deterministic=True)


def test_a_rotary_scaling_that_follows_the_batch_ends_the_context_where_it_begins(
    start,
) -> None:
    rope = {
        "rope_type": "dynamic",
        "factor": 2.0,
        "rope_theta": 1e4,
        "original_max_position_embeddings": 100,
    }
    with pytest.raises(ConfigError, match="=100, got 128"):
        start(make_model("llama", rope_parameters=rope))


def test_a_family_that_tells_its_experts_otherwise_is_served() -> None:
    aria = make_model("aria_text", moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1)
    served = TransformersModel(aria.module, torch.device("cpu"), deterministic=False)
    assert served.kv_shape.routing is None
