"""One rank of a world, some of whose ranks have a server together: what it received, what it keeps,
and what its server read.

Run as ``python -m tests.weight_sync.shard_memory_rank RANK WORLD_SIZE PORT FOLDER``.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from agentrl.controller.cluster.phases import ranks_of_servers
from agentrl.engines import EnginePlace
from agentrl.engines.checksum import tensor_checksum
from agentrl.engines.sglang import SGLangEngine, SGLangEngineSpec
from agentrl.engines.tensor_parallel import ShardTensor, tensor_parallel_shards
from agentrl.engines.tensor_slice import TensorSlice
from agentrl.training import DistSpec, WeightPart, join, leave
from agentrl.weight_sync import (
    Resharder,
    ServedCopy,
    ShardSender,
    ShardSession,
    batches,
    reshard,
)
from tests.engines.servers.broken_server import broken_server
from tests.engines.servers.test_server_events import CONFIG, FakeServer
from tests.kit.waiting import DEADLINE_S
from tests.weight_sync.reshard_rank import CPU, Received
from tests.weight_sync.test_reshard_plan import by_rows
from tests.weight_sync.test_shared_memory import Reader

LAYER = "model.layers.0"
ODD = "lm_head.weight"
"""Its rows are no multiple of the ranks: some have few of them, or none."""
SHAPES = {
    "model.embed_tokens.weight": (256, 16),
    f"{LAYER}.input_layernorm.weight": (16,),
    f"{LAYER}.self_attn.q_proj.weight": (16, 16),
    f"{LAYER}.self_attn.k_proj.weight": (16, 16),
    f"{LAYER}.self_attn.v_proj.weight": (16, 16),
    f"{LAYER}.self_attn.o_proj.weight": (16, 16),
    f"{LAYER}.mlp.gate_proj.weight": (128, 16),
    f"{LAYER}.mlp.up_proj.weight": (128, 16),
    f"{LAYER}.mlp.down_proj.weight": (16, 128),
    "model.norm.weight": (16,),
    ODD: (65, 16),
}
BATCH_BYTES = 24_000
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128}


def wholes(version: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def model_of(folder: Path) -> Path:
    folder.mkdir(parents=True)
    own = {"model_type": "qwen2", **HEADS, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(CONFIG | own))
    save_file(wholes(0), folder / "model.safetensors")
    return folder


@contextmanager
def engine_of(server: Reader, sender: ShardSender, folder: Path) -> Iterator[SGLangEngine]:
    place = EnginePlace(str(model_of(folder / "model")), str(folder), context_tokens=64)
    routes = FakeServer(**server.routes).routes
    with broken_server({f"/{name}": does for name, does in routes.items()}) as running:
        engine = SGLangEngine(place, SGLangEngineSpec(urls=(running.url,)), sender)
        try:
            yield engine
        finally:
            engine.close()


def share(name: str, ranks: int, tp: int) -> float:
    """Of a tensor, what a rank receives by the formula: what it holds is of the part it wants."""
    if len(SHAPES[name]) < 2:
        return 1 - 1 / ranks
    by_columns = name.split(".")[-2] in ("o_proj", "down_proj")
    return 1 / tp - 1 / (ranks * tp if by_columns else ranks)


def lacks(held: Mapping[str, TensorSlice], wanted: Sequence[TensorSlice]) -> int:
    shared = (held[wish.name].overlap(wish) for wish in wanted)
    return sum(wish.numel for wish in wanted) - sum(one.numel for one in shared if one)


def memories(outside: Sequence[Mapping[str, Tensor]]) -> dict[str, int]:
    """Bytes of each memory that tensors of this process lie in, but those of its server: by the
    file where it is shared, so that two processes count it once."""
    gc.collect()
    left = {tensor.data_ptr() for held in outside for tensor in held.values()}
    found: dict[str, int] = {}
    for one in gc.get_objects():
        if type(one) is not Tensor or one.device != CPU:
            continue
        storage = one.untyped_storage()
        if storage.data_ptr() not in left:
            shared = storage.is_shared()
            name = (
                storage._share_filename_cpu_()[1].decode() if shared else storage.data_ptr()
            )
            found[str(name)] = storage.nbytes()
    return found


class Memory:
    """What this process takes from here on, outside its server.

    Attributes:
        private: the most bytes at a time.
        shared: of each file.
    """

    def __init__(self, server: Reader) -> None:
        self.private = 0
        self.shared: dict[str, int] = {}
        self._server = server
        self._before = memories([])

    def look(self) -> None:
        own = memories(self._server.held)
        new = {name: size for name, size in own.items() if name not in self._before}
        self.shared |= {name: size for name, size in new.items() if name.startswith("/")}
        private = sum(size for name, size in new.items() if name not in self.shared)
        self.private = max(self.private, private)


def right(held: Mapping[str, Tensor], tensors: Sequence[ShardTensor], version: int) -> bool:
    """Whether a rank of the server read the very numbers that it should hold."""
    made = wholes(version)

    def own(tensor: ShardTensor) -> Tensor:
        rows = torch.cat([made[part.name][part.slices] for part in tensor.parts])
        filled = torch.zeros(tensor.shape)
        filled[: len(rows)] = rows
        return filled

    wanted = {tensor.name: own(tensor) for tensor in tensors}
    return held.keys() == wanted.keys() and all(
        torch.equal(held[name], tensor) for name, tensor in wanted.items()
    )


def of_servers(place: DistSpec, tp: int, folder: Path) -> dict[str, Any]:
    """Publishes two versions to servers of so many ranks."""
    servers = ranks_of_servers([""] * place.world_size, tp)
    [ranks] = [own for own in servers if place.rank in own]
    shards = tensor_parallel_shards(SHAPES, tp, kv_heads=4)
    own = shards[ranks.index(place.rank)]
    held: dict[str, TensorSlice] = {}
    for name, shape in SHAPES.items():
        held |= by_rows(name, shape, place.world_size)[place.rank]
    wanted = [part for tensor in own for part in tensor.parts]
    sender = ShardSender(ranks, lambda version: wholes(version).items())
    resharder = Resharder(held.values(), wanted, torch.float32, CPU)
    served = ServedCopy()
    server = Reader(tp)
    found: dict[str, Any] = {"read": [], "lacks": lacks(held, wanted)}
    memory = Memory(server)

    found["formula"] = lacks(
        {ODD: held[ODD]}, [one for one in wanted if one.name == ODD]
    ) + sum(
        TensorSlice.whole(name, shape).numel * share(name, place.world_size, tp)
        for name, shape in SHAPES.items()
        if name != ODD
    )

    def publish(version: int, engine: SGLangEngine | None) -> None:
        parts = [
            WeightPart(
                one.name, one.shape, one.first, wholes(version)[one.name][one.slices]
            )
            for one in held.values()
        ]
        for _ in served.renew(parts, version):
            pass
        parts.clear()
        if engine is not None:
            engine.pause("retract")
            session = engine.begin_update(version)
            assert isinstance(session, ShardSession)
        else:
            session = ShardSession(sender, own, "float32")
        with Received() as received:
            for part in resharder.run(served.parts(version)):
                session.put(part.name, part.tensor)
                memory.look()
        session.commit()
        found["received"] = received.count
        if engine is None:
            return
        engine.resume()
        sums = {
            name: tensor_checksum(name, tensor) for name, tensor in wholes(version).items()
        }
        found["read"].append(engine.state.sent == sums)
        found["read"] += [
            right(one, tensors, version)
            for one, tensors in zip(server.held, shards, strict=True)
        ]
        for one in server.held:
            one.clear()

    if place.rank == ranks[0]:
        with engine_of(server, sender, folder / f"{tp}-{place.rank}") as engine:
            found["layout"] = [*map(set, engine.layout().shards)] == [*map(set, shards)]
            publish(1, engine)
            publish(2, engine)
            found["calls"] = len(server.labels)
            # A server that started again is given the weights by its owner alone.
            sender.catch_up(engine.catch_up(2, engine.pool.servers[0]))
            found["read"] += [
                right(one, tensors, 2)
                for one, tensors in zip(server.held, shards, strict=True)
            ]
    else:
        publish(1, None)
        publish(2, None)
    found |= {"private": memory.private, "shared": memory.shared}
    found["kept"] = sum(part.tensor.nbytes for part in served.parts(2))
    return found


def run(place: DistSpec, folder: Path) -> dict[int, dict[str, Any]]:
    join(place)
    batches.BATCH_BYTES = BATCH_BYTES
    # Each tensor travels in a bucket of its own.
    reshard.BUCKET_BYTES = 64
    return {tp: of_servers(place, tp, folder) for tp in (2, 4) if not place.world_size % tp}


if __name__ == "__main__":
    torch.set_num_threads(1)
    here = DistSpec(
        rank=int(sys.argv[1]),
        world_size=int(sys.argv[2]),
        port=int(sys.argv[3]),
        timeout_s=DEADLINE_S,
    )
    result = run(here, Path(sys.argv[4]))
    torch.save(result, Path(sys.argv[4]) / f"rank{here.rank}.pt")
    leave()
