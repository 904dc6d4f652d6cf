"""Changes of weights: bit-exact, in few bytes, and only on top of the weights that they are of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentrl.controller.cluster.episode_host import EpisodeHost
from agentrl.controller.cluster.worker import Worker
from agentrl.training import DistSpec
from agentrl.weight_sync import ServedCopy, ServedWeights, TrainerReference
from agentrl.weight_sync.changes import PartBits, changed, overwrite
from tests.controller.tiny import actor_spec, engine_spec
from tests.weight_sync.test_served_copy import WHOLES, Ranks, parts, renewed


def moved(
    size: int, where: Any, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, PartBits]:
    """A tensor whose bits at some places are others than those of ones, and what is sent of it."""
    now = torch.ones(size, dtype=dtype)
    now[where] = -0.0
    memory = torch.ones(size, dtype=dtype)
    places = overwrite(memory, now)
    assert torch.equal(memory, now)
    assert places is not None
    return now, changed(memory, places)


def applied(change: PartBits, to: Tensor) -> Tensor:
    change.put_into(to.view(torch.int16 if to.itemsize == 2 else torch.int32))
    return to


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("where", "num_places"),
    [
        ([], 0),
        # a byte for each, however they lie up to 254 apart
        ([0, 1, 255], 3),
        # 999 equal ones: 3 bytes of 255, and one
        ([999], 4),
        (slice(7, None, 8), 5000 // 8),
    ],
)
def test_places_take_a_byte_a_change(
    dtype: torch.dtype, where: Any, num_places: int
) -> None:
    now, change = moved(5000, where, dtype)
    assert change.places is not None
    assert len(change.places) == num_places
    count = int((now != 1).sum())
    assert change.num_bytes == num_places + count * now.itemsize
    assert torch.equal(applied(change, torch.ones(5000, dtype=dtype)), now)


def test_changes_are_found_over_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.weight_sync.changes._BLOCK", 64)
    for seed, share in enumerate((0.001, 0.02, 0.1)):
        where = np.random.default_rng(seed).random(9999) < share
        now, change = moved(9999, torch.from_numpy(where))
        assert torch.equal(applied(change, torch.ones(9999, dtype=torch.bfloat16)), now)


def test_bits_count_and_not_numbers() -> None:
    """NaN is no change of itself; -0 is one of 0."""
    memory = torch.tensor([float("nan"), 0.0] + [1.0] * 30)
    now = memory.clone()
    now[1] = -0.0
    places = overwrite(memory, now)
    assert places is not None
    assert places.tolist() == [1]
    assert changed(memory, places).bits.tolist() == [-(2**31)]


@pytest.mark.parametrize("count", [4096 // 8 + 1, 4096])
def test_a_part_of_which_more_than_an_eighth_changed_is_sent_whole(count: int) -> None:
    memory = torch.ones(4096, dtype=torch.bfloat16)
    now = memory.clone()
    now[:count] = 0
    assert overwrite(memory, now) is None
    assert torch.equal(memory, now)


def served(change: Any) -> tuple[Ranks, ServedWeights]:
    """Two ranks' parts of version 2, and which of them differ from version 1."""
    copies = ServedCopy(), ServedCopy()
    for rank, copy in enumerate(copies):
        renewed(copy, 1, parts(rank))
        own = [
            replace(one, tensor=change(one.name, one.tensor.clone())) for one in parts(rank)
        ]
        list(copy.renew(own, 2, changes=True))
    ranks = Ranks(*copies)
    places = tuple(copy.places() for copy in copies)
    return ranks, ServedWeights(2, "float32", places, TrainerReference({}, None), ranks, {})  # type: ignore[arg-type]


def test_parts_of_ranks_are_put_on_top_of_whole_tensors_of_before() -> None:
    def one_column(name: str, tensor: Tensor) -> Tensor:
        if name == "columns":
            tensor[2:, 0] += 1
        return tensor

    _, weights = served(one_column)
    delivery = weights.tensors(lambda name: WHOLES[name].clone())
    wanted = {name: whole.clone() for name, whole in WHOLES.items()}
    # the first column of each rank's, which are 2 and 4 wide
    wanted["columns"][2:, [0, 2]] += 1
    found = dict(delivery)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    # of the first rank more than an eighth, so that all 8 come; of the second none of 16
    assert delivery.num_bytes == 8 * 4 + 2 * (4 + 1)


@pytest.fixture
def worker(model: Path) -> Iterator[Worker]:
    worker = Worker("ranks")
    worker.join(DistSpec(), 1)
    worker.setup({"actor": actor_spec(model)})
    yield worker
    worker.close()


@pytest.fixture
def host(model: Path) -> Iterator[EpisodeHost]:
    host = EpisodeHost()
    host.engine = engine_spec(model, dtype="bfloat16").build()  # type: ignore[assignment]
    yield host
    assert host.engine is not None
    host.engine.close()


