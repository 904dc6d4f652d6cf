"""Exactness: a deterministic actor's logprobs are those that TorchEngine sampled with, to the last
bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from agentrl.engines.torch.model import fixed_shapes
from agentrl.types import Batch
from tests.tiny_models import write_family
from tests.training.harness import VOCAB, make_actor, prepared, update
from tests.training.sampled_batch import sampled_batch


@pytest.fixture(autouse=True)
def _ordinary_kernels() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def largest_difference(folder: Path, batch: Batch, micro_batch_tokens: int = 512) -> float:
    """Of the sampler's logprobs and a deterministic actor's, over the trained tokens."""
    actor = make_actor(str(folder), deterministic=True)
    old = prepared(actor, batch, micro_batch_tokens).old_logprobs
    assert old is not None
    return float(np.abs(old - batch.rollout_logprobs)[batch.loss_mask != 0].max())


@pytest.mark.invariant
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_sampler_and_the_trainer_agree_in_every_bit(
    family: str, temperature: float, tmp_path: Path
) -> None:
    folder = write_family(tmp_path, family, vocab_size=VOCAB)
    batch = sampled_batch(folder, temperature)
    for micro_batch_tokens in (140, 2048):
        assert largest_difference(folder, batch, micro_batch_tokens) == 0.0


def test_an_update_finds_no_mismatch(model_path: str) -> None:
    batch = sampled_batch(Path(model_path))
    actor = make_actor(model_path, deterministic=True)
    stats = update(actor, prepared(actor, batch, 512), 512)
    assert stats["mismatch/logp_abs"].max == 0.0
    assert stats["policy/ratio"].mean == 1.0


@pytest.mark.parametrize(
    ("name", "sampler", "trainer"),
    [
        # a row alone is multiplied by another kernel than one of several
        ("TILE", 16, 1),
        ("TILE", 3, 4),
        # all keys at once add up in another order than blocks of them
        ("KEYS", 64, 512),
        ("QUERY_ROWS", 4, 2),
    ],
    ids=["another tile", "one more row", "another key length", "fewer queries"],
)
def test_other_shapes_on_one_side_are_seen(
    name: str, sampler: int, trainer: int, model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixed_shapes, name, sampler)
    batch = sampled_batch(Path(model_path))
    monkeypatch.setattr(fixed_shapes, name, trainer)
    assert largest_difference(Path(model_path), batch) > 0.0


def test_a_trainer_that_rounds_otherwise_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_family(tmp_path, "gpt_neox", vocab_size=VOCAB)
    make_actor(str(folder), deterministic=True)
    (told,) = [one for one in caplog.records if getattr(one, "event", "") == "inexact_logprobs"]
    assert vars(told)["cause"] == "TorchEngine has no decoder of its own for its family"
