"""A rank's served copy: what was published, whatever the trainer does since, once in memory and
never of two versions.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.controller.cluster.episode_host import EpisodeHost
from agentrl.training import WeightPart
from agentrl.weight_sync import (
    PartBits,
    ServedCopy,
    ServedWeights,
    StaleWeightsError,
    served_copy,
)
from agentrl.weight_sync.verify import TrainerReference

WHOLES = {
    "rows": torch.arange(35.0).view(5, 7),
    "columns": torch.arange(24.0).view(4, 6) + 100,
    "vector": torch.arange(3.0) + 200,
    "of one rank": torch.arange(4.0).view(2, 2) + 300,
}


def parts(rank: int, add: float = 0.0) -> list[WeightPart]:
    """Of two ranks: rows 3 and 2, columns 2 and 4, all of the vector and none, and a whole."""
    cut = {"rows": (0, 3), "columns": (1, 2), "vector": (0, 3)}
    found = []
    for name, whole in WHOLES.items():
        if name == "of one rank":
            sides = [(whole, (0, 0))] if rank else []
        else:
            dim, at = cut[name]
            sizes = [at, whole.shape[dim] - at]
            first = [0] * whole.ndim
            first[dim] = rank * at
            sides = [(whole.split(sizes, dim)[rank], tuple(first))]
        found += [WeightPart(name, tuple(whole.shape), at, one + add) for one, at in sides]
    return found


class Ranks:
    """Reads copies of this process."""

    def __init__(self, *copies: ServedCopy) -> None:
        self.copies = copies
        self.asked: list[Sequence[tuple[str, ...]]] = []
        self.asked_changes: set[bool] = set()

    def ask(self, version: int, names: Sequence[tuple[str, ...]], changes: bool) -> Any:
        self.asked.append(names)
        self.asked_changes.add(changes)
        return version, names, changes

    def take(self, asked: Any) -> list[list[PartBits]]:
        version, names, changes = asked
        both = zip(self.copies, names, strict=True)
        return [copy.read(version, own, changes=changes) for copy, own in both]

    def root(self, method: str, *args: Any) -> Any:
        raise AssertionError("nothing is broadcast")


def renewed(copy: ServedCopy, version: int, own: list[WeightPart]) -> list[WeightPart]:
    return list(copy.renew(own, version))


def served(dtype: torch.dtype = torch.float32) -> tuple[Ranks, ServedWeights]:
    copies = ServedCopy(), ServedCopy()
    for rank, copy in enumerate(copies):
        cast = [
            WeightPart(one.name, one.shape, one.first, one.tensor.to(dtype))
            for one in parts(rank)
        ]
        renewed(copy, 1, cast)
    ranks = Ranks(*copies)
    places = tuple(copy.places() for copy in copies)
    name = "float32" if dtype == torch.float32 else "bfloat16"
    return ranks, ServedWeights(1, name, places, TrainerReference({}, None), ranks)  # type: ignore[arg-type]


def equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(
        torch.equal(found[n], wanted[n]) for n in wanted
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_tensors_are_made_of_the_ranks_parts(dtype: torch.dtype) -> None:
    _, weights = served(dtype)
    wanted = {name: whole.to(dtype) for name, whole in WHOLES.items()}
    assert equal(dict(weights.tensors()), wanted)


def test_tensors_come_in_buckets_of_bounded_size_and_a_large_one_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks, weights = served()
    # 140, 96, 12 and 16 bytes
    monkeypatch.setattr(served_copy, "BUCKET_BYTES", 110)
    assert equal(dict(weights.tensors()), WHOLES)
    buckets = [{name for own in names for name in own} for names in ranks.asked]
    assert buckets == [{"rows"}, {"columns", "vector"}, {"of one rank"}]
    # a rank that has nothing of a bucket is asked for nothing
    assert ranks.asked[-1] == [(), ("of one rank",)]


def test_all_ranks_together_keep_the_model_once() -> None:
    ranks, _ = served()
    kept = sum(
        part.tensor.untyped_storage().nbytes()
        for copy in ranks.copies
        for part in copy._parts.values()
    )
    assert kept == sum(whole.nbytes for whole in WHOLES.values())


def test_a_step_of_the_trainer_changes_nothing_and_the_next_version_takes_the_same_memory() -> (
    None
):
    ranks, weights = served()
    (first, *_), copy = parts(0), ranks.copies[0]
    trained = first.tensor.clone()
    (own, *_) = renewed(
        copy, 2, [WeightPart(first.name, first.shape, first.first, trained)]
    )
    trained += 1
    assert torch.equal(own.tensor, first.tensor)
    (again, *_) = renewed(copy, 3, parts(0, add=1))
    assert again.tensor.data_ptr() == own.tensor.data_ptr()
    with pytest.raises(
        StaleWeightsError, match="version 1 was asked for, and the ranks serve 3"
    ):
        dict(weights.tensors())


def test_a_read_never_meets_a_renewal() -> None:
    copy = ServedCopy()
    renewed(copy, 1, parts(0))
    renewal = copy.renew(parts(0, add=1), 2)
    next(renewal)  # the first part is new, the others are not
    found: list[object] = []

    def read() -> None:
        try:
            found.append(copy.read(1, ["rows", "columns"]))
        except StaleWeightsError as error:
            found.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert found == []
    list(renewal)
    reader.join()
    assert isinstance(found[0], StaleWeightsError)


def test_a_worker_that_joins_while_the_ranks_go_on_leaves_its_engine_alone() -> None:
    ranks, weights = served()
    host = EpisodeHost()
    host.engine = object()  # type: ignore[assignment]  # any call of it fails
    renewed(ranks.copies[1], 2, parts(1))
    assert host.update(weights, 1, "retract", joins=True) == []


def test_a_renewal_that_broke_off_serves_nothing() -> None:
    copy = ServedCopy()
    renewed(copy, 1, parts(0))
    renewal = copy.renew(parts(0, add=1), 2)
    next(renewal)
    renewal.close()
    for version in (1, 2):
        with pytest.raises(StaleWeightsError):
            copy.read(version, ["rows"])
