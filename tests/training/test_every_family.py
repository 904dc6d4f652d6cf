"""Every causal family that transformers has: it trains, or is refused by one sentence."""

from __future__ import annotations

import re
import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from agentrl.errors import ConfigError, DataError
from agentrl.training.models.twin import small_twin
from tests.training.harness import make_actor, make_batch
from tests.training.test_logprobs import packed_logprobs, padded_logprobs

VOCAB = 61
SIZES = {
    r"hidden_size|d_model|n_embd|word_embed_proj_dim|embedding_size|dim_model": 32,
    r"num_hidden_layers|n_layers?|num_layers|(en|de)coder_layers|num_(en|de)coder_layers": 2,
    r"num_attention_heads|n_heads?|(en|de)coder_attention_heads|num_heads": 4,
    r"num_key_value_heads|num_kv_heads": 2,
    r"head_dim": 8,
    r".*intermediate_size|.*ffn_dim|.*ffn_hidden_size|d_ff|n_inner": 48,
    r"num_experts|num_local_experts|n_routed_experts": 4,
    r"num_experts_per_tok": 2,
    r"max_position_embeddings|n_positions|n_ctx": 64,
    r"kv_lora_rank|q_lora_rank|qk_nope_head_dim|v_head_dim|mamba_d_state|ssm_state_size": 8,
    r"qk_rope_head_dim|rotary_dim": 4,
    r"n_group|topk_group|n_groups|first_k_dense_replace": 1,
    r"sliding_window": 9,
    r".*_token_id": 0,
    r"vocab_size_per_layer_input": VOCAB,
    r"hidden_size_per_layer_input": 8,
}
"""Sizes of a tiny model by what families call them."""

LATENT = {"num_key_value_heads": 4, "head_dim": 4}
SHARED = ["sliding_attention", "sliding_attention", "full_attention"]
OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("axk1", "deepseek_v3", "glm4_moe_lite", "longcat_flash", "youtu"), LATENT
    ),
    "deepseek_v2": {**LATENT, "num_experts_per_tok": 2, "n_routed_experts": 4},
    "gemma4_text": {
        "num_hidden_layers": 6,
        "layer_types": [*SHARED, *SHARED],
        "num_kv_shared_layers": 3,
        "global_head_dim": 16,
    },
    "gemma4_unified_text": {
        "num_hidden_layers": 3,
        "layer_types": SHARED,
        "global_head_dim": 16,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
}
"""What a family cannot do without."""

OF_ITS_OWN = ("falcon", "gpt_neo", "gptj")


def sizes_of(config: Any) -> dict[str, Any]:
    """The tiny values of a configuration's own names, with a layer of each kind."""
    found: dict[str, Any] = {"vocab_size": VOCAB}
    for name, value in vars(config).items():
        sizes = (size for names, size in SIZES.items() if re.fullmatch(names, name))
        if (type(value) is int or name == "head_dim") and (
            size := next(sizes, None)
        ) is not None:
            found[name] = min(value or size, size)
    if kinds := list(dict.fromkeys(getattr(config, "layer_types", None) or ())):
        found["layer_types"] = kinds * (1 if len(kinds) > 1 else 2)
        found["num_hidden_layers"] = len(found["layer_types"])
    return found


def write_family(folder: Path, family: str) -> str:
    """A random tiny model of a family."""
    made = CONFIG_MAPPING[family]
    config = made(**{**sizes_of(made()), **OWN.get(family, {})})
    with torch.device("meta"):
        sizes = AutoModelForCausalLM.from_config(deepcopy(config))
    assert sizes.num_parameters() < 1e7, f"{family} has other sizes"
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


def opened(path: str) -> str:
    """What the trainer says of a folder; nothing of one that it trains."""
    try:
        make_actor(path)
    except (ConfigError, DataError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("family", ["gemma4_text", "gemma4_unified_text", "longcat_flash"])
def test_layers_that_differ_are_trained(tmp_path: Path, family: str) -> None:
    path = write_family(tmp_path, family)
    batch = make_batch((13, 9, 21))
    batch = replace(batch, token_ids=1 + batch.token_ids % (VOCAB - 2))
    np.testing.assert_allclose(
        packed_logprobs(path, batch), padded_logprobs(path, batch), atol=1e-4
    )


@pytest.mark.parametrize(("family", "layers"), [("longcat_flash", 1), ("gemma4_text", 4)])
def test_a_twin_has_a_layer_of_each_kind(family: str, layers: int) -> None:
    """LongCat's counts twice; Gemma 4's have a window or not, and keys of their own or not."""
    made = CONFIG_MAPPING[family]
    twin: Any = small_twin(
        AutoModelForCausalLM, made(**{**sizes_of(made()), **OWN[family]})
    )
    assert len(twin.model.layers) == layers
    heads = [
        layer.self_attn.head_dim for layer in twin.model.layers if family == "gemma4_text"
    ]
    assert heads == [8, 16, 8, 16][: len(heads)]


@pytest.mark.parametrize(
    ("family", "told"),
    [
        *(
            (family, r"\w+ForCausalLM doesn't use transformers' attention")
            for family in OF_ITS_OWN
        ),
        (
            "mllama_text_model",
            "must hold a causal model, and transformers has none of model_type=",
        ),
    ],
)
def test_a_family_is_refused_by_its_class(tmp_path: Path, family: str, told: str) -> None:
    """Its weights are not looked at."""
    CONFIG_MAPPING[family](architectures=["Any"]).save_pretrained(tmp_path)
    told = rf"^ActorSpec\.model_path='{tmp_path}':? {told}.*; choose another family$"
    assert re.search(told, opened(str(tmp_path)))


def test_a_configuration_that_the_family_refuses_is_a_fault_of_the_folder(
    tmp_path: Path,
) -> None:
    path = Path(write_family(tmp_path, "gpt_neo")) / "config.json"
    path.write_text(path.read_text().replace('"num_layers": 2', '"num_layers": 3'))
    told = rf"^ActorSpec\.model_path='{tmp_path}' could not be loaded as a causal model \(Strict"
    assert re.search(told, opened(str(tmp_path)))


@pytest.mark.slow
def test_every_family_is_trained_or_refused_by_its_folder_and_rule(tmp_path: Path) -> None:
    refused: dict[str, str] = {}
    for family, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        made = CONFIG_MAPPING[family]
        if made.sub_configs:
            # It sees or hears, or is of parts that no setting here makes tiny.
            continue
        folder = tmp_path / family
        if not getattr(transformers, name)._supports_attention_backend:
            made().save_pretrained(folder)
        else:
            try:
                write_family(folder, family)
            except Exception:  # noqa: BLE001  (a family's own: it needs more than these sizes)
                continue
        refused[family] = opened(str(folder))
        shutil.rmtree(folder)
    told = re.compile(r"^(ActorSpec|ModelConfig)\..*; \w", re.DOTALL)
    assert not {
        family: text
        for family, text in refused.items()
        if text and not (told.search(text) and len(text) < 600)
    }
    assert sum(not text for text in refused.values()) > 55
