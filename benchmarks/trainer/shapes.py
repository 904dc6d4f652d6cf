"""Shapes of Qwen3 and Qwen3-MoE models, and packed rows for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)

from agentrl.training.data.packing import Packed, PackedMicroBatches
from agentrl.types import Batch, BatchShard, SegmentKind

__all__ = [
    "SHAPES",
    "batch_of",
    "config_of",
    "packed_row",
    "random_model",
    "rows_of",
    "shard_of",
]

SHAPES: Mapping[str, Mapping[str, int | bool]] = {
    "tiny": {
        **{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128},
        **{"vocab_size": 512, "tie_word_embeddings": True},
    },
    "8M": {
        **{"hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 1024},
        **{"vocab_size": 4096, "tie_word_embeddings": True},
    },
    "50M": {
        **{"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8},
        **{"num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 1536},
        **{"vocab_size": 32_000, "tie_word_embeddings": True},
    },
    "125M": {
        **{"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
        **{"num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 2816},
        **{"vocab_size": 32_000, "tie_word_embeddings": True},
    },
    "500M": {
        **{"hidden_size": 1024, "num_hidden_layers": 22, "num_attention_heads": 16},
        **{"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072},
        **{"vocab_size": 151_936, "tie_word_embeddings": True},
    },
    "0.6B": {
        **{"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16},
        **{"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072},
        **{"vocab_size": 151_936, "tie_word_embeddings": True},
    },
    "4B": {
        **{"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32},
        **{"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9728},
        **{"vocab_size": 151_936, "tie_word_embeddings": True},
    },
    "8B": {
        **{"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32},
        **{"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12_288},
        **{"vocab_size": 151_936, "tie_word_embeddings": False},
    },
    "32B": {
        **{"hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 64},
        **{"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 25_600},
        **{"vocab_size": 151_936, "tie_word_embeddings": False},
    },
    "30B-A3B": {
        **{"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32},
        **{"num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144},
        **{"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
        **{"vocab_size": 151_936, "tie_word_embeddings": False},
    },
}
"""Of Qwen3's own sizes those from 0.6B on; the others are for a CPU."""


def config_of(name: str) -> Qwen3Config | Qwen3MoeConfig:
    """The configuration of a shape."""
    shape = SHAPES[name]
    kind = Qwen3MoeConfig if "num_experts" in shape else Qwen3Config
    return kind(**shape, max_position_embeddings=40_960)


def random_model(name: str, attention: str) -> PreTrainedModel:
    """A model of random weights in float32."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        config_of(name), attn_implementation=attention
    )
    return model.train()


def batch_of(lengths: Sequence[int], vocab_size: int, seed: int = 0) -> Batch:
    """Trajectories of one sample each, whose first quarter is a prompt of their own."""
    rng = np.random.default_rng(seed)
    number, total = len(lengths), sum(lengths)
    kind = np.full(total, SegmentKind.TARGET, dtype=np.int8)
    start = 0
    for length in lengths:
        kind[start : start + max(1, length // 4)] = SegmentKind.PROMPT
        start += length
    rows = np.arange(number, dtype=np.int32)
    zeros = np.zeros(number, dtype=np.float32)
    trained = (kind == SegmentKind.TARGET).astype(np.float32)
    return Batch(
        token_ids=rng.integers(0, vocab_size, total).astype(np.int32),
        kind=kind,
        loss_mask=trained,
        rollout_logprobs=-trained,
        policy_versions=np.where(trained > 0, 0, -1).astype(np.int32),
        turn_index=np.repeat(rows, lengths).astype(np.int32),
        cu_seqlens=np.cumsum([0, *lengths]).astype(np.int32),
        trajectory=rows,
        temperature=np.ones(number, dtype=np.float32),
        turn_trajectory=rows,
        turn_reward=zeros,
        turn_credit=zeros,
        state_key=np.zeros(number, dtype=np.uint64),
        group=rows,
        group_index=rows.astype(np.int64),
        rollout_index=np.zeros(number, dtype=np.int32),
        reward=zeros,
        credit=zeros,
        weight=np.ones(number),
        truncated=np.zeros(number, dtype=np.bool_),
        interrupted=np.zeros(number, dtype=np.bool_),
    )


def shard_of(batch: Batch, rows: Sequence[Sequence[int]]) -> BatchShard:
    """All samples on one rank, in the given micro-batches."""
    return BatchShard(
        batch=batch,
        samples=np.arange(batch.num_samples, dtype=np.int64),
        micro_batches=tuple(tuple(row) for row in rows),
        sample_weight=np.full(batch.num_samples, 1.0 / batch.num_tokens),
    )


def rows_of(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Samples in their order, cut into rows of at most ``most`` tokens."""
    rows: list[list[int]] = [[]]
    tokens = 0
    for sample, length in enumerate(lengths):
        if rows[-1] and tokens + length > most:
            rows.append([])
            tokens = 0
        rows[-1].append(sample)
        tokens += length
    return rows


def packed_row(
    lengths: Sequence[int],
    vocab_size: int,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Packed:
    """One row of samples."""
    shard = shard_of(batch_of(lengths, vocab_size, seed), [range(len(lengths))])
    (packed,) = PackedMicroBatches(shard, torch.device(device), share_prefixes=False)
    return packed
