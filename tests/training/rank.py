"""One rank of a real process group: the same passes as any other world size, its results in a file.

Run as ``python -m tests.training.rank RANK WORLD_SIZE PORT MODEL FOLDER``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentrl.engines.checksum import tensor_checksum
from agentrl.training import DistSpec, OptimSpec, leave, merge_columns, shards, union
from agentrl.training.data.partition import partition
from agentrl.types import Batch, SegmentKind
from tests.kit.waiting import DEADLINE_S
from tests.training.harness import (
    PLAIN,
    gradients,
    layout,
    make_actor,
    make_batch,
    make_siblings,
    update,
    update_shards,
)

MUON = OptimSpec(name="muon", lr=2e-3, muon_lr=0.02)


def run(model_path: str, folder: Path, place: DistSpec) -> dict[str, Any]:
    """Updates, logprobs, checksums, a checkpoint and an export of this world size."""
    ranks = {"rank": place.rank, "world_size": place.world_size}
    batches = {
        "plain": make_batch(kind=SegmentKind.TARGET),
        # beside the one long sample two short ones don't fit one micro-batch of 30: one coordinate
        # needs a filler
        "filler": make_batch([30, 16, 15], rollouts=3, kind=SegmentKind.TARGET),
        "siblings": make_siblings(16),
        "idle": make_batch(
            [20], kind=SegmentKind.TARGET
        ),  # one coordinate has no sample at all
    }
    result: dict[str, Any] = {"stats": {}, "columns": {}, "gradients": {}}
    for name, batch in batches.items():
        actor = make_actor(model_path, "sft", optim=PLAIN, place=place, detail="full")
        found = update(actor, batch, 30, **ranks)
        result["stats"][name] = [dict(found)]
        parts = update_shards(actor, batch, 30, place.world_size)
        result["columns"][name] = merge_columns(
            [found.columns], [parts[place.rank]], batch.cu_seqlens
        )
        result["gradients"][name] = gradients(actor)
    for name, optim in (("adamw", OptimSpec(lr=1e-3)), ("muon", MUON)):
        actor = make_actor(model_path, "sft", optim=optim, place=place)
        result["stats"][name] = [
            dict(update(actor, batches["plain"], 30, **ranks)) for _ in range(4)
        ]
        result[name] = dict(actor.weights())
        actor.save(folder / name)
    # the gradient of one rank's samples is not finite: no rank takes the step
    broken = batches["plain"].loss_mask.copy()
    last = np.arange(broken.size) >= batches["plain"].cu_seqlens[-2]
    broken[last & (broken > 0)] = np.inf
    result["stats"]["not finite"] = [
        dict(update(actor, replace(batches["plain"], loss_mask=broken), 30, **ranks))
    ]
    result["steps"] = actor.steps
    actor.export(folder / "export")
    result["checksum"] = actor.checksum("bfloat16")
    result["logprobs"] = logprobs(actor, batches["plain"], place)
    # a batch whose every token is masked takes no step: what is published next follows a forward
    # without gradients
    masked = replace(batches["plain"], loss_mask=np.zeros_like(batches["plain"].loss_mask))
    result["stats"]["skipped"] = [dict(update(actor, masked, 30, **ranks))]
    result["after skipped"] = actor.checksum("bfloat16")
    result["published after skipped"] = {
        name: tensor_checksum(name, weight) for name, weight in actor.weights("bfloat16")
    }
    return result


def logprobs(actor: Any, batch: Batch, place: DistSpec) -> dict[str, Any]:
    """This rank's samples and their logprobs."""
    plan = union(
        partition(
            batch.lengths,
            batch.group[batch.trajectory],
            seed=0,
            layout=layout(place.world_size, 30),
        )
    )
    shard = shards(batch, plan)[place.rank]
    return {"samples": shard.samples, "column": actor.logprobs(shard)["old_logprobs"]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    here = DistSpec(
        rank=int(sys.argv[1]),
        world_size=int(sys.argv[2]),
        port=int(sys.argv[3]),
        timeout_s=DEADLINE_S,
    )
    out = Path(sys.argv[5])
    torch.save(run(sys.argv[4], out, here), out / f"rank{here.rank}.pt")
    leave()
