"""Experts that the sampler chose: each token of a packed row goes through its own, wherever it
lies, and gates and gradients are the actor's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.errors import ConfigError
from agentrl.training import Actor, DistSpec, Reference, ReferenceSpec
from agentrl.training.data.packing import WHOLE, Cut, Packed, PackedMicroBatches
from agentrl.training.models.lora_spec import LoraSpec
from agentrl.types import Batch, BatchShard, RoutingShape
from agentrl.types.arrays import recorded
from agentrl.types.batch import token_rows
from agentrl.weight_sync.verify import trainer_reference
from benchmarks import router_replay
from tests.tiny_models import write_family
from tests.training.harness import (
    VOCAB,
    gradients,
    make_actor,
    make_batch,
    make_siblings,
    update,
    update_shards,
    with_experts,
)
from tests.training.test_shared_prefixes import whole_shard

SHAPE = RoutingShape(layers=2, experts=3, top_k=2)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("mixture")
    return str(write_family(folder, "qwen3_moe", vocab_size=VOCAB))


def all_wanted(batch: Batch) -> Batch:
    """Every token but a sample's first is trained, so that a row tells where each one lies."""
    mask = np.ones(batch.num_tokens, np.float32)
    mask[batch.cu_seqlens[:-1]] = 0
    return replace(batch, loss_mask=mask)


def rows(
    shard: BatchShard, *, share: bool = True, cut: Cut = WHOLE, length_of: Any = None
) -> Any:
    return PackedMicroBatches(
        shard, CPU, share_prefixes=share, cut=cut, length_of=length_of
    )


def assert_own_experts(shard: BatchShard, packed: Packed, part: int = 0) -> None:
    """A token's experts are those of its entry, -1 for one without."""
    record = shard.batch.routed_experts
    assert record is not None
    assert packed.experts is not None
    assert packed.experts.shape[0] == packed.token_ids.shape[0]
    own = slice(None)
    if packed.counts:
        first = sum(packed.counts[:part])
        own = slice(first, first + packed.counts[part])
    source = packed.source[own] - 1
    known = recorded(record[source])[:, None, None]
    expected = np.where(known, record[source].astype(np.int16), -1)
    assert (packed.experts.numpy()[packed.before[: source.size]] == expected).all()


@pytest.mark.parametrize("micro_batch_tokens", [31, 60, 1000])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_tokens_experts_lie_with_it(
    micro_batch_tokens: int, share: bool, parts: int
) -> None:
    batch = with_experts(all_wanted(make_siblings(16)), SHAPE)
    shard = whole_shard(batch, micro_batch_tokens)
    bare = whole_shard(replace(batch, routed_experts=None), micro_batch_tokens)
    for part in range(parts):
        cut = Cut(parts, part)
        for packed, plain in zip(
            rows(shard, share=share, cut=cut), rows(bare, share=share, cut=cut), strict=True
        ):
            assert_own_experts(shard, packed, part)
            # siblings whose experts agree share as much as ever
            assert packed.token_ids.numel() == plain.token_ids.numel()


def test_padding_routes_itself() -> None:
    shard = whole_shard(with_experts(all_wanted(make_siblings()), SHAPE))
    (packed,) = rows(shard, length_of=lambda tokens: tokens + 5)
    assert_own_experts(shard, packed)
    assert (packed.experts[-5:] == -1).all()


def test_a_rank_without_samples_has_a_filler_that_routes_itself() -> None:
    none = with_experts(all_wanted(make_siblings()), SHAPE).select([])
    (packed,) = rows(BatchShard(none, np.zeros(0, np.int64), ((),)))
    assert packed.experts.tolist() == [[[-1, -1], [-1, -1]]]
    assert none.num_unrecorded == 0


def test_what_other_experts_computed_is_not_shared() -> None:
    batch = with_experts(all_wanted(make_siblings(16)), SHAPE)
    assert batch.routed_experts is not None
    apart = batch.routed_experts.copy()
    # one sibling's prompt was computed elsewhere, and routed otherwise from its fifth token on
    start = batch.cu_seqlens[1]
    apart[start + 4] = (apart[start + 4] + 1) % 3
    other = replace(batch, routed_experts=apart)
    (one,), (two,) = rows(whole_shard(batch)), rows(whole_shard(other))
    assert two.token_ids.numel() == one.token_ids.numel() + 16
    assert_own_experts(whole_shard(other), two)
    # what is counted for a micro-batch is never fewer than what it holds
    assert other.identities()[start + 3] == other.identities()[3]
    assert other.identities()[start + 4] != other.identities()[4]


def actor_of(path: str, *, replays: bool, **spec: Any) -> Actor:
    return make_actor(path, replays_routing=replays, **spec)


def logprobs(actor: Actor | Reference, batch: Batch) -> np.ndarray:
    (found,) = actor.logprobs(whole_shard(batch)).values()
    return found


def used(actor: Actor, batch: Batch) -> np.ndarray:
    """``[T, L, K]`` the experts of the last forward pass, over the batch, by the tokens that a
    trained one follows; -1 for others."""
    shard = whole_shard(batch)
    (packed,) = actor.packed(shard)
    last = actor.backend.model.routing.last
    experts = torch.stack([last[layer].experts for layer in sorted(last)], 1).numpy()
    own = np.full((batch.num_tokens, *experts.shape[1:]), -1)
    own[packed.source - 1] = experts[packed.before]
    # from the shard's order to the batch's
    found = np.empty_like(own)
    found[token_rows(batch.cu_seqlens, shard.samples)] = own
    return found


