"""One rank of a world: what it got by resharding, beside what it wanted.

Run as ``python -m tests.weight_sync.reshard_rank RANK WORLD_SIZE PORT MODEL FOLDER``.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from agentrl.engines.tensor_parallel import tensor_parallel_shards
from agentrl.engines.tensor_slice import TensorSlice
from agentrl.engines.torch import TorchEngine
from agentrl.training import Actor, DistSpec, WeightPart, join, leave
from agentrl.training.parallel.process_group import Sharding
from agentrl.weight_sync import Resharder, publish_in_process, reshard
from tests.controller.tiny import engine_spec
from tests.kit.waiting import DEADLINE_S
from tests.training.harness import make_actor
from tests.weight_sync.test_reshard_plan import random_case

SEEDS = range(12)
CPU = torch.device("cpu")


class Received:
    """Counts the elements that come from other ranks by the collectives of a resharding."""

    def __init__(self) -> None:
        self.count = 0
        self._gather, self._exchange = reshard.all_gather, dist.all_to_all_single

    def __enter__(self) -> Received:
        reshard.all_gather = self.gather
        dist.all_to_all_single = self.exchange  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        reshard.all_gather, dist.all_to_all_single = self._gather, self._exchange

    def gather(self, incoming: torch.Tensor, outgoing: torch.Tensor) -> Any:
        self.count += incoming.numel() - outgoing.numel()
        return self._gather(incoming, outgoing)

    def exchange(
        self, incoming: Any, outgoing: Any, *sizes: list[int], **group: Any
    ) -> Any:
        # what the experts of a mixture exchange is within a group
        if not group:
            come, _ = sizes
            self.count += sum(come) - come[dist.get_rank()]
        return self._exchange(incoming, outgoing, *sizes, **group)


def of_random_layouts(seed: int, dtype: torch.dtype, *, whole: bool) -> bool:
    """Whether this rank got the very numbers that it wants of random layouts: slices, or all."""
    rank = dist.get_rank()
    held, wanted = random_case(random.Random(seed), dist.get_world_size())
    if whole:
        shapes = {one.name: one.shape for own in held for one in own.values()}
        wanted[rank] = [TensorSlice.whole(name, shape) for name, shape in shapes.items()]
    wholes = {
        one.name: torch.arange(1.0, 1 + TensorSlice.whole("", one.shape).numel)
        .view(one.shape)
        .to(dtype)
        for own in held
        for one in own.values()
    }
    parts = [
        WeightPart(name, one.shape, one.first, wholes[name][one.slices])
        for name, one in held[rank].items()
    ]
    made = Resharder(held[rank].values(), None if whole else wanted[rank], dtype, CPU)
    got = {part.block: part.tensor.clone() for part in made.run(parts)}
    right = all(
        torch.equal(one, wholes[block.name][block.slices]) for block, one in got.items()
    )
    return right and set(got) == set(wanted[rank])


def got_of(
    actor: Actor, wanted: Iterable[TensorSlice] | None
) -> dict[TensorSlice, torch.Tensor]:
    held = [part.block for part in actor.parts("bfloat16")]
    slices = None if wanted is None else list(wanted)
    made = Resharder(held, slices, torch.bfloat16, CPU)
    return {part.block: part.tensor.clone() for part in made.run(actor.parts("bfloat16"))}


def of_a_model(model: Path, place: DistSpec, sharding: Sharding) -> dict[str, Any]:
    """What came of an actor's weights: whole ones to all ranks, a generation shard to each, and a
    publish to an engine of rank 0."""
    actor = make_actor(str(model), place=place, sharding=sharding)
    wholes = {name: tensor.clone() for name, tensor in actor.weights("bfloat16")}
    shapes = {name: tuple(one.shape) for name, one in wholes.items()}
    shard = tensor_parallel_shards(shapes, 2, kv_heads=2)[place.rank % 2]
    slices = [part for tensor in shard for part in tensor.parts]
    found: dict[str, Any] = {}
    for kind, wanted in (("whole", None), ("shard", slices)):
        with Received() as received:
            got = got_of(actor, wanted)
        equal = all(torch.equal(one, wholes[b.name][b.slices]) for b, one in got.items())
        names = {one.name for one in slices} if wanted else set(wholes)
        found[kind] = equal and {one.name for one in got} == names
        found[f"{kind} received"] = received.count
    held = sum(part.tensor.numel() for part in actor.parts("bfloat16"))
    found["least"] = sum(one.numel() for one in wholes.values()) - held
    engine = TorchEngine(engine_spec(model).place) if place.rank == 0 else None
    with Received() as received:
        publish_in_process(actor, engine, 1)
    found["published"] = received.count
    checksum = actor.checksum("float32")
    if engine is not None:
        found["engine"] = engine.checksum() == checksum
        engine.close()
    return found


def run(place: DistSpec, model: Path) -> dict[str, Any]:
    join(place)
    found: dict[str, Any] = {}
    for size, whole in itertools.product((96, 8192), (False, True)):
        reshard.BUCKET_BYTES = size
        dtype = torch.float32 if whole else torch.bfloat16
        found[f"random {size} {whole}"] = [
            of_random_layouts(seed, dtype, whole=whole) for seed in SEEDS
        ]
    layouts = {"fsdp": (place, Sharding())}
    if place.world_size == 4:
        tp = DistSpec(place.rank, 4, port=place.port, timeout_s=DEADLINE_S, tp=2)
        layouts |= {"tp": (tp, Sharding()), "hybrid": (place, Sharding("hybrid", 2))}
    for name, (own, sharding) in layouts.items():
        found[name] = of_a_model(model, own, sharding)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    here = DistSpec(
        rank=int(sys.argv[1]),
        world_size=int(sys.argv[2]),
        port=int(sys.argv[3]),
        timeout_s=DEADLINE_S,
    )
    result = run(here, Path(sys.argv[4]))
    torch.save(result, Path(sys.argv[5]) / f"rank{here.rank}.pt")
    leave()
