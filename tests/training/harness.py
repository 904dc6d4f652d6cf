"""A tiny real model in a Hugging Face folder, batches by hand, and an actor's passes as the driver
runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentrl.algorithms import make_algorithm
from agentrl.training import (
    Actor,
    ActorSpec,
    DistSpec,
    Layout,
    OptimSpec,
    join,
    merge_columns,
    sample_weights,
    shards,
    union,
)
from agentrl.training.data.partition import partition
from agentrl.training.data.prefix_tree import PrefixOrder
from agentrl.types import Batch, BatchShard, RoutingShape, SegmentKind, UpdateStats
from tests.tiny_models import write_qwen3

VOCAB = 96


def write_model(folder: Path, **settings: Any) -> Path:
    return write_qwen3(folder, vocab_size=VOCAB, **settings)


def make_batch(
    lengths: Sequence[int] = (13, 9, 21, 6, 17, 11, 5, 30),
    *,
    rollouts: int = 4,
    kind: SegmentKind = SegmentKind.POLICY,
    temperature: float = 1.0,
    seed: int = 0,
) -> Batch:
    """One sample a trajectory, ``rollouts`` a group; the first third of a sample is its prompt, the
    rest trained but for every fourth token, which a tool said."""
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
        group=rows // rollouts,
        group_index=(rows // rollouts).astype(np.int64),
        rollout_index=rows % rollouts,
        reward=reward,
        credit=rng.normal(size=num).astype(np.float32),
        weight=np.ones(num),
        truncated=np.zeros(num, dtype=np.bool_),
        interrupted=np.zeros(num, dtype=np.bool_),
    )


def make_siblings(shared: int = 6) -> Batch:
    """Two groups of four; the samples of a group begin with the same prompt, then have a token of
    their own.
    """
    batch = make_batch([20, 18, 21, 25, 19, 30, 18, 22])
    ids, kind, mask = batch.token_ids.copy(), batch.kind.copy(), batch.loss_mask.copy()
    for row, start in enumerate(batch.cu_seqlens[:-1]):
        ids[start : start + shared] = np.arange(shared) + 10 * (row // 4)
        ids[start + shared] = 60 + row
        kind[start : start + shared], mask[start : start + shared] = SegmentKind.PROMPT, 0
    return replace(batch, token_ids=ids, kind=kind, loss_mask=mask)


def with_experts(batch: Batch, shape: RoutingShape, seed: int = 0) -> Batch:
    """Any experts, the same for equal tokens at equal places; every seventh token has none."""
    places = np.concatenate([np.arange(size) for size in batch.lengths])
    rng = np.random.default_rng(seed)
    table = np.argsort(rng.random((997, shape.layers, shape.experts)))[..., : shape.top_k]
    record: Any = table[(31 * places + batch.token_ids) % 997].astype(shape.dtype)
    record[places % 7 == 6] = np.iinfo(shape.dtype).max
    return replace(batch, routed_experts=record)


def prefixes(batch: Batch) -> PrefixOrder:
    """What the samples of the batch's groups begin with alike."""
    return PrefixOrder.of(
        batch.identities(), batch.cu_seqlens, batch.group[batch.trajectory]
    )


PLAIN = OptimSpec(lr=1e-3, betas=(0.0, 0.0), clip_grad_norm=None)
"""AdamW whose first moment is the gradient itself."""


def make_actor(
    model_path: str,
    algorithm: str = "grpo",
    *,
    optim: OptimSpec = PLAIN,
    place: DistSpec | None = None,
    settings: dict[str, Any] | None = None,
    **spec: Any,
) -> Actor:
    place = place or DistSpec()
    join(place)
    return Actor(
        ActorSpec(model_path, make_algorithm(algorithm, settings), optim, **spec), place
    )


def prepared(actor: Actor, batch: Batch, micro_batch_tokens: int = 64) -> Batch:
    """The batch with old logprobs and advantages, passes of a world of one."""
    plan = union(
        partition(
            batch.lengths,
            batch.group[batch.trajectory],
            seed=0,
            layout=layout(1, micro_batch_tokens),
        )
    )
    for method in (actor.logprobs, actor.advantages):
        parts = shards(batch, plan)
        batch = batch.join(merge_columns([method(parts[0])], parts, batch.cu_seqlens))
    return batch


def update(
    actor: Actor,
    batch: Batch,
    micro_batch_tokens: int = 64,
    *,
    rank: int = 0,
    world_size: int = 1,
) -> UpdateStats:
    """One optimizer step on the whole batch; this rank's statistics."""
    return actor.update(update_shards(actor, batch, micro_batch_tokens, world_size)[rank])


def own_logprobs(actor: Actor, ids: Sequence[int]) -> np.ndarray:
    """``[T - 1]`` of each token of a sequence but the first, by the role's own pass."""
    sampled = np.arange(len(ids)) > 0
    batch = replace(
        make_batch((len(ids),)),
        token_ids=np.asarray(ids, np.int32),
        kind=np.where(sampled, SegmentKind.POLICY, SegmentKind.PROMPT).astype(np.int8),
        loss_mask=sampled.astype(np.float32),
    )
    return actor.logprobs(BatchShard(batch, np.zeros(1, np.int64), ((0,),)))[
        "old_logprobs"
    ][1:]


def update_shards(
    actor: Actor,
    batch: Batch,
    micro_batch_tokens: int,
    world_size: int,
    *,
    policy_version: int = 0,
) -> list[BatchShard]:
    """The shards of one optimizer step on the whole batch."""
    (plan,) = partition(
        batch.lengths,
        batch.group[batch.trajectory],
        seed=0,
        layout=layout(world_size, micro_batch_tokens),
        prefixes=prefixes(batch),
    )
    weights = sample_weights(batch, plan, actor.spec.algorithm.reduction)
    return shards(batch, plan, weights, policy_version=policy_version)


def layout(world_size: int, micro_batch_tokens: int) -> Layout:
    return Layout(
        data_parallel=world_size, micro_batch_tokens=micro_batch_tokens, length_scale=291.0
    )


def gradients(actor: Actor) -> dict[str, torch.Tensor]:
    """The whole gradient of the last step by name, as AdamW with beta_1 = 0 remembers it."""
    backend: Any = actor.backend
    (optimizer,) = backend.optimizers
    return {
        name: optimizer.state[p]["exp_avg"].full_tensor()
        for name, p in backend.model.named_parameters()
    }