class Published:
    """Publishes a worker's weights as a driver does, and counts what engines take."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.model: Any = worker._roles["actor"]

    def ask(self, version: int, names: Any, changes: bool) -> Any:
        return self.worker.served_parts("actor", version, names[0], changes)

    def take(self, asked: Any) -> Any:
        return [asked]

    def root(self, method: str, *args: Any) -> Any:
        raise AssertionError("nothing is broadcast")

    def weights(self, version: int, *, changes: bool = True) -> ServedWeights:
        places, reference, base = self.worker.serve("actor", "bfloat16", version, changes)
        assert reference is not None
        return ServedWeights(version, "bfloat16", (places,), reference, self, base)

    def step(self) -> None:
        """Changes the sign of one number in a hundred."""
        with torch.no_grad():
            for parameter in self.model.backend.model.parameters():
                parameter.view(-1)[::100] *= -1

    @property
    def num_bytes(self) -> int:
        return sum(2 * tensor.numel() for _, tensor in self.model.weights("bfloat16"))


def sent(host: EpisodeHost, weights: ServedWeights) -> int:
    """Bytes that the engine was sent; it serves the trainer's very bits then."""
    (report,) = host.update(weights, weights.version, "retract")
    assert host.engine is not None
    assert host.engine.checksum() == weights.reference.checksum
    return report.bytes


@pytest.mark.invariant
def test_after_a_whole_publish_the_engine_is_sent_what_changed_bit_for_bit(
    worker: Worker, host: EpisodeHost
) -> None:
    trainer = Published(worker)
    assert sent(host, trainer.weights(1)) == trainer.num_bytes
    for version in range(2, 6):
        trainer.step()
        assert 0 < sent(host, trainer.weights(version)) < trainer.num_bytes / 25
    # nothing changed
    assert sent(host, trainer.weights(6)) == 0
    # as the driver asks for one, all is sent
    trainer.step()
    assert sent(host, trainer.weights(7, changes=False)) == trainer.num_bytes
    trainer.step()
    assert sent(host, trainer.weights(8)) < trainer.num_bytes / 25


def test_an_engine_of_another_base_is_sent_all_weights(
    worker: Worker, host: EpisodeHost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "agentrl.controller.cluster")
    trainer = Published(worker)
    sent(host, trainer.weights(1))
    trainer.step()
    trainer.weights(2)  # the engine is not sent these
    trainer.step()
    # what changed since version 2 would make other weights of version 1
    assert sent(host, trainer.weights(3)) == trainer.num_bytes
    assert "whole_weights" in {vars(record).get("event") for record in caplog.records}
    trainer.step()
    assert sent(host, trainer.weights(4)) < trainer.num_bytes / 25


def test_a_worker_that_joins_between_is_sent_all_weights_and_then_changes(
    model: Path, worker: Worker, host: EpisodeHost
) -> None:
    trainer = Published(worker)
    trainer.step()
    sent(host, trainer.weights(1))
    trainer.step()
    weights = trainer.weights(2)
    late = EpisodeHost()
    late.engine = engine_spec(model, dtype="bfloat16").build()  # type: ignore[assignment]
    try:
        assert sent(host, weights) < trainer.num_bytes / 25
        (report,) = late.update(weights, 2, "retract", joins=True)
        assert report.bytes == trainer.num_bytes
        trainer.step()
        weights = trainer.weights(3)
        assert sent(host, weights) == sent(late, weights) < trainer.num_bytes / 25
    finally:
        assert late.engine is not None
        late.engine.close()


class Unreadable:
    """An engine that gives no weights back, as servers give none."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        if name == "read":
            raise AttributeError(name)
        return getattr(self._engine, name)


def test_a_worker_whose_engine_cannot_be_read_is_sent_what_changed_too(
    worker: Worker, host: EpisodeHost
) -> None:
    host.engine = Unreadable(host.engine)  # type: ignore[assignment]
    trainer = Published(worker)
    few = trainer.num_bytes / 25
    assert sent(host, trainer.weights(1)) == trainer.num_bytes
    assert not host._copies
    trainer.step()
    # From here on it keeps what it is sent.
    assert sent(host, trainer.weights(2)) == trainer.num_bytes
    for version in range(3, 6):
        trainer.step()
        assert 0 < sent(host, trainer.weights(version)) < few
    trainer.step()
    assert sent(host, trainer.weights(6, changes=False)) == trainer.num_bytes
    trainer.step()
    assert sent(host, trainer.weights(7)) < few
    trainer.step()
    # A delivery that breaks off leaves nothing that changes could be put on.
    weights = trainer.weights(8)
    trainer.weights(9)
    assert host.update(weights, 8, "retract", joins=True) == []
    trainer.step()
    assert sent(host, trainer.weights(10)) == trainer.num_bytes
    trainer.step()
    assert sent(host, trainer.weights(11)) < few
    kept = sum(tensor.nbytes for tensor in host._copies.values())
    assert kept == trainer.num_bytes


def test_a_renewal_that_broke_off_is_no_base(worker: Worker, host: EpisodeHost) -> None:
    trainer = Published(worker)
    sent(host, trainer.weights(1))
    for _ in worker._served["actor"].renew(
        trainer.model.parts("bfloat16"), 2, changes=True
    ):
        break
    weights = trainer.weights(3)
    assert weights.base is None
    assert sent(host, weights) == trainer.num_bytes
