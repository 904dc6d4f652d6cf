"""Weights and checksums that are published are those that the optimizer moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from agentrl.algorithms import make_algorithm
from agentrl.engines.checksum import tensor_checksum
from agentrl.errors import TrainingError
from agentrl.training import Actor, ActorSpec, DistSpec
from agentrl.types import SegmentKind
from tests.training.harness import make_actor, make_batch, prepared, update


def test_the_actors_checksums_are_those_of_what_it_publishes(model_path: str) -> None:
    actor = make_actor(model_path, "sft")
    published = {
        name: tensor_checksum(name, weight) for name, weight in actor.weights("bfloat16")
    }
    assert actor.checksum("bfloat16") == published


def test_what_is_published_after_a_forward_without_gradients_is_the_weights_themselves(
    model_path: str,
) -> None:
    actor = make_actor(model_path, dtype="bfloat16")
    before = {name: weight.clone() for name, weight in actor.weights("float32")}
    prepared(actor, make_batch())
    after = dict(actor.weights("float32"))
    assert after.keys() == before.keys()
    # not rounded to the forward's bfloat16
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_after_a_forward_that_failed_nothing_is_published(
    model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = make_actor(model_path)
    monkeypatch.setattr(type(actor.backend.model), "_logprobs", lambda *_: [][0])
    with pytest.raises(IndexError):
        prepared(actor, make_batch())
    with pytest.raises(TrainingError, match="build the role again from its checkpoint"):
        actor.checksum()


ENDS: dict[str, Callable[[Actor, Path], object]] = {
    "save": lambda actor, folder: actor.save(folder),
    "export": lambda actor, folder: actor.export(folder),
    "weights": lambda actor, _: dict(actor.weights()),
    "checksum": lambda actor, _: actor.checksum(),
    "update": lambda actor, _: actor.step(),
}


@pytest.mark.parametrize("end", ENDS)
def test_gathered_weights_are_refused_by_name(
    model_path: str, tmp_path: Path, end: str
) -> None:
    actor = make_actor(model_path, "sft")
    update(actor, make_batch(kind=SegmentKind.TARGET))
    actor.backend.model.unshard()  # type: ignore[operator]
    with pytest.raises(TrainingError, match=r"model\.embed_tokens\.weight is gathered"):
        ENDS[end](actor, tmp_path / "folder")


class Gathers(TorchDispatchMode):
    """Counts the bytes that this rank sends to others as it gathers whole tensors."""

    sent = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if "all_gather" in str(func):
            self.sent += args[0].numel() * args[0].element_size()
        return func(*args, **(kwargs or {}))


def test_weights_are_cast_before_they_are_gathered(model_path: str) -> None:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    place = DistSpec(rank=0, world_size=2)
    actor = Actor(ActorSpec(model_path, make_algorithm("sft")), place)
    sent = {}
    for dtype in ("float32", "bfloat16"):
        with Gathers() as gathers:
            whole = [tensor.nbytes for _, tensor in actor.weights(dtype)]
        # a half of each tensor
        assert gathers.sent == sum(whole) // 2
        sent[dtype] = gathers.sent
    assert sent["float32"] == 2 * sent["bfloat16"] > 0
