"""Checksums by hand, and additive over shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import tensor

from agentrl.errors import TrainingError
from agentrl.training import Actor
from agentrl.training.models.checksum import tensor_checksum
from agentrl.types import SegmentKind
from tests.training.harness import make_actor, make_batch, prepared, update


def test_a_checksum_weighs_bits_by_their_place() -> None:
    # float32 1.0 is 0x3f800000, -2.0 is 0xc0000000: 1·bits_0 + 3·bits_1
    assert int(tensor_checksum(tensor([1.0, -2.0]))) == 0x3F800000 + 3 * 0xC0000000


def test_a_checksum_of_bfloat16_is_of_its_own_bits() -> None:
    assert int(tensor_checksum(tensor([1.0, -2.0], dtype=torch.bfloat16))) == 0x3F80 + 3 * 0xC000


def test_checksums_add_up_over_shards() -> None:
    whole = torch.arange(40, dtype=torch.float32)
    parts = [tensor_checksum(whole[:13]), tensor_checksum(whole[13:], start=13)]
    assert int(sum(parts)) == int(tensor_checksum(whole))


def test_swapped_weights_have_another_checksum() -> None:
    assert int(tensor_checksum(tensor([1.0, 2.0]))) != int(tensor_checksum(tensor([2.0, 1.0])))


def test_the_actors_checksums_are_those_of_what_it_publishes(model_path: str) -> None:
    actor = make_actor(model_path, "sft")
    published = {
        name: int(tensor_checksum(weight)) % 2**64 for name, weight in actor.weights("bfloat16")
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
def test_gathered_weights_are_refused_by_name(model_path: str, tmp_path: Path, end: str) -> None:
    actor = make_actor(model_path, "sft")
    update(actor, make_batch(kind=SegmentKind.TARGET))
    actor.backend.model.unshard()  # type: ignore[operator]
    with pytest.raises(TrainingError, match=r"model\.embed_tokens\.weight is gathered"):
        ENDS[end](actor, tmp_path / "folder")
