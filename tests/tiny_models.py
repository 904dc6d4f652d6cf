"""Tiny random models in Hugging Face folders, for every test that loads one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

__all__ = ["SLIDING", "write_qwen3"]

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
    Qwen3ForCausalLM(Qwen3Config(vocab_size=vocab_size, **shape | settings)).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder
