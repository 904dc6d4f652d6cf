"""Ranks that have a server together: each receives what it lacks of its own part alone and writes
it where the server reads it, and no rank has the whole model.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from agentrl.engines import EnginePlace
from agentrl.engines.checksum import tensor_checksum
from agentrl.engines.servers.update import ServerUpdate
from agentrl.engines.sglang import SGLangEngine, SGLangEngineSpec
from agentrl.engines.tensor_parallel import ShardTensor
from agentrl.engines.tensor_slice import TensorSlice
from agentrl.errors import EngineError, MachineError
from agentrl.training import DistSpec, WeightPart, join, leave
from agentrl.weight_sync import ShardSender, ShardSession
from agentrl.weight_sync.shard_memory import written_checksums
from tests.engines.servers.broken_server import broken_server
from tests.engines.servers.test_server_events import FakeServer, place
from tests.training.ranks import run_ranks
from tests.weight_sync.shard_memory_rank import BATCH_BYTES, SHAPES

__all__ = ["place"]

MODEL_BYTES = 4 * sum(map(math.prod, SHAPES.values()))


@pytest.mark.parametrize(
    "size",
    [pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.wide)],
)
def test_each_rank_writes_its_own_part_and_the_server_reads_all(
    size: int, tmp_path: Path
) -> None:
    run_ranks("tests.weight_sync.shard_memory_rank", size, str(tmp_path))
    ranks = [
        torch.load(tmp_path / f"rank{rank}.pt", weights_only=False) for rank in range(size)
    ]
    for tp in (2, 4)[: size // 2]:
        of_tp = [own[tp] for own in ranks]
        owners = [own for own in of_tp if "layout" in own]
        assert len(owners) == size // tp
        for own in owners:
            assert own["layout"]
            assert len(own["read"]) == 2 + 3 * tp
            assert all(own["read"])
            # several buckets of each version
            assert own["calls"] > 4
        for own in of_tp:
            assert own["received"] == own["lacks"]
            assert own["received"] == pytest.approx(own["formula"], rel=0.05)
        # All ranks have one copy of the model together. What travels is beside it, in buckets.
        assert sum(own["kept"] for own in of_tp) == MODEL_BYTES
        largest = 4 * 256 * 16
        room = sum(own["private"] for own in of_tp) - MODEL_BYTES
        # a tensor that is put together, and what is sent and received for it
        assert 0 < room <= size * 3 * largest / tp
        shared = {name: most for own in of_tp for name, most in own["shared"].items()}
        # A file of each rank, in which tensors begin at multiples of 64 bytes.
        assert len(shared) == size
        most = max(largest, BATCH_BYTES // tp) + 64 * len(SHAPES)
        assert all(0 < size <= most for size in shared.values())


def test_a_block_of_two_ranks_counts_once_and_must_be_the_same() -> None:
    whole = torch.arange(24.0).view(4, 6)

    def sums(
        *places: tuple[int, int, int], off: float = 0
    ) -> dict[TensorSlice, torch.Tensor]:
        parts = [
            WeightPart(
                "w",
                (4, 6),
                (row, column),
                whole[row : row + 2, column : column + size] + off,
            )
            for row, column, size in places
        ]
        return {part.block: part.sums() for part in parts}

    ranks = [sums((0, 0, 6)), sums((0, 0, 6), (2, 0, 3)), sums((2, 3, 3))]
    assert written_checksums(ranks, "float32") == {"w": tensor_checksum("w", whole)}
    with pytest.raises(
        EngineError, match="ranks wrote 'w' with other bits than each other"
    ):
        written_checksums([ranks[0], sums((0, 0, 6), off=1)], "float32")


class Full(ShardSender):
    """Its machine has no memory for what is handed over."""

    def hand_over(self, *given: object) -> NoReturn:
        raise MachineError("/dev/shm is full")


def test_an_update_that_no_server_heard_of_is_given_up(place: EnginePlace) -> None:
    name = "model.norm.weight"
    whole = ShardTensor(name, (4,), (TensorSlice.whole(name, (4,)),))
    routes = FakeServer().routes
    join(DistSpec())
    try:
        with broken_server({f"/{route}": does for route, does in routes.items()}) as server:
            sender = Full((0,))
            engine = SGLangEngine(place, SGLangEngineSpec(urls=(server.url,)), sender)
            try:
                engine.pause("retract")
                engine.open_update(1)
                update = ServerUpdate(engine, 1, engine.pool.reachable)
                session = ShardSession(sender, (whole,), "float32", update)
                session.put(name, torch.ones(4))
                with pytest.raises(MachineError, match="is full"):
                    session.commit()
                # what it served goes on to be served
                engine.resume()
                assert (engine.health().state, engine.health().policy_version) == (
                    "serving",
                    0,
                )
            finally:
                engine.close()
    finally:
        leave()
