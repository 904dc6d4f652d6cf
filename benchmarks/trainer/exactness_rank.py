"""Exactness rank: one of the ranks that compute the logprobs of what an engine sampled.

Run as ``python -m benchmarks.trainer.exactness_rank --rank RANK --port PORT TP SP JOBS``. ``JOBS``
is a pickled list of ``Job``; the answer has numbers for each.
"""

from __future__ import annotations

import argparse
import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentrl.algorithms import make_algorithm
from agentrl.training import (
    Actor,
    ActorSpec,
    DistSpec,
    join,
    leave,
    merge_columns,
    shards,
    union,
)
from agentrl.training.data.packing import Packed
from agentrl.training.data.partition import Layout, partition
from agentrl.training.data.prefix_tree import PrefixOrder
from agentrl.types import Batch, BatchShard

__all__ = ["FAR", "Job"]

FAR = 0.01
"""Nats beyond which a token counts as far."""


@dataclass(frozen=True)
class Job:
    """A batch that an engine sampled with a model, and how an actor computes it.

    Args:
        settings: of ``ActorSpec``.
    """

    model: str
    batch: Batch
    settings: dict[str, Any] = field(default_factory=dict)


def compare(job: Job, place: DistSpec) -> dict[str, float]:
    """How far the trainer's logprobs are from the sampler's, over the trained tokens."""
    # a deterministic actor turns it on for its process
    torch.use_deterministic_algorithms(False)
    actor = ActorSpec(job.model, make_algorithm("grpo"), **job.settings).build(place)
    batch = job.batch
    groups = batch.group[batch.trajectory]
    plan = union(
        partition(
            batch.lengths,
            groups,
            seed=0,
            layout=Layout(data_parallel=1, micro_batch_tokens=1024, length_scale=291.0),
            prefixes=PrefixOrder.of(batch.identities(), batch.cu_seqlens, groups),
        )
    )
    parts = shards(batch, plan)
    columns = merge_columns([actor.logprobs(parts[0])], parts, batch.cu_seqlens)
    found = batch.join(columns).old_logprobs
    assert found is not None
    difference = (found.astype(np.float64) - batch.rollout_logprobs)[batch.loss_mask != 0]
    size = np.abs(difference)
    numbers = {
        "max": float(size.max()),
        "mean": float(size.mean()),
        "k3": float((np.expm1(difference) - difference).mean()),
        "far": float((size > FAR).mean()),
    }
    # several ranks have a part of a row each
    if batch.routed_experts is not None and place.world_size == 1:
        numbers["experts"] = experts_differ(actor, parts[0])
    return numbers


def experts_differ(actor: Actor, shard: BatchShard) -> float:
    """The share of the tokens before the trained ones that go through other experts in the trainer
    than in the sampler, in any layer.
    """
    routing, record = actor.backend.model.routing, shard.batch.routed_experts
    assert record is not None
    differ = []

    def take(packed: Packed, _: Any) -> None:
        last = routing.last
        used = torch.stack([last[layer].experts for layer in sorted(last)], 1)[
            packed.before
        ]
        told = record[packed.source - 1]
        differ.append((np.sort(used.numpy()) != np.sort(told)).any((1, 2)))

    actor.backend.infer(actor.packed(shard), take)
    return float(np.concatenate(differ).mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    parser.add_argument("tp", type=int)
    parser.add_argument("sp", type=int)
    parser.add_argument("jobs", type=Path)
    own = parser.parse_args()
    torch.set_num_threads(1)
    place = DistSpec(own.rank, own.tp * own.sp, port=own.port, tp=own.tp, sp=own.sp)
    join(place)
    found = [compare(job, place) for job in pickle.loads(own.jobs.read_bytes())]
    leave()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