def test_every_forward_of_the_actor_goes_through_the_given_experts(mixture: str) -> None:
    batch = with_experts(make_siblings(), SHAPE)
    free, replaying = actor_of(mixture, replays=False), actor_of(mixture, replays=True)
    own = logprobs(free, batch)
    itself = used(free, batch)
    seen = itself[:, 0, 0] >= 0
    known = recorded(batch.routed_experts) & seen
    alone = seen & ~known
    given = np.sort(batch.routed_experts)
    assert known.sum() > 20
    assert alone.sum() > 5
    assert (np.sort(itself[known]) != given[known]).any()

    assert np.abs(logprobs(replaying, batch) - own).max() > 1e-3
    through = used(replaying, batch)
    assert (np.sort(through[known]) == given[known]).all()
    # the others route themselves, of hidden states that the given experts of earlier tokens moved
    assert (through[alone] >= 0).all()
    # the experts that the model chooses change nothing
    record = SHAPE.unrecorded(batch.num_tokens)
    record[seen] = itself[seen]
    again = logprobs(replaying, replace(batch, routed_experts=record))
    np.testing.assert_allclose(again, own, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "spec", [{}, {"gradient_checkpointing": True}], ids=["kept", "recomputed"]
)
def test_gates_are_the_actors_and_learn(mixture: str, spec: dict[str, Any]) -> None:
    batch = with_experts(make_siblings(), SHAPE)
    actor = actor_of(mixture, replays=True, **spec)
    batch = batch.join({"old_logprobs": logprobs_in_order(actor, batch)})
    batch = batch.join({"advantages": batch.loss_mask})
    stats = update(actor, batch)
    assert stats["policy/ratio"].mean == pytest.approx(1.0, abs=1e-6)
    found = gradients(actor)
    router = found["hf.model.layers.1.mlp.gate.weight"]
    assert router.abs().max() > 0
    last = np.zeros(batch.num_tokens, np.bool_)
    last[batch.cu_seqlens[1:] - 1] = True
    missing = ~recorded(batch.routed_experts) & ~last
    assert stats["moe/unrecorded_frac"].mean == missing.sum() / batch.num_tokens
    for tokens in (31, 1000):
        other = actor_of(mixture, replays=True)
        update(other, batch, tokens)
        for name, gradient in gradients(other).items():
            torch.testing.assert_close(gradient, found[name], rtol=0, atol=1e-6, msg=name)


def logprobs_in_order(actor: Actor, batch: Batch) -> np.ndarray:
    (shard,) = update_shards(actor, batch, 64, 1)
    column = np.zeros(batch.num_tokens, np.float32)
    order = [
        np.arange(batch.cu_seqlens[s], batch.cu_seqlens[s + 1], dtype=np.int64)
        for s in shard.samples
    ]
    column[np.concatenate(order)] = actor.logprobs(shard)["old_logprobs"]
    return column


@pytest.mark.slow
def test_an_engine_in_bfloat16_is_met_with_its_own_experts(tmp_path: Path) -> None:
    # router logits as far apart as Qwen3-30B-A3B's: the benchmark says why, and has other models
    router_replay.build_model(
        str(tmp_path), init=router_replay.SPREAD, num_demonstrations=100
    )
    found = router_replay.compared(tmp_path)
    assert found["off"].differ > 0
    assert found["rollout"].differ == 0
    assert found["rollout"].logp_abs <= found["off"].logp_abs / 2


def test_a_probe_tells_that_its_tokens_are_routed(mixture: str, model_path: str) -> None:
    for path, routed in ((mixture, True), (model_path, False)):
        actor = actor_of(path, replays=False)
        assert trainer_reference(actor, "bfloat16", {}).probe.routed == routed


def test_a_reference_routes_itself(mixture: str) -> None:
    actor_of(mixture, replays=False)  # joins a process group
    reference = Reference(ReferenceSpec(mixture), DistSpec())
    batch = with_experts(make_siblings(), SHAPE)
    plain = replace(batch, routed_experts=None)
    alone = logprobs(reference, plain).tolist()
    assert logprobs(reference, batch).tolist() == alone
    # so does the policy without its adapter
    actor = actor_of(mixture, replays=True, lora=LoraSpec(rank=2))
    assert actor.reference_logprobs(whole_shard(batch))["ref_logprobs"].tolist() == alone
    assert logprobs(actor, batch).tolist() != alone


def test_a_dense_model_has_nothing_to_replay(model_path: str) -> None:
    with pytest.raises(
        ConfigError, match=r"TrainConfig.router_replay='rollout' needs a mixture"
    ):
        actor_of(model_path, replays=True)


def test_a_batch_without_records_tells_nothing(mixture: str) -> None:
    batch = make_batch()
    assert batch.num_unrecorded == 0
    with pytest.raises(
        ValueError, match=r"routed_experts must have shape \(112, 2, 2\), got \(3"
    ):
        replace(batch, routed_experts=SHAPE.unrecorded(3))
