"""The output layer in float32 beside a trunk in bfloat16: its products, in one chunk or many."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.training import Actor
from agentrl.training.models import policy_model
from agentrl.types import SegmentKind
from tests.training.harness import (
    VOCAB,
    gradients,
    make_actor,
    make_batch,
    update,
    update_shards,
)

BATCH = make_batch(kind=SegmentKind.TARGET)


def logprobs(actor: Actor) -> Tensor:
    shard = update_shards(actor, BATCH, 200, 1)[0]
    found: list[Tensor] = []
    actor.backend.infer(actor.packed(shard), lambda _, answer: found.append(answer[0]))
    return found[0]


def by_hand(actor: Actor) -> Tensor:
    """Of the trunk's bfloat16 hidden states and the published weights, in float64."""
    shard = update_shards(actor, BATCH, 200, 1)[0]
    (packed,) = actor.packed(shard)
    kept: list[Tensor] = []
    trunk: Any = actor.backend.model.hidden
    actor.backend.model.hidden = lambda *given: kept.append(trunk(*given)) or kept[0]  # type: ignore[func-returns-value]
    actor.backend.infer([packed], lambda *_: None)
    weight = dict(actor.weights("bfloat16"))["model.embed_tokens.weight"]  # tied
    scores = torch.log_softmax(kept[0].double() @ weight.double().T, -1)
    return scores[packed.logit_of, packed.targets]


@pytest.mark.parametrize("chunks", [1, 8])
@pytest.mark.parametrize("backend", ["fsdp2", "plain"])
def test_products_are_float32_of_the_published_weights(
    model_path: str, monkeypatch: pytest.MonkeyPatch, backend: Any, chunks: int
) -> None:
    if chunks > 1:
        monkeypatch.setattr(policy_model, "_CHUNK_ELEMENTS", 12 * VOCAB)
    wide, usual = (
        make_actor(model_path, "sft", dtype="bfloat16", backend=backend, head_dtype=dtype)
        for dtype in ("float32", None)
    )
    expected = by_hand(wide)
    assert (logprobs(wide) - expected).abs().max() < 1e-6
    assert (logprobs(usual) - expected).abs().max() > 1e-4


def test_its_gradient_does_not_depend_on_chunks(
    model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for elements in (2**25, 12 * VOCAB):
        monkeypatch.setattr(policy_model, "_CHUNK_ELEMENTS", elements)
        actor = make_actor(model_path, "sft", dtype="bfloat16", head_dtype="float32")
        update(actor, BATCH, 200)
        found.append(gradients(actor))
    for name, one in found[0].items():
        assert (one - found[1][name]).norm() <= 1e-2 * one.norm(), name
