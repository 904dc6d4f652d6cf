"""Exactness: a deterministic actor's logprobs are those that TorchEngine sampled with, to the last
bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.engines.torch.model import fixed_shapes
from agentrl.training.models import policy_model
from agentrl.types import Batch
from tests.tiny_models import write_family
from tests.training.harness import VOCAB, gradients, make_actor, prepared, update
from tests.training.sampled_batch import sampled_batch


@pytest.fixture(autouse=True)
def _ordinary_kernels() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def largest_difference(
    folder: Path, batch: Batch, micro_batch_tokens: int = 512, **settings: Any
) -> float:
    """Of the sampler's logprobs and a deterministic actor's, over the trained tokens."""
    actor = make_actor(str(folder), deterministic=True, **settings)
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


@pytest.mark.parametrize("backend", ["fsdp2", "plain"])
def test_they_agree_in_bfloat16_with_the_engines_output_layer(
    backend: str, model_path: str
) -> None:
    batch = sampled_batch(Path(model_path), dtype="bfloat16")
    settings = {"dtype": "bfloat16", "head_dtype": "float32", "backend": backend}
    assert largest_difference(Path(model_path), batch, **settings) == 0.0


def test_recomputed_layers_and_a_head_in_chunks_agree_too(
    model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_model, "_CHUNK_ELEMENTS", 40 * VOCAB)
    batch = sampled_batch(Path(model_path))
    settings = {"gradient_checkpointing": "selective"}
    assert largest_difference(Path(model_path), batch, **settings) == 0.0
    actor = make_actor(model_path, deterministic=True, **settings)
    assert update(actor, prepared(actor, batch, 512), 512)["mismatch/logp_abs"].max == 0.0


def test_the_gradient_is_the_ordinary_one(model_path: str) -> None:
    batch = sampled_batch(Path(model_path))
    found = []
    for deterministic in (False, True):
        actor = make_actor(model_path, deterministic=deterministic)
        update(actor, prepared(actor, batch, 512), 512)
        found.append(gradients(actor))
    for name, expected in found[0].items():
        assert torch.allclose(found[1][name], expected, rtol=1e-4, atol=1e-6), name


def test_an_update_finds_no_mismatch(model_path: str) -> None:
    batch = sampled_batch(Path(model_path))
    actor = make_actor(model_path, deterministic=True)
    stats = update(actor, prepared(actor, batch, 512), 512)
    assert stats["mismatch/logp_abs"].max == 0.0
    assert stats["policy/ratio"].mean == 1.0


def test_level_auto_beside_an_engine_that_agrees_changes_no_bit(model_path: str) -> None:
    batch = sampled_batch(Path(model_path), deterministic=False)
    found = []
    for level in ("none", "auto"):
        settings = {"rollout_correction": {"level": level}}
        actor = make_actor(model_path, settings=settings)
        stats = update(actor, prepared(actor, batch, 512), 512)
        assert 0 < stats["mismatch/engine/logp_abs"].mean < 1e-4
        assert not actor.spec.algorithm.next_state({}, stats)
        told = {name: one for name, one in stats.items() if not name.startswith("time/")}
        found.append((told, gradients(actor)))
    (told, expected), (own, gradient) = found
    assert own == told
    assert all(torch.equal(gradient[name], one) for name, one in expected.items())


@pytest.mark.wide
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
    (told,) = [
        one for one in caplog.records if getattr(one, "event", "") == "inexact_logprobs"
    ]
    assert vars(told)["cause"] == "TorchEngine has no decoder of its own for its family"
