"""A tiny real model in a Hugging Face folder, batches by hand, and actors in a world of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl.training import leave
from agentrl.types import Batch, SegmentKind

VOCAB = 96


def write_model(folder: Path, *, tied: bool = True) -> Path:
    torch.manual_seed(7)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        tie_word_embeddings=tied,
        initializer_range=0.08,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(autouse=True)
def _no_group_stays() -> Iterator[None]:
    yield
    leave()


def make_batch(
    lengths: Sequence[int] = (13, 9, 21, 6, 17, 11, 5, 30),
    *,
    siblings: int = 4,
    kind: SegmentKind = SegmentKind.POLICY,
    temperature: float = 1.0,
    seed: int = 0,
) -> Batch:
    """One sample a trajectory, ``siblings`` a group; the first third of a sample is its prompt, the rest trained but
    for every fourth token, which a tool said."""
    rng = np.random.default_rng(seed)
    total, num = sum(lengths), len(lengths)
    kinds = np.full(total, kind, dtype=np.int8)
    start = 0
    for length in lengths:
        kinds[start : start + max(1, length // 3)] = SegmentKind.PROMPT
        kinds[start + max(1, length // 3) : start + length : 4] = SegmentKind.OBSERVATION
        start += length
    mask = (kinds == kind).astype(np.float32)
    rows = np.arange(num, dtype=np.int32)
    reward = rng.normal(size=num).astype(np.float32)
    return Batch(
        token_ids=rng.integers(0, VOCAB, total).astype(np.int32),
        kind=kinds,
        loss_mask=mask,
        rollout_logprobs=(rng.uniform(-6, -3, total) * mask).astype(np.float32),
        policy_versions=np.where(mask > 0, 0, -1).astype(np.int32),
        turn_index=np.repeat(rows, lengths).astype(np.int32),
        cu_seqlens=np.cumsum([0, *lengths]).astype(np.int32),
        trajectory=rows,
        temperature=np.full(num, temperature, dtype=np.float32),
        turn_trajectory=rows,
        turn_reward=reward,
        turn_credit=np.zeros(num, dtype=np.float32),
        state_key=np.zeros(num, dtype=np.uint64),
        group=rows // siblings,
        draw=(rows // siblings).astype(np.int64),
        sibling=rows % siblings,
        reward=reward,
        credit=rng.normal(size=num).astype(np.float32),
        truncated=np.zeros(num, dtype=np.bool_),
    )
