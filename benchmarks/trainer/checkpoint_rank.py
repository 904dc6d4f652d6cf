"""Checkpoint rank: one of the ranks that train beside checkpoints, or that write one to export.

Run as ``python -m benchmarks.trainer.checkpoint_rank --rank RANK --port PORT WHAT MODEL OUT``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from agentrl.algorithms import make_algorithm
from agentrl.training import Actor, ActorSpec, DistSpec, join, leave
from agentrl.types import BatchShard
from benchmarks.trainer.ranks import RANKS
from benchmarks.trainer.shapes import batch_of, shard_of

__all__ = ["save", "train"]

ROW = (256, 256)
"""Tokens of each sample of a rank's step."""


def train(
    model: str, out: Path, place: DistSpec, *, checkpoints: int, steps: int
) -> dict[str, Any]:
    """Steps without a checkpoint and beside one, in turn, on one rank: seconds of each, of the
    slower rank. What the first checkpoint cost stands apart: it makes the memory of the copies.
    """
    actor = _actor(model, place)
    batch = batch_of(ROW, actor.backend.model.config.vocab_size, seed=place.rank)
    shard = shard_of(batch, [range(len(ROW))])
    _step(actor, shard)  # makes the optimizer's state
    found: dict[str, list[float]] = {
        name: [] for name in ("alone", "beside", "blocked", "written")
    }
    for number in range(checkpoints):
        found["alone"] += [_step(actor, shard) for _ in range(steps)]
        at = out / str(number)
        dist.barrier()
        start = time.monotonic()
        actor.begin_save(at)
        found["blocked"].append(_slowest(time.monotonic() - start))
        found["beside"].append(_step(actor, shard))
        while _slowest(actor.save_result(wait=False) is None):
            _step(actor, shard)
        result = actor.save_result(wait=True)
        assert result is not None
        if result.error is not None:
            raise result.error
        found["written"].append(_slowest(result.seconds))
        size = sum(path.stat().st_size for path in at.rglob("*") if path.is_file())
        dist.barrier()
        if place.rank == 0:
            shutil.rmtree(at)
    return {"bytes": size, **found}


def save(model: str, out: Path, place: DistSpec) -> dict[str, Any]:
    """A checkpoint of the weights alone."""
    _actor(model, place).save(out)
    return {}


def _actor(model: str, place: DistSpec) -> Actor:
    join(place)
    return ActorSpec(model, make_algorithm("sft")).build(place)


def _step(actor: Actor, shard: BatchShard) -> float:
    """An optimizer step; seconds of the slower rank."""
    dist.barrier()
    start = time.monotonic()
    actor.update(shard)
    return _slowest(time.monotonic() - start)


def _slowest(value: float) -> float:
    """The largest of all ranks."""
    found = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found.item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    parser.add_argument("what", choices=("train", "save"))
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--checkpoints", type=int)
    parser.add_argument("--steps", type=int)
    own = parser.parse_args()
    torch.set_num_threads(1)
    place = DistSpec(own.rank, RANKS, port=own.port, timeout_s=600)
    if own.what == "train":
        found = train(
            own.model, own.out, place, checkpoints=own.checkpoints, steps=own.steps
        )
    else:
        found = save(own.model, own.out, place)
    leave()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
