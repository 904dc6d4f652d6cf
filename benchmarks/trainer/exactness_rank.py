"""Exactness rank: one of the ranks that compute the logprobs of what an engine sampled.

Run as ``python -m benchmarks.trainer.exactness_rank --rank RANK --port PORT MODEL BATCH SETTINGS
TP SP``, with a pickled batch and an actor's settings as JSON.
"""

from __future__ import annotations

import argparse
import json
import pickle
from pathlib import Path

import numpy as np
import torch

from agentrl.algorithms import make_algorithm
from agentrl.training import ActorSpec, DistSpec, join, leave, merge_columns, shards, union
from agentrl.training.data.partition import Layout, partition
from agentrl.training.data.prefix_tree import PrefixOrder
from agentrl.types import Batch

__all__ = ["compare"]


def compare(model: str, batch: Batch, settings: dict[str, object], place: DistSpec) -> list[float]:
    """``[K]`` the trainer's logprobs less the sampler's, over the trained tokens."""
    join(place)
    actor = ActorSpec(model, make_algorithm("grpo"), **settings).build(place)  # type: ignore[arg-type]
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
    difference = found.astype(np.float64) - batch.rollout_logprobs
    return [float(one) for one in difference[batch.loss_mask != 0]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    parser.add_argument("model")
    parser.add_argument("batch", type=Path)
    parser.add_argument("settings", type=json.loads)
    parser.add_argument("tp", type=int)
    parser.add_argument("sp", type=int)
    own = parser.parse_args()
    torch.set_num_threads(1)
    place = DistSpec(own.rank, own.tp * own.sp, port=own.port, tp=own.tp, sp=own.sp)
    batch = pickle.loads(own.batch.read_bytes())
    found = compare(own.model, batch, own.settings, place)
    leave()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
