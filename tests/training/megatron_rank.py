"""One rank of a world: what a step in layouts of the Megatron backend does, and what is published
and exported of it, in a file a layout.

Run as ``python -m tests.training.megatron_rank RANK WORLD_SIZE PORT MODEL:TP:PP...``, with a batch
in each model's folder.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from agentrl.engines.torch import TorchEngine
from agentrl.training import Actor, DistSpec, leave
from agentrl.training.parallel.shards import offset
from agentrl.types import BatchShard, SegmentKind, Stats
from agentrl.weight_sync import publish_in_process
from tests.controller.tiny import engine_spec
from tests.kit.waiting import DEADLINE_S
from tests.training.cuda_stand_in import cuda_stand_in
from tests.training.harness import PLAIN, VOCAB, make_actor, make_batch, update_shards
from tests.weight_sync.reshard_rank import Received

BEGINNING = [*range(1, 12)]
"""The tokens behind which the logprob of each other one is asked for."""


def every_logprob(actor: Actor) -> torch.Tensor:
    """``[V]`` of each entry of the vocabulary behind ``BEGINNING``."""
    size, length = VOCAB, len(BEGINNING) + 1
    ids = np.tile(np.asarray([*BEGINNING, 0], np.int32), (size, 1))
    ids[:, -1] = np.arange(size)
    last = np.tile(np.arange(length) == length - 1, size)
    batch = replace(
        make_batch([length] * size),
        token_ids=ids.ravel(),
        kind=np.where(last, SegmentKind.POLICY, SegmentKind.PROMPT).astype(np.int8),
        loss_mask=last.astype(np.float32),
    )
    shard = BatchShard(batch, np.arange(size), (tuple(range(size)),))
    return torch.from_numpy(actor.logprobs(shard)["old_logprobs"][last])


def publish(actor: Actor, model: str) -> dict[str, Any]:
    """To an engine beside this rank: its checksums, and the bytes that came from other ranks."""
    engine = TorchEngine(engine_spec(Path(model)).place)
    try:
        with Received() as received:
            report = publish_in_process(actor, engine, 1)
        assert report is not None
        return {
            "engine": engine.checksum(),
            "received": 4 * received.count,
            "whole": report.bytes,
        }
    finally:
        engine.close()


def compute(place: DistSpec, model: str, out: Path) -> dict[str, Any]:
    """A step on a batch whose columns rank 0 of a world of one made."""
    actor = make_actor(model, optim=PLAIN, backend="megatron", place=place)
    batch = torch.load(out / "batch.pt", weights_only=False)
    shard = update_shards(actor, batch, 30, place.dp)[place.rank // (place.tp * place.pp)]
    own = Stats(actor.update(shard))
    told: list[Any] = [None] * place.world_size
    dist.all_gather_object(told, own if place.is_first_of_data else None)
    backend: Any = actor.backend
    moments = backend._values(lambda one: backend.optimizer.moment(one, "exp_avg"))
    parts: list[Any] = [None] * place.world_size
    mine = {}
    for name, part in moments:
        if not backend._names.pieces[name].is_copy:
            form = backend._forms[name]
            mine[name] = (tuple(form.shape), offset(form), part.clone())
    dist.all_gather_object(parts, mine)
    gradients: dict[str, torch.Tensor] = {}
    for one in parts:
        for name, (shape, first, part) in one.items():
            whole = gradients.setdefault(name, torch.zeros(shape))
            where = tuple(
                slice(at, at + size) for at, size in zip(first, part.shape, strict=True)
            )
            whole[where] = part
    weights = {name: one.clone() for name, one in actor.weights("float32")}
    sums = actor.checksum("float32")
    layout = f"{place.world_size}-{place.tp}-{place.pp}"
    actor.save(out / f"saved-{layout}")
    actor.export(out / f"exported-{layout}")
    logprobs, published = every_logprob(actor), publish(actor, model)
    fillers = sum(not rows for rows in shard.micro_batches)
    ranks: list[Any] = [None] * place.world_size
    dist.all_gather_object(ranks, published | {"fillers": fillers, "logprobs": logprobs})
    means = dict(reduce(lambda a, b: a + b, [one for one in told if one], Stats()).means())
    found = {"stats": means, "gradients": gradients, "weights": weights, "sums": sums}
    return found | {"ranks": ranks}


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, size, port = map(int, sys.argv[1:4])
    with cuda_stand_in():
        # what takes longest is to import Megatron, so that the ranks are those of many layouts
        for case in sys.argv[4:]:
            model, tp, pp = case.split(":")
            sizes = {"tp": int(tp), "pp": int(pp)}
            here = DistSpec(
                rank=rank, world_size=size, port=port, timeout_s=DEADLINE_S, **sizes
            )
            result = compute(here, model, Path(model))
            if rank == 0:
                torch.save(result, Path(model, f"world-{size}-{tp}-{pp}.pt"))
    leave()
