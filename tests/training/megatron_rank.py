"""One rank of a world: statistics and gradients of a layout of the Megatron backend, in a file.

Run as ``python -m tests.training.megatron_rank RANK WORLD_SIZE PORT MODEL FOLDER TP PP``.
"""

from __future__ import annotations

import sys
from functools import reduce
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from agentrl.training import DistSpec, leave
from agentrl.training.parallel.shards import offset
from agentrl.types import Stats
from tests.training.cuda_stand_in import cuda_stand_in
from tests.training.harness import PLAIN, make_actor, update_shards


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
            where = tuple(slice(at, at + size) for at, size in zip(first, part.shape, strict=True))
            whole[where] = part
    weights = {name: one.clone() for name, one in actor.weights("float32")}
    sums = actor.checksum("float32")
    actor.save(out / f"saved-{place.world_size}-{place.tp}-{place.pp}")
    means = dict(reduce(lambda a, b: a + b, [one for one in told if one], Stats()).means())
    return {"stats": means, "gradients": gradients, "weights": weights, "sums": sums}


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, size, port = map(int, sys.argv[1:4])
    tp, pp = map(int, sys.argv[6:8])
    here = DistSpec(rank=rank, world_size=size, port=port, timeout_s=60, tp=tp, pp=pp)
    folder = Path(sys.argv[5])
    with cuda_stand_in():
        result = compute(here, sys.argv[4], folder)
    if rank == 0:
        torch.save(result, folder / f"world-{size}-{tp}-{pp}.pt")
    leave()
