"""Tiny random models in Hugging Face folders, for every test that loads one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

__all__ = ["FAMILIES", "SLIDING", "write_family", "write_qwen3"]

SLIDING = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}
"""Settings of a model whose tokens see five tokens back."""


def write_qwen3(folder: Path, *, vocab_size: int, seed: int = 7, **settings: Any) -> Path:
    """A Qwen3 of two layers of width 32, and the file of a tokenizer that holds nothing.

    Args:
        folder: made if missing.
        vocab_size: of the embeddings.
        seed: of the weights.
        settings: of the configuration, instead of those here.

    Returns:
        ``folder``.
    """
    shape = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "tie_word_embeddings": True,
        "initializer_range": 0.08,
        "max_position_embeddings": 512,
    }
    torch.manual_seed(seed)
    Qwen3ForCausalLM(
        Qwen3Config(vocab_size=vocab_size, **shape | settings)
    ).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


_ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    # the folder's names are not the model's, or their experts lie one by one
    "gpt_neox": {"num_key_value_heads": 4},
    "mixtral": {"num_local_experts": 3, "num_experts_per_tok": 2},
    "qwen3_moe": _ROUTED | {"num_experts": 3},
    # the router's bias is a buffer
    "deepseek_v3": _ROUTED
    | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    | {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8}
    | {"v_head_dim": 6, "num_key_value_heads": 4, "head_dim": 4},
}
"""Settings of tiny models by their ``model_type``."""


def write_family(
    folder: Path, family: str, *, vocab_size: int, seed: int = 3, **own: Any
) -> Path:
    """A model of a family, of two layers of width 32, whose routers prefer experts clearly; these
    do not divide by two ranks.

    Args:
        folder: made if missing.
        family: its ``model_type``.
        vocab_size: of the embeddings.
        seed: of the weights.
        own: settings of the configuration, instead of those here.
    """
    settings = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "tie_word_embeddings": False,
        "max_position_embeddings": 512,
    }
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        family, vocab_size=vocab_size, **settings | FAMILIES[family] | own
    )
    model: Any = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("mlp.gate.weight"):
                parameter.mul_(40)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder
